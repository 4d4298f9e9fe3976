"""Prompts beside sequences that decode get what a step budget allows, and all tokens stay what they are."""

from __future__ import annotations

from random import Random

import pytest

from headrace.core.step_budget import StepLoad
from headrace.core.types import StepPlan
from tests.core.build import driver, full, granted, new, state, window


class Fixed:
    """Allows a number of tokens, and records what it is asked and shown."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.loads: list[StepLoad] = []
        self.seconds: list[float] = []

    def tokens(self, load: StepLoad) -> int:
        self.loads.append(load)
        return self.allowed

    def observe(self, plan: StepPlan, seconds: float) -> None:
        assert plan.slices
        self.seconds.append(seconds)


class Wild(Fixed):
    """Allows any number, sensible or not."""

    def __init__(self, seed: int) -> None:
        super().__init__(0)
        self.rng = Random(seed)

    def tokens(self, load: StepLoad) -> int:
        self.allowed = self.rng.choice((-5, 0, 1, 2, 3, 7, 10**6))
        return super().tokens(load)


def test_prompts_get_what_the_budget_allows_while_others_decode() -> None:
    budget = Fixed(6)
    engine = driver(step_budget=budget)
    engine.add(new("a", 10, max_tokens=20))
    assert granted(engine, engine.step()) == {"a": 10}  # nobody decodes: as many as fit
    assert not budget.loads
    engine.step()
    assert not budget.loads  # no prompt is pending
    engine.add(new("b", 15, max_tokens=20))
    engine.add(new("c", 4, max_tokens=20))
    assert granted(engine, engine.step()) == {"a": 1, "b": 6}
    assert budget.loads[-1] == StepLoad(decoding=1, rows=1, keys=12, prompts=2)
    assert granted(engine, engine.step()) == {"a": 1, "b": 6}
    assert granted(engine, engine.step()) == {"a": 1, "b": 3, "c": 3}  # two prompts share the allowance
    assert granted(engine, engine.step()) == {"a": 1, "b": 1, "c": 1}
    assert budget.loads[-1] == StepLoad(decoding=2, rows=2, keys=31, prompts=1)
    engine.drain()


@pytest.mark.parametrize("allowed", [-3, 0, 1])
def test_a_prompt_always_makes_progress(allowed: int) -> None:
    engine = driver(step_budget=Fixed(allowed))
    engine.add(new("a", 5, max_tokens=40))
    engine.step()
    engine.add(new("b", 8, max_tokens=2))
    for _ in range(8):
        assert granted(engine, engine.step()) == {"a": 1, "b": 1}
    assert granted(engine, engine.step()) == {"a": 1, "b": 1}
    assert engine.tracks["b", 0].reason is not None


def test_waiting_requests_without_a_place_are_not_pending() -> None:
    budget = Fixed(4)
    engine = driver(step_budget=budget, max_num_seqs=2)
    engine.add(new("a", 5, max_tokens=30))
    engine.step()
    for name in "bcd":
        engine.add(new(name, 8, max_tokens=3))
    engine.step()
    assert budget.loads[-1].prompts == 1
    engine.drain()


def test_a_sequence_that_is_recomputed_is_a_prompt() -> None:
    budget = Fixed(3)
    engine = driver(full(10, 4), step_budget=budget, caching=False)
    engine.add(new("a", 16, max_tokens=20))
    engine.add(new("b", 16, max_tokens=20))
    engine.drain()
    assert engine.engine.stats().scheduler.preemptions
    assert budget.loads and all(load.decoding == 1 and load.prompts == 1 for load in budget.loads)


def test_without_chunks_the_budget_is_left_out() -> None:
    budget = Fixed(2)
    engine = driver(step_budget=budget, chunked_prefill=False)
    engine.add(new("a", 5, max_tokens=10))
    engine.step()
    engine.add(new("b", 20, max_tokens=3))
    assert granted(engine, engine.step()) == {"a": 1, "b": 20}
    engine.drain()
    assert not budget.loads and not budget.seconds


def test_steps_are_timed_from_plan_to_result() -> None:
    budget = Fixed(4)
    engine = driver(step_budget=budget)
    engine.add(new("a", 5, max_tokens=2))
    engine.step(before=lambda: engine.advance(0.25))
    engine.step(before=lambda: engine.advance(0.5))
    assert budget.seconds == [0.25, 0.5]


@pytest.mark.parametrize(
    ("groups", "options"),
    [
        ((full(24),), {}),
        ((full(14),), {"caching": False}),  # preempts
        ((full(24), window(8, 24)), {"draft": (3, 2)}),
        ((full(24), state(20)), {}),
    ],
)
def test_any_budget_gives_the_tokens_of_the_oracle(groups, options) -> None:  # type: ignore[no-untyped-def]
    """The driver compares every token, table and block."""
    split = 0
    for seed in range(4):
        budget, rng = Wild(seed), Random(seed)
        engine = driver(*groups, step_budget=budget, **options)
        prefix = [rng.randrange(50) for _ in range(9)]
        for number in range(8):
            prompt = [
                *(prefix if number % 2 else ()),
                *(rng.randrange(50) for _ in range(rng.randint(1, 20))),
            ]
            engine.add(new(f"r{number}", prompt, max_tokens=rng.randint(1, 12), n=1 + number % 3 // 2))
            engine.step()
            split += budget.allowed < 8 and bool(budget.loads)
        engine.drain()
    assert split > 4
