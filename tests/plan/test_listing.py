"""What `headrace inspect --program` prints, by hand."""

from __future__ import annotations

from headrace.models.families import read_spec
from headrace.models.shapes import SHAPES
from headrace.plan.formats import memory_format
from headrace.plan.listing import COLUMNS, program_rows
from headrace.program.lower import lower
from headrace.quant.format import WeightFormats, parse_format

TINY = lower(read_spec(SHAPES["tiny"]))
"""Hidden 64, inner 128, 2 layers, 4 heads of 16, 2 KV heads, vocabulary 256, untied."""


def cells(name: str, layer: str, quantization: str | None = None, kv: str = "float32") -> dict[str, str]:
    weights = None if quantization is None else WeightFormats(parse_format(quantization))
    header, *rows = program_rows(TINY, memory_format("float32", kv, weights), 16)
    assert header == COLUMNS and len(rows) == len(TINY.ops)
    (found,) = (row for row in rows if row[1] == name and row[2] == layer)
    return dict(zip(COLUMNS, found, strict=True))


def test_a_product() -> None:
    gate_up = cells("gate_up", "0")
    assert gate_up == {
        "op": "linear", "name": "gate_up", "layer": "0", "rows": "tokens", "inputs": "encoded_norm[64]",
        "outputs": "wide[128]", "weights": "0.gate_up 256x64",
        "tensors": "model.layers.0.mlp.gate_proj.weight, model.layers.0.mlp.up_proj.weight",
        "FLOPs a row": f"{2 * 256 * 64:,}", "bytes a step": "64.0 KiB",
    }  # fmt: skip
    assert cells("gate_up", "0", "int4")["bytes a step"] == "12.0 KiB"  # 8 KiB of codes, a page of scales
    assert cells("down", "1")["rows"] == "selected" and cells("head", "")["rows"] == "logits"


def test_attention_and_the_embeddings() -> None:
    attention = cells("attention", "1")
    assert (attention["FLOPs a row"], attention["bytes a step"]) == (f"{4 * 4 * 16} a key", "256 B a key")
    assert cells("attention", "0", "int4", "int8")["bytes a step"] == f"{2 * 2 * (16 + 4)} B a key"
    assert cells("embed", "")["bytes a step"] == "256 B a row"
