"""The overhead of a step outside the model, measured part by part."""

from __future__ import annotations

import pytest

from headrace.bench.model.overhead import PARTS, SAMPLING, measure_overhead, overhead_rows, prepared_logits
from headrace.bench.model.wide_tokenizer import widened
from headrace.models.source import BUNDLED_FOLDER
from headrace.text.tokenizer import Tokenizer
from tests import needs

_native = needs.native()

from headrace.runner.sampling.native import NativeSampler  # noqa: E402 (needs the extension)

VOCAB = 32_000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(BUNDLED_FOLDER / "tale")


@pytest.fixture(scope="module")
def sampler() -> NativeSampler:
    return NativeSampler(VOCAB, _native.Kernels(_native.available_kernels()[0]), _native.Team(1))


@pytest.mark.parametrize("sequences", [1, 32])
def test_every_part_of_every_step_is_measured(
    sequences: int, sampler: NativeSampler, tokenizer: Tokenizer
) -> None:
    logits = prepared_logits(sequences, VOCAB, tokenizer.vocab_size)
    spent = measure_overhead(
        logits, VOCAB, sampler, SAMPLING["greedy"], sequences, tokenizer, steps=60, block_size=16
    )
    steps = [sum(step) for step in zip(*spent.parts.values(), strict=True)]
    assert len(steps) == 60
    assert all(value > 0 for values in spent.parts.values() for value in values)
    assert spent.medians()["step"] >= max(spent.medians()[part] for part in PARTS)


def test_rows_name_every_part_and_the_whole(sampler: NativeSampler, tokenizer: Tokenizer) -> None:
    logits = prepared_logits(2, VOCAB, tokenizer.vocab_size)
    rows = overhead_rows(logits, VOCAB, sampler, tokenizer, sizes=(1, 2), samplings=("top-p",), steps=5)
    assert [row.labels["part"] for row in rows] == [*PARTS, "step"] * 2
    assert [row.labels["batch"] for row in rows] == [1] * 6 + [2] * 6
    assert all(row.values["overhead_s"] > 0 for row in rows if row.labels["part"] == "step")
    shares = sum(row.values["share"] for row in rows[: len(PARTS)])
    assert 0.5 < shares < 1.5  # medians of parts need not add up to the median of the whole


def test_measured_steps_apply_grammars(tokenizer: Tokenizer) -> None:
    needs.package("llguidance")
    wide = widened(tokenizer, 5000)
    assert wide.vocab_size == 5000 and wide.eos_ids == tokenizer.eos_ids
    assert wide.token_bytes(4999) and len({wide.token_bytes(i) for i in range(6, 5000)}) == 4994
    sampler = NativeSampler(5000, _native.Kernels(_native.available_kernels()[0]), _native.Team(1))
    logits = prepared_logits(2, 5000, 5000)
    spent = measure_overhead(logits, 5000, sampler, SAMPLING["grammar"], 2, wide, steps=10)
    plain = measure_overhead(logits, 5000, sampler, SAMPLING["top-k"], 2, wide, steps=10)
    assert len(spent.parts["pack"]) == 10  # every sequence was still there at the last step
    assert min(spent.parts["pack"]) > min(plain.parts["pack"])  # masks take time
