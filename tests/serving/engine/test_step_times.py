"""Estimates of a step from earlier ones: never too low while costs stay the same, and soon right when they change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence, SeqSlice, StepPlan
from headrace.serving.engine.watchdog import StepTimes, Work, WorkCounter


class Machine:
    """A clock that a step moves on by what its work costs."""

    def __init__(
        self, token_s: float, pair_s: float = 0.0, scored_s: float = 0.0, step_s: float = 0.0
    ) -> None:
        self.now = 50.0
        self.prices = (token_s, pair_s, scored_s, step_s)
        self.times = StepTimes(lambda: self.now)

    def takes(self, work: Work) -> float:
        token_s, pair_s, scored_s, step_s = self.prices
        return step_s + token_s * work.tokens + pair_s * work.pairs + scored_s * work.scored

    def runs(self, work: Work) -> float | None:
        """What was expected."""
        expected = self.times.begin(work)
        self.now += self.takes(work)
        self.times.end()
        return expected


def fresh(tokens: int, start: int = 0, scored: int = 0) -> Work:
    return Work(tokens, tokens * start + tokens * (tokens + 1) // 2, scored)


def test_nothing_is_expected_of_a_first_step() -> None:
    assert Machine(0.002).runs(fresh(8192)) is None


def test_a_step_like_the_last_one_is_expected_to_take_as_long() -> None:
    machine = Machine(0.002)
    machine.runs(fresh(8192))
    assert machine.runs(fresh(8192)) == pytest.approx(16.4, rel=0.01)
    assert machine.runs(fresh(1000)) == pytest.approx(16.4, rel=0.01)  # a step has costs that do not shrink


def test_a_long_context_is_expected_to_be_slow() -> None:
    machine = Machine(1e-5, pair_s=1e-7)
    machine.runs(fresh(8192))
    expected = machine.runs(fresh(8192, start=100_000))
    assert expected is not None and expected >= machine.takes(fresh(8192, start=100_000))


def test_prompts_with_log_probabilities_are_estimated_separately() -> None:
    machine = Machine(0.001, scored_s=0.1)
    machine.runs(fresh(4096))
    scored = fresh(4096, scored=2048)
    assert machine.runs(scored) is None
    assert machine.runs(scored) == pytest.approx(machine.takes(scored))
    assert machine.runs(fresh(4096)) == pytest.approx(machine.takes(fresh(4096)))


works = st.builds(fresh, st.integers(513, 8192), st.integers(0, 10**6), st.integers(0, 4096))
prices = st.integers(0, 1000)  # whole, so that the clock is exact


@given(prices, prices, prices, prices, st.lists(works, min_size=2, max_size=20))
def test_no_step_takes_longer_than_expected_while_prices_stay(
    token_s: int, pair_s: int, scored_s: int, step_s: int, steps: list[Work]
) -> None:
    machine = Machine(token_s, pair_s, scored_s, step_s)
    for work in steps:
        expected = machine.runs(work)
        assert expected is None or expected >= machine.takes(work) * (1 - 1e-12)


def test_estimates_follow_a_slower_or_faster_machine_at_once() -> None:
    machine = Machine(0.001)
    for _ in range(30):
        machine.runs(fresh(4096))
    machine.prices = (0.004, 0.0, 0.0, 0.0)  # other programs came
    machine.runs(fresh(4096))
    assert machine.runs(fresh(4096)) == pytest.approx(4 * 4.096)
    machine.prices = (0.002, 0.0, 0.0, 0.0)
    machine.runs(fresh(4096))
    assert machine.runs(fresh(4096)) == pytest.approx(2 * 4.096)


def test_an_end_without_a_start_is_ignored() -> None:
    machine = Machine(0.001)
    machine.times.end()
    assert machine.runs(fresh(4096)) is None


def piece(
    number: int, tokens: int, start: int, prompt_logprobs: int | None = None, new: bool = True
) -> SeqSlice:
    params = SamplingParams(prompt_logprobs=prompt_logprobs)
    return SeqSlice(
        number, (1,) * tokens, start, True,
        new=NewSequence(params, (1,) * (start + tokens), start + tokens, 0, frozenset()) if new else None,
    )  # fmt: skip


def test_the_work_of_plans_is_counted() -> None:
    counter = WorkCounter()
    assert counter.count(StepPlan(0, (piece(1, 3, 0), piece(2, 2, 10)))) == Work(5, 1 + 2 + 3 + 11 + 12)
    assert counter.count(StepPlan(1, (piece(3, 4, 0, prompt_logprobs=0),))) == Work(4, 10, 4)
    more = piece(3, 2, 4, new=False)
    assert counter.count(StepPlan(2, (more, piece(2, 1, 12, new=False)))) == Work(3, 5 + 6 + 13, 2)
    assert counter.count(StepPlan(3, (piece(4, 1, 0),), released=(3,))) == Work(1, 1)
    assert counter.count(StepPlan(4)) == Work(0, 0)
