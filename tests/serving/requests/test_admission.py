"""The bounded queue: admissions, refusals, and Retry-After."""

from __future__ import annotations

from random import Random

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.engine.state import ModelFacts
from headrace.serving.requests.admission import (
    CACHE_FILLS,
    FIRST_ESTIMATE,
    MAX_ESTIMATE,
    MAX_RETRY_S,
    MIN_ESTIMATE,
    MIN_QUEUE_TOKENS,
    MIN_RETRY_S,
    Admission,
    Cost,
    OutputEstimate,
    default_max_tokens,
    longest_sequence,
)


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def queue(completions: int = 10, tokens: int = 1000) -> tuple[Admission, Time]:
    time = Time()
    return Admission(completions, tokens, time), time


def prompts(completions: int, tokens: int) -> Cost:
    return Cost(completions, tokens, 0)


@pytest.mark.parametrize(
    ("prompt", "params", "cost"),
    [
        (10, {"max_tokens": 20}, Cost(1, 10, 20)),
        (10, {"max_tokens": 20, "n": 3}, Cost(3, 10, 60)),  # the prompt is computed once
        (10, {"max_tokens": None}, Cost(1, 10, FIRST_ESTIMATE)),
        (10, {"max_tokens": 5000}, Cost(1, 10, FIRST_ESTIMATE)),
        (90, {"max_tokens": None}, Cost(1, 90, 10)),  # it ends with the context
        (200, {"max_tokens": 5}, Cost(1, 200, 0)),
        (10, {"max_tokens": 0}, Cost(1, 10, 0)),
    ],
)
def test_a_request_costs_its_prompt_and_the_expected_output(
    prompt: int, params: dict[str, int], cost: Cost
) -> None:
    assert OutputEstimate(100).cost(NewRequest("a", (1,) * prompt, SamplingParams(**params))) == cost


def test_the_estimate_follows_recent_outputs() -> None:
    estimate = OutputEstimate()
    for _ in range(100):
        estimate.learn(150)
    assert estimate.tokens == 150
    for _ in range(100):
        estimate.learn(10_000)
    assert estimate.tokens == MAX_ESTIMATE
    for _ in range(200):
        estimate.learn(1)
    assert estimate.tokens == MIN_ESTIMATE


def test_both_bounds_hold_and_a_group_is_taken_as_a_whole() -> None:
    admission, _ = queue(completions=4, tokens=100)
    admission.take([prompts(1, 30), Cost(2, 10, 30)])
    with pytest.raises(Overloaded):
        admission.take([prompts(1, 10), prompts(1, 10)])  # two completions more
    with pytest.raises(Overloaded):
        admission.take([prompts(1, 31)])
    assert (admission.completions, admission.tokens) == (3, 70)
    admission.take([prompts(1, 30)])
    admission.give_back(2, 40)
    admission.take([prompts(2, 40)])


def test_output_is_charged_as_it_is_generated_and_limits_admission() -> None:
    admission, _ = queue(completions=4, tokens=100)
    admission.take([Cost(1, 10, 10)])
    admission.charge(64)
    with pytest.raises(Overloaded):
        admission.take([prompts(1, 17)])
    admission.charge(64)  # it may continue: admitted requests are served
    assert admission.tokens == 148
    admission.give_back(1, 148)
    assert (admission.completions, admission.tokens) == (0, 0)


@pytest.mark.parametrize("costs", [[prompts(5, 1)], [prompts(1, 101)], [prompts(1, 60), prompts(1, 60)]])
def test_a_request_that_can_never_fit_is_a_client_error(costs: list[Cost]) -> None:
    admission, _ = queue(completions=4, tokens=100)
    with pytest.raises(InvalidParams, match="no more than"):
        admission.take(costs)


def test_an_estimate_never_makes_a_request_too_large() -> None:
    admission, _ = queue(completions=4, tokens=100)
    admission.take([Cost(3, 90, 900)])
    with pytest.raises(Overloaded):
        admission.take([prompts(1, 1)])


def test_retry_after_is_the_time_that_draining_takes() -> None:
    admission, time = queue(completions=100, tokens=1000)
    for _ in range(50):
        admission.take([Cost(1, 10, 10)])
    for _ in range(10):  # 20 tokens a second
        time.now += 1.0
        admission.give_back(1, 20)
        admission.take([Cost(1, 10, 10)])
    with pytest.raises(Overloaded) as caught:
        admission.take([prompts(1, 200)])
    assert caught.value.retry_after_s == 10
    with pytest.raises(Overloaded) as caught:
        admission.take(
            [prompts(60, 20)]
        )  # ten completions short, at one a second, and one second for the tokens
    assert caught.value.retry_after_s == 10
    with pytest.raises(Overloaded) as caught:
        admission.take([prompts(1, 1)])
    assert caught.value.retry_after_s == MIN_RETRY_S


def test_retry_after_stays_within_its_bounds() -> None:
    admission, time = queue(completions=1, tokens=1000)
    admission.take([prompts(1, 10)])
    time.now += 0.001
    assert admission.retry_after(1, 0) == MIN_RETRY_S
    time.now += 1000
    assert admission.retry_after(1, 0) == 30  # nothing has ended for a window
    admission.give_back(1, 1)
    admission.take([prompts(1, 10)])
    time.now += 20
    admission.give_back(0, 1)
    assert admission.retry_after(0, 900) == MAX_RETRY_S


def test_the_sums_are_exact_over_random_moves() -> None:
    rng, (admission, time) = Random(3), queue(completions=50, tokens=2000)
    held: list[tuple[int, int]] = []  # completions and tokens
    refused = outgrown = 0
    for _ in range(5000):
        time.now += rng.random()
        if rng.random() < 0.55:
            costs = [
                Cost(rng.randint(1, 4), rng.randint(1, 150), rng.randint(0, 50))
                for _ in range(rng.randint(1, 3))
            ]
            full = admission.tokens >= 2000
            try:
                admission.take(costs)
                assert not full
                held += [(cost.completions, cost.tokens) for cost in costs]
            except Overloaded as error:
                assert error.retry_after_s is not None
                assert MIN_RETRY_S <= error.retry_after_s <= MAX_RETRY_S
                refused += 1
        elif held and rng.random() < 0.3:
            completions, tokens = held.pop(rng.randrange(len(held)))
            admission.charge(64)
            held.append((completions, tokens + 64))
            outgrown += admission.tokens > 2000
        elif held:
            admission.give_back(*held.pop(rng.randrange(len(held))))
        assert admission.completions == sum(completions for completions, _ in held) <= 50
        assert admission.tokens == sum(tokens for _, tokens in held)
        lately = admission._drained
        assert admission._done == (sum(one[1] for one in lately), sum(one[2] for one in lately))
    assert refused > 100 and outgrown > 10


def test_defaults_come_from_the_model() -> None:
    facts = ModelFacts("m", 10, 1024, block_size=32, num_kv_blocks=2048)
    assert longest_sequence(facts) == 1024
    assert default_max_tokens(facts) == CACHE_FILLS * 65_536
    assert default_max_tokens(ModelFacts("m", 10, 1024, block_size=8, num_kv_blocks=64)) == MIN_QUEUE_TOKENS
    stream = ModelFacts("m", 10, None, block_size=32, num_kv_blocks=64)
    assert longest_sequence(stream) == 2048
