"""The bounded queue: what it takes, what it refuses, and when it says to come back."""

from __future__ import annotations

from random import Random

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.admission import (
    CACHE_FILLS,
    MAX_RETRY_S,
    MIN_RETRY_S,
    Admission,
    Cost,
    default_max_tokens,
    longest_sequence,
)
from headrace.serving.facts import ModelFacts


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def queue(completions: int = 10, tokens: int = 1000, limit: int = 100) -> tuple[Admission, Time]:
    time = Time()
    return Admission(completions, tokens, limit, time), time


@pytest.mark.parametrize(
    ("prompt", "params", "cost"),
    [
        (10, {"max_tokens": 20}, Cost(1, 30)),
        (10, {"max_tokens": 20, "n": 3}, Cost(3, 70)),  # the prompt is computed once
        (10, {"max_tokens": None}, Cost(1, 100)),
        (10, {"max_tokens": 5000}, Cost(1, 100)),  # it ends with the context
        (200, {"max_tokens": 5}, Cost(1, 200)),
    ],
)
def test_what_a_request_may_come_to(prompt: int, params: dict[str, int], cost: Cost) -> None:
    admission, _ = queue()
    assert admission.cost(NewRequest("a", (1,) * prompt, SamplingParams(**params))) == cost


def test_both_bounds_hold_and_a_group_is_taken_as_a_whole() -> None:
    admission, _ = queue(completions=4, tokens=100)
    admission.take([Cost(1, 30), Cost(2, 40)])
    with pytest.raises(Overloaded):
        admission.take([Cost(1, 10), Cost(1, 10)])  # two completions more
    with pytest.raises(Overloaded):
        admission.take([Cost(1, 31)])
    assert (admission.completions, admission.tokens) == (3, 70)
    admission.take([Cost(1, 30)])
    admission.give_back(Cost(2, 40))
    admission.take([Cost(2, 40)])


@pytest.mark.parametrize("costs", [[Cost(5, 1)], [Cost(1, 101)], [Cost(1, 60), Cost(1, 60)]])
def test_what_could_never_fit_is_the_callers_fault(costs: list[Cost]) -> None:
    admission, _ = queue(completions=4, tokens=100)
    with pytest.raises(InvalidParams, match="no more than"):
        admission.take(costs)


def test_retry_after_is_the_time_that_draining_takes() -> None:
    admission, time = queue(completions=100, tokens=1000)
    for _ in range(50):
        admission.take([Cost(1, 20)])
    for _ in range(10):  # 20 tokens a second
        time.now += 1.0
        admission.give_back(Cost(1, 20))
        admission.take([Cost(1, 20)])
    with pytest.raises(Overloaded) as caught:
        admission.take([Cost(1, 200)])
    assert caught.value.retry_after_s == 10
    with pytest.raises(Overloaded) as caught:
        admission.take(
            [Cost(60, 20)]
        )  # ten completions short, at one a second, and one second for the tokens
    assert caught.value.retry_after_s == 10
    with pytest.raises(Overloaded) as caught:
        admission.take([Cost(1, 1)])
    assert caught.value.retry_after_s == MIN_RETRY_S


def test_retry_after_stays_within_its_bounds() -> None:
    admission, time = queue(completions=1, tokens=1000)
    admission.take([Cost(1, 10)])
    time.now += 0.001
    assert admission.retry_after(Cost(1, 0)) == MIN_RETRY_S
    time.now += 1000
    assert admission.retry_after(Cost(1, 0)) == 30  # nothing has ended for a window
    admission.give_back(Cost(1, 1))
    admission.take([Cost(1, 10)])
    time.now += 20
    admission.give_back(Cost(0, 1))
    assert admission.retry_after(Cost(0, 900)) == MAX_RETRY_S


def test_the_sums_are_exact_over_random_moves() -> None:
    rng, (admission, time) = Random(3), queue(completions=50, tokens=2000)
    held: list[Cost] = []
    refused = 0
    for _ in range(5000):
        time.now += rng.random()
        if rng.random() < 0.55:
            costs = [Cost(rng.randint(1, 4), rng.randint(1, 200)) for _ in range(rng.randint(1, 3))]
            try:
                admission.take(costs)
                held += costs
            except Overloaded as error:
                assert error.retry_after_s is not None
                assert MIN_RETRY_S <= error.retry_after_s <= MAX_RETRY_S
                refused += 1
        elif held:
            admission.give_back(held.pop(rng.randrange(len(held))))
        assert admission.completions == sum(cost.completions for cost in held) <= 50
        assert admission.tokens == sum(cost.tokens for cost in held) <= 2000
        lately = [cost for _, cost in admission._drained]
        assert admission._done == Cost(
            sum(cost.completions for cost in lately), sum(cost.tokens for cost in lately)
        )
    assert refused > 100


def test_defaults_come_from_the_model() -> None:
    facts = ModelFacts("m", 10, 1024, block_size=32, num_kv_blocks=2048)
    assert longest_sequence(facts) == 1024
    assert default_max_tokens(facts) == CACHE_FILLS * 65_536
    stream = ModelFacts("m", 10, None, block_size=32, num_kv_blocks=64)
    assert longest_sequence(stream) == 2048
