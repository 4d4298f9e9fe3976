"""Random moves on random engines: every step keeps every invariant, and every token is the oracle's."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.core.driver import Driver
from tests.core.random_runs import MOVES, SEEDS, RandomRun, draw_setup, random_run

# What must have happened for a run to prove anything.
EVENTS = (
    "preemptions", "evictions", "hits", "forks", "copies", "accepted", "rejected", "waits", "errors", "refused",
    "abort waiting", "abort running", "abort preempted", "abort in a step", "dropped blocks",
    "expired waiting", "expired running", "expired preempted", "embeddings", "shared in a step", "retried",
    "pins", "broken pins", "side paths",
)  # fmt: skip


def run_seeds(seeds: range, moves: int) -> Counter[str]:
    events: Counter[str] = Counter()
    for seed in seeds:
        run = random_run(seed, moves)
        events.update(run.driver.events)
        events["operations"] += run.driver.operations
    return events


def test_seeded_runs() -> None:
    events = run_seeds(SEEDS[10:40], MOVES)
    assert events["operations"] >= 3_000
    assert [name for name in EVENTS if not events[name]] == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_operations(capsys: pytest.CaptureFixture[str]) -> None:
    events = run_seeds(range(10_000, 10_500), 150)
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {count}" for name, count in sorted(events.items())))
    assert events["operations"] >= 100_000
    assert [name for name in EVENTS if events[name] < 20] == []


class EngineMachine(RuleBasedStateMachine):
    """The same moves, chosen and shrunk by hypothesis."""

    events: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.run: RandomRun | None = None
        self.broken = False

    @initialize(rng=st.randoms(use_true_random=False))
    def start(self, rng: Random) -> None:
        self.run = RandomRun(rng, Driver(draw_setup(rng)))

    @rule(rng=st.randoms(use_true_random=False))
    def add(self, rng: Random) -> None:
        self._move(rng, RandomRun.add)

    @rule(rng=st.randoms(use_true_random=False))
    def step(self, rng: Random) -> None:
        self._move(rng, RandomRun.step)

    @rule(rng=st.randoms(use_true_random=False), count=st.integers(2, 12))
    def run_on(self, rng: Random, count: int) -> None:
        for _ in range(count):
            self._move(rng, RandomRun.step)

    @precondition(lambda self: self.run is not None and self.run.driver.engine.has_work)
    @rule(rng=st.randoms(use_true_random=False))
    def abort(self, rng: Random) -> None:
        self._move(rng, RandomRun.abort)

    @rule(rng=st.randoms(use_true_random=False))
    def advance(self, rng: Random) -> None:
        self._move(rng, RandomRun.advance)

    def teardown(self) -> None:
        if self.run is not None and not self.broken:
            self.run.driver.drain()
            EngineMachine.events.update(self.run.driver.events)

    def _move(self, rng: Random, move) -> None:  # type: ignore[no-untyped-def]
        assert self.run is not None
        self.run.rng = rng
        self.broken = True  # unless the move returns
        move(self.run)
        self.broken = False


@pytest.mark.parametrize("examples", [20, pytest.param(200, marks=pytest.mark.long)])
def test_rules_in_any_order(examples: int) -> None:
    EngineMachine.events.clear()
    profile = settings(
        max_examples=examples, stateful_step_count=40, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(EngineMachine, settings=profile)
    # Only what happens often: hypothesis also draws constants that it reads in the modules loaded so far, so that even
    # derandomized runs depend on the tests before. `test_seeded_runs` requires the rest.
    required = ("hits", "evictions", "abort running")
    assert [name for name in required if not EngineMachine.events[name]] == []
