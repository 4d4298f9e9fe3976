"""Steps are counted by the class of their size: up to 1, 2, 4, 8 … tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.core.engine import Engine
from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.scheduler_counts import STEP_SIZES
from headrace.core.types import KVGroupSpec, NewRequest
from headrace.serving.engine.stepper import Stepper
from tests.serving.tiny_engine import VOCAB, TinyExecutor


class Watched(TinyExecutor):
    """Notes how many tokens each step had."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def execute(self, plan):  # type: ignore[no-untyped-def]
        if plan.slices:
            self.sizes.append(sum(len(work.tokens) for work in plan.slices))
        return super().execute(plan)


def size_class(tokens: int) -> int:
    return next(power for power in range(99) if tokens <= 2**power)


@pytest.mark.parametrize("budget", [1, 5, 64])
def test_classes_count_what_the_executor_was_given(budget: int) -> None:
    config = SchedulerConfig(16, budget, 512, VOCAB)
    engine, executor = Engine(config, [KVGroupSpec("full", 256, 8)]), Watched()
    stepper = Stepper(engine, executor, lambda: 0.0)
    for number in range(7):
        engine.add(
            NewRequest(f"r{number}", tuple(range(1, 3 + 9 * number)), SamplingParams(max_tokens=4)), 0.0
        )
    while engine.has_work:
        stepper.step()
    stats = engine.stats().scheduler
    assert len(stats.step_sizes) == STEP_SIZES
    seen = Counter(size_class(size) for size in executor.sizes)
    assert {power: count for power, count in enumerate(stats.step_sizes) if count} == seen
    assert stats.steps == len(executor.sizes) and stats.scheduled_tokens == sum(executor.sizes)


def test_a_snapshot_does_not_change_with_the_engine() -> None:
    engine = Engine(SchedulerConfig(16, 64, 512, VOCAB), [KVGroupSpec("full", 256, 8)])
    stepper = Stepper(engine, TinyExecutor(), lambda: 0.0)
    engine.add(NewRequest("r", (1, 2, 3), SamplingParams(max_tokens=4)), 0.0)
    before = engine.stats().scheduler
    while engine.has_work:
        stepper.step()
    assert sum(before.step_sizes) == 0 < sum(engine.stats().scheduler.step_sizes)
