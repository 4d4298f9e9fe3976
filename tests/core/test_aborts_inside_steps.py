"""Aborts that arrive inside a method of the engine, as from a finalizer that the garbage collector runs there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from headrace.core.engine import Engine
from headrace.core.params import SamplingParams
from headrace.core.policy import Order, SchedulerConfig
from headrace.core.types import FinishReason, KVGroupSpec, NewRequest, Output, StepResult
from tests.core.checks import check_pools, check_queues, unfinished
from tests.core.fake_executor import FakeExecutor
from tests.random_lines import RandomLines

CORE = "/headrace/core/"
VOCAB = 7
GROUP = KVGroupSpec("full", num_blocks=12, block_size=2)  # too few for all: preemptions happen
STAYING, LEAVING = ("a", "b", "c"), ("x", "y", "z")


def requests() -> list[NewRequest]:
    params = SamplingParams(max_tokens=6, ignore_eos=True, n=2, seed=1)
    return [
        NewRequest(name, (1, 2, 3, at), params, priority=-at)
        for at, name in enumerate((*STAYING, *LEAVING), start=1)
    ]


class Run:
    """All requests on one engine; `leave` aborts one of those that are to leave."""

    def __init__(self, rng: Random, order: Order) -> None:
        config = SchedulerConfig(
            max_num_seqs=6, max_num_batched_tokens=8, max_model_len=16, vocab_size=VOCAB, order=order
        )
        self.engine = Engine(config, [GROUP])
        self.executor = FakeExecutor([GROUP], VOCAB)
        self.outputs: list[Output] = []
        self.left: set[str] = set()
        self._rng = rng

    def leave(self) -> None:
        name = self._rng.choice(LEAVING)
        self.left.add(name)
        self.engine.abort(name, 0.0)

    def whole(self) -> None:
        for new in requests():
            self.engine.add(new, 0.0)
        while self.engine.has_work:
            self.step()

    def step(self) -> None:
        plan = self.engine.begin(0.0)
        result = StepResult(plan.step_id) if plan.empty else self.executor.execute(plan)
        self.outputs += self.engine.finish(result, 0.0)

    def check(self) -> None:
        check_pools(self.engine.scheduler.kv, unfinished(self.engine))
        check_queues(self.engine)

    def tokens(self, names: tuple[str, ...]) -> dict[tuple[str, int], list[int]]:
        return {
            (name, index): [
                token
                for output in self.outputs
                if (output.request_id, output.index) == (name, index)
                for token in output.tokens
            ]
            for name in names
            for index in range(2)
        }


@pytest.mark.parametrize("rounds", [21, pytest.param(90, marks=pytest.mark.long)])
def test_aborts_at_random_lines(rounds: int) -> None:
    """Those who stay get the tokens of a quiet run, nothing leaks, and every completion ends exactly once."""
    rng = Random(22)
    expected: dict[Order, tuple[dict[tuple[str, int], list[int]], int]] = {}
    where: list[str] = []
    reasons: set[FinishReason | None] = set()
    preemptions = 0
    for number in range(rounds):
        order = tuple(Order)[number % len(Order)]
        if number < len(Order):
            quiet = Run(rng, order)
            counted = RandomLines(int, CORE)
            with counted.watch():
                quiet.whole()
            expected[order] = quiet.tokens(STAYING), counted.lines
        tokens, total = expected[order]
        run = Run(rng, order)
        disturbed = RandomLines(run.leave, CORE)
        disturbed.draw(rng, total)
        with disturbed.watch():
            run.whole()
        run.check()
        assert not run.executor.sequences, f"round {number}: sequences are left over"
        assert run.tokens(STAYING) == tokens, f"round {number}"
        ends = [(out.request_id, out.index) for out in run.outputs if out.finish_reason is not None]
        assert len(ends) == len(set(ends)) == 12, f"round {number}: {ends}"
        where += disturbed.where
        preemptions += run.engine.stats().scheduler.preemptions
        reasons |= {out.finish_reason for out in run.outputs if out.request_id in run.left}
    assert {name for name in ("add", "plan", "commit") if any(name in at.split() for at in where)} == {
        "add", "plan", "commit",
    }  # fmt: skip
    assert preemptions and FinishReason.ABORT in reasons


def test_an_abort_inside_finish_is_reported_after_the_tokens_of_that_step() -> None:
    engine = Engine(
        SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8, max_model_len=16, vocab_size=VOCAB), [GROUP]
    )
    executor = FakeExecutor([GROUP], VOCAB)
    engine.add(NewRequest("a", (1, 2), SamplingParams(max_tokens=5, ignore_eos=True)), 0.0)
    plan = engine.begin(0.0)
    result = executor.execute(plan)
    lines = RandomLines(lambda: engine.abort("a", 0.0), "/core/scheduler.py")
    lines.at = 3
    with lines.watch():
        ended_outputs = engine.finish(result, 0.0)
    assert "commit" in lines.where[0].split()
    assert [len(output.tokens) for output in ended_outputs] == [1] and ended_outputs[0].finish_reason is None
    assert engine.has_work
    executor.execute(engine.begin(0.0))
    (end,) = engine.finish(StepResult(2), 0.0)
    assert end.finish_reason is FinishReason.ABORT and end.stats is not None and end.stats.num_output == 1
    assert not engine.has_work and engine.stats().free_blocks == GROUP.num_blocks


def test_a_request_that_ends_after_its_grant_is_not_planned() -> None:
    """Even where it is ended without the engine's abort."""
    planned = Counter[bool]()
    for at in range(200):
        run = Run(Random(0), Order.FCFS)
        first, *rest = (replace(new, params=replace(new.params, n=1)) for new in requests())
        run.engine.add(first, 0.0)
        run.step()
        for new in rest:
            run.engine.add(new, 0.0)
        (granted,) = run.engine.scheduler.running
        end = partial(run.engine.scheduler.end, granted, FinishReason.ABORT, 0.0)
        lines = RandomLines(lambda: admitting(lines) and end(), CORE)  # noqa: B023
        lines.at = at
        with lines.watch():
            plan = run.engine.begin(0.0)
        if admitting(lines):
            planned[any(work.request_id == granted.number for work in plan.slices)] += 1
    assert planned[False] > 20 and not planned[True]


def admitting(lines: RandomLines) -> bool:
    return "_admit_waiting" in lines.where[0].split()
