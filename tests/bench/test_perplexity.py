"""Perplexity by our own engine, against the loss by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from headrace import LLM
from headrace.bench.quality.perplexity import HELD_OUT, perplexity_rows, read_documents, score
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.models.source import resolve_model
from tests import needs

transformers = needs.lazily("transformers")

TEXTS = read_documents(HELD_OUT)[:3]


@pytest.fixture(scope="module")
def tale() -> LLM:
    return LLM("tale", dtype="float32", num_threads=1, show_progress=False, max_num_batched_tokens=96)


def loss_of(transformers_model: torch.nn.Module, ids: list[int]) -> float:
    with torch.inference_mode():
        logits = transformers_model(torch.tensor([ids])).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()


@pytest.mark.long
def test_the_loss_equals_transformers(tale: LLM) -> None:
    folder = resolve_model("tale").path
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    encoded = [tale.tokenizer.encode(text) for text in TEXTS]
    progress_calls: list[int] = []
    found = score(tale, TEXTS, progress_calls.append)
    assert found.tokens == sum(len(ids) - 1 for ids in encoded) and progress_calls[-1] == len(TEXTS)
    assert found.loss == pytest.approx(sum(loss_of(model, ids) for ids in encoded), rel=1e-4)
    assert 1.2 < found.perplexity < 3


def test_long_texts_are_cut_into_pieces(tale: LLM) -> None:
    short = LLM("tale", dtype="float32", num_threads=1, show_progress=False, max_model_len=33)
    ids = tale.tokenizer.encode(TEXTS[0])
    found = score(short, TEXTS[:1])
    assert found.tokens == len(ids) - math.ceil(len(ids) / 32)
    assert found.perplexity > score(tale, TEXTS[:1]).perplexity  # less context, less known


def test_rows_compare_with_the_first() -> None:
    config = EngineConfig("tale", num_threads=1)
    progress_calls: list[str] = []
    rows = list(
        perplexity_rows(
            config, TEXTS[:1], weights=["float32", "bfloat16"], kv=["auto"], progress=progress_calls.append
        )
    )
    assert [row.labels["weights"] for row in rows] == ["float32", "bfloat16"] and len(progress_calls) == 2
    assert rows[0].values["ratio"] == 1.0
    assert 0 < abs(rows[1].values["ratio"] - 1) < 0.02
    with pytest.raises(ConfigError, match="none of the formats"):
        next(
            perplexity_rows(
                config, TEXTS, weights=["float32", "int3"], kv=["auto"], progress=progress_calls.append
            )
        )


def test_files(tmp_path: Path) -> None:
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in ("one\u2028two", "")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "a.txt").write_text("all\nof it")
    assert read_documents(tmp_path / "a.jsonl") == ["one\u2028two"]
    assert read_documents(tmp_path / "a.txt") == ["all\nof it"]
    for name, content in (
        ("b.jsonl", "no"),
        ("c.jsonl", '{"words": 1}'),
        ("d.jsonl", '{"text": 1}'),
        ("e.txt", ""),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigError, match=name):
            read_documents(tmp_path / name)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_documents(tmp_path / "nothing.txt")


@pytest.mark.parametrize(
    ("weights", "kv", "worst"),
    [
        ("bfloat16", "auto", 1.002),
        ("bfloat16", "int8", 1.004),
        ("int8", "auto", 1.004),
        ("int4", "int8", 1.03),
    ],
)
def test_what_fewer_bits_cost(tale: LLM, weights: str, kv: str, worst: float) -> None:
    """A layout read wrongly would cost a factor, not a percent."""
    if tale.parts.resolved.kernels is None:
        needs.lacking("native", "only the native kernels read these formats")
    (row,) = perplexity_rows(
        EngineConfig("tale", dtype="bfloat16", num_threads=1),
        TEXTS,
        weights=[weights],
        kv=[kv],
        progress=lambda what: None,
    )
    ratio = row.values["perplexity"] / score(tale, TEXTS).perplexity
    assert 1 / worst < ratio < worst
    assert row.labels["weights"] == weights and row.labels["kv"] == ("int8" if kv == "int8" else "bfloat16")
