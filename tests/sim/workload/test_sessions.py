"""Lengths have the stated distribution; sessions follow from the seed."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest

from headrace.bench.measure import percentile
from headrace.errors import ConfigError
from headrace.sim.workload.sessions import (
    SHAREGPT_INPUT,
    SHAREGPT_OUTPUT,
    Lengths,
    Session,
    WordRate,
    Workload,
)

ONE = WordRate(0.0, 1.0)


def draws(lengths: Lengths, count: int = 20_000) -> list[int]:
    rng = random.Random(0)
    return [lengths.draw(rng) for _ in range(count)]


def take(workload: Workload, count: int, seed: int = 0, rate: WordRate = ONE) -> list[Session]:
    return list(itertools.islice(workload.sessions(seed, rate), count))


def test_lengths_are_lognormal() -> None:
    lengths = Lengths(100, 0.8, 1, 10**6)
    seen = draws(lengths)
    for share, deviations in ((0.1, -1.2816), (0.25, -0.6745), (0.5, 0.0), (0.75, 0.6745), (0.9, 1.2816)):
        assert percentile(seen, share) == pytest.approx(100 * math.exp(0.8 * deviations), rel=0.04)


@pytest.mark.parametrize(("lengths", "mean"), [(SHAREGPT_INPUT, 220), (SHAREGPT_OUTPUT, 195)])
def test_the_stated_means(lengths: Lengths, mean: float) -> None:
    seen = draws(lengths)
    assert statistics.mean(seen) == pytest.approx(mean, rel=0.05)
    assert min(seen) >= lengths.low and max(seen) <= lengths.high


def test_lengths_outside_are_drawn_again_and_do_not_pile_up() -> None:
    cut = SHAREGPT_OUTPUT.within(200)
    seen = draws(cut)
    assert max(seen) <= 200
    assert seen.count(200) < len(seen) * 0.02
    assert draws(Lengths.fixed(7), 5) == [7] * 5


def test_sessions_follow_from_the_seed() -> None:
    workload = Workload(turns=2)
    assert take(workload, 5) == take(workload, 5)
    assert take(workload, 5) != take(workload, 5, seed=1)
    assert len({session.turns[0].text[:40] for session in take(workload, 50)}) == 50, "no prefix is shared"


def test_texts_have_the_requested_number_of_tokens() -> None:
    (session,) = take(Workload(Lengths.fixed(100), Lengths.fixed(9)), 1, rate=WordRate(20.0, 2.0))
    assert len(session.turns[0].text.split()) == 40
    assert session.turns[0].max_tokens == 9
    assert WordRate(20.0, 2.0).words(5) == 1


def test_shared_prefixes() -> None:
    workload = Workload(Lengths.fixed(5), Lengths.fixed(2), prefixes=3, prefix_tokens=50)
    texts = [session.turns[0].text.split() for session in take(workload, 60)]
    assert {len(text) for text in texts} == {55}
    assert len({tuple(text[:50]) for text in texts}) == 3
    assert len({tuple(text[50:]) for text in texts}) > 50


def test_turns_share_the_room() -> None:
    workload = Workload(turns=4).within(1024)
    longest = workload.turns * (workload.inputs.high + workload.outputs.high)
    assert longest <= 1024
    assert all(len(session.turns) == 4 for session in take(workload, 3))


def test_fixed_lengths_are_kept_or_refused() -> None:
    workload = Workload(Lengths.fixed(500), Lengths.fixed(500))
    assert workload.within(1024) == workload
    with pytest.raises(ConfigError, match="500 prompt and 500 output tokens do not fit the model's 999"):
        workload.within(999)
    with pytest.raises(ConfigError, match="do not fit"):
        Workload(prefixes=1, prefix_tokens=1000).within(900)


def test_lengths_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="lengths"):
        Lengths(10, 1.0, 5, 4)
    with pytest.raises(ConfigError, match="lengths"):
        Lengths.fixed(0)
