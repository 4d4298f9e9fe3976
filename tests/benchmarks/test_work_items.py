"""The work is the same for every engine, and figures count what they are defined to."""

from __future__ import annotations

import pytest

from benchmarks.peers.work_items import (
    COLUMNS,
    SMALLEST_VOCABULARY,
    Request,
    Sizes,
    figure,
    requests,
    sizes_from_json,
    warm_up_requests,
)
from headrace.bench.metrics import METRICS


@pytest.mark.parametrize("column", COLUMNS)
def test_work_is_seeded_and_other_seeds_give_other_prompts_of_equal_lengths(column: str) -> None:
    first, again, other = (requests(column, Sizes(), seed) for seed in (0, 0, 1))
    assert first == again
    assert [(len(one.prompt), one.outputs) for one in first] == [
        (len(one.prompt), one.outputs) for one in other
    ]
    assert all(mine.prompt != theirs.prompt for mine, theirs in zip(first, other, strict=True))
    assert all(0 <= token < SMALLEST_VOCABULARY for one in first for token in one.prompt)
    assert all(len(one.prompt) + one.outputs <= Sizes().longest for one in first)
    assert COLUMNS[column].metric in METRICS


@pytest.mark.parametrize("column", ["prefill", "decode1", "decode8", "decode32"])
def test_a_warm_up_has_the_batch_size_other_prompts_and_few_outputs(column: str) -> None:
    work, warm = requests(column, Sizes()), warm_up_requests(column, Sizes())
    assert len(warm) == len(work)
    assert max(one.outputs for one in warm) <= 4
    assert all(first.prompt[:16] != other.prompt[:16] for first, other in zip(work, warm, strict=True))
    assert len(warm[0].prompt) == (1024 if column == "prefill" else 16)


def test_mixed_work_spans_its_ranges() -> None:
    work = requests("mixed", Sizes(mixed_requests=64))
    assert len(work) == 64
    assert (
        32 <= min(len(one.prompt) for one in work) < 200 < 800 < max(len(one.prompt) for one in work) <= 1024
    )
    assert 16 <= min(one.outputs for one in work) < 60 < 200 < max(one.outputs for one in work) <= 256


def test_decode_counts_tokens_after_every_sequence_has_started() -> None:
    work = [Request((1,), 4), Request((1,), 3)]
    times = [
        [1.0, 2.0, 3.0, 4.0],
        [2.0, 3.0, 4.0],
    ]  # the second starts at 2.0; after that come 2 + 2 tokens in 2 s
    assert figure("decode8", work, 0.0, times) == pytest.approx(2.0)


def test_prefill_and_mixed_count_from_the_beginning() -> None:
    work = [Request(tuple(range(10)), 2), Request(tuple(range(20)), 1)]
    times = [[12.0, 15.0], [13.0]]
    assert figure("prefill", work, 10.0, times) == pytest.approx(30 / 3)
    assert figure("mixed", work, 10.0, times) == pytest.approx(3 / 5)


def test_missing_tokens_raise() -> None:
    with pytest.raises(ValueError, match="3 output tokens gave 2"):
        figure("decode1", [Request((1,), 3)], 0.0, [[1.0, 2.0]])


def test_sizes_survive_json() -> None:
    assert sizes_from_json({"prefill": 64, "mixed_prompts": [8, 16]}) == Sizes(
        prefill=64, mixed_prompts=(8, 16)
    )
