"""What keys and values take in models of each kind of attention. Computed, nothing runs."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.bench.report import Label, Row
from headrace.bench.technique_report.sections import SECTION
from headrace.models.families import read_spec
from headrace.models.shapes import SHAPES
from headrace.models.spec import ModelSpec
from headrace.plan.formats import KVFormat
from headrace.program.lower import lower

MODELS = (
    ("MHA", "llama-2-7b"),
    ("GQA", "llama-3.1-8b"),
    ("MQA", "gemma-2b"),
    ("MLA", "deepseek-v2-lite"),
    ("GQA, windows", "gemma-3-12b"),
)
LENGTHS = {"kv_4k_bytes": 4096, "kv_32k_bytes": 32_768, "kv_128k_bytes": 131_072}


def kv_rows() -> Iterator[Row]:
    """A row for each model."""
    for kind, name in MODELS:
        spec = read_spec(SHAPES[name])
        labels: dict[str, Label] = {SECTION: "kv_memory", "attention": kind, "model": name}
        values = {name: float(sequence_bytes(spec, length)) for name, length in LENGTHS.items()}
        yield Row(labels, {"token_bytes": float(sequence_bytes(spec, 1)), **values})


def sequence_bytes(spec: ModelSpec, tokens: int) -> int:
    """Bytes of keys and values in bfloat16 of a sequence; windows keep no more than they see."""
    stored = KVFormat("bfloat16")
    return sum(
        stored.token_bytes(layout)
        * (tokens if layout.window is None else min(tokens, layout.window + layout.sinks))
        for layout in lower(spec).kv
        if layout.state is None
    )
