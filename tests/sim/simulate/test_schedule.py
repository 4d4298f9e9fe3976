"""The simulation makes the plans that an engine with a real model makes: the same ones, step by step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.bench.measure import run_workload
from headrace.bench.workload import Arrival
from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.core.engine import Engine
from headrace.core.executor import Executor
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, NewSequence, StepPlan, StepResult
from headrace.sim.simulate.executor import SyntheticTokens
from headrace.sim.simulate.requests import Ask
from headrace.sim.simulate.router import RoundRobin
from headrace.sim.simulate.run import Simulation
from headrace.sim.simulate.tally import Tally
from headrace.sim.workload.sessions import Lengths, Workload
from tests.sim.simulate.harness import Recording, asks, plan_hash

TICK = 2.0**-30  # times are rounded to whole ones, so that their sums are exact


@dataclass
class Record:
    """What an engine and its executor did: plans, when each began, when requests were added, what was sampled."""

    plans: list[StepPlan] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    added: dict[str, float] = field(default_factory=dict)
    sampled: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  # by position
    drafts: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    accepted: int = 0
    rejected: int = 0


class Watched(Engine):
    """An engine that notes times."""

    record: Record
    pending: list[str]

    def add(self, new: NewRequest, now: float) -> None:
        super().add(new, now)
        self.pending.append(new.key)

    def begin(self, now: float) -> StepPlan:
        now = round(now / TICK) * TICK
        self.record.added.update(dict.fromkeys(self.pending, now))
        self.pending.clear()
        plan = super().begin(now)
        if plan.slices:
            self.record.begun.append(now)
        return plan


@dataclass
class Noting:
    """Passes plans on to a real executor."""

    executor: Executor
    record: Record

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.executor.execute(plan)
        record = self.record
        record.plans.append(plan)
        results = {part.request_id: part for part in result.results}
        for work in plan.slices:
            part, number = results[work.request_id], work.request_id
            assert part.error is None
            end = work.start + work.known
            record.sampled[number].update(enumerate(part.tokens, end))
            record.drafts[number, end + len(part.tokens)] = part.draft
            record.accepted += max(0, len(part.tokens) - 1)
            record.rejected += work.num_draft - max(0, len(part.tokens) - 1)
        return result


class Replayed:
    """Samples and drafts what was sampled and drafted before; satisfies `TokenSource`."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def start(self, number: int, new: NewSequence) -> None: ...

    def release(self, number: int) -> None: ...

    def tokens(self, number: int, length: int, count: int) -> Sequence[int]:
        known = self.record.sampled[number]
        return [known[at] for at in range(length, length + count) if at in known]

    def draft(self, number: int, length: int, room: int) -> tuple[int, ...]:
        return self.record.drafts.get((number, length), ())


@dataclass
class Listed:
    """Requests from a list; satisfies `Asks`."""

    asks: list[Ask]

    def first(self) -> Iterator[Ask]:
        yield from self.asks

    def after(self, ask: Ask, now: float) -> Ask | None:
        return None


class RecordedTimes:
    """The time from the start of each step to that of the next."""

    def __init__(self, begun: Sequence[float]) -> None:
        self._times = iter(
            [end - begin for begin, end in zip(begun, [*begun[1:], begun[-1] + 1.0], strict=True)]
        )

    def plan_s(self, plan: StepPlan) -> float:
        return next(self._times)

    def steady_s(self, batch: int, keys: int, steps: int) -> Sequence[float]:
        raise NotImplementedError("steps were recorded one by one")


def serve(parts: EngineParts, requests: Sequence[Ask]) -> Record:
    """Serve the requests, one more of them at every second step: which of them meet does not depend on the machine."""
    record, engine = Record(), new_engine(parts, Watched)
    engine.record, engine.pending = record, []
    executor, queue, steps = Noting(parts.executor, record), list(requests), 0
    while queue or engine.has_work:
        now = time.monotonic()
        if queue and (steps % 2 == 0 or not engine.has_work):
            engine.add(request(queue.pop(0)), now)
        plan = engine.begin(now)
        engine.finish(executor.execute(plan), time.monotonic())
        steps += 1
    return record


def serve_in_real_time(parts: EngineParts, requests: Sequence[Ask]) -> Record:
    """Serve the requests at their times with `bench.measure.run_workload`."""
    record, engine = Record(), new_engine(parts, Watched)
    engine.record, engine.pending = record, []
    run_workload(
        engine, Noting(parts.executor, record), [Arrival(ask.arrival_s, request(ask)) for ask in requests]
    )
    return record


def new_engine(parts: EngineParts, kind: type[Any] = Engine) -> Any:
    resolved = parts.resolved
    return kind(parts.engine.config, resolved.kv_groups, prefix_caching=resolved.enable_prefix_caching)


def request(ask: Ask) -> NewRequest:
    params = SamplingParams(temperature=0.0, max_tokens=ask.output_tokens, ignore_eos=True)
    return NewRequest(ask.key, ask.prompt, params, user=ask.user)


def run_simulated(parts: EngineParts, requests: Sequence[Ask], record: Record, source: Any) -> list[StepPlan]:
    """The same requests, as they came in, with these tokens and recorded times as the clock."""
    executors: list[Recording] = []

    def make_engine() -> tuple[Engine, Recording]:
        executors.append(Recording(source))
        return new_engine(parts), executors[-1]

    by_key = {ask.key: ask for ask in requests}
    listed = [replace(by_key[key], arrival_s=added) for key, added in record.added.items()]
    Simulation(
        Listed(listed), make_engine, RecordedTimes(record.begun), Tally(), RoundRobin(), skipping=False
    ).run()
    return executors[0].plans


SHORT = Workload(Lengths(40, 0.7, 2, 90), Lengths(12, 0.8, 1, 30), prefixes=2, prefix_tokens=40)
SETTINGS: dict[str, dict[str, Any]] = {
    "prefix": {},
    "no prefix": {"enable_prefix_caching": False},
    "preemption": {"num_kv_blocks": 30, "block_size": 8, "max_model_len": 200},
    "chunks": {"max_num_batched_tokens": 16, "max_num_seqs": 6},
    "whole prompts": {"enable_chunked_prefill": False},
    "fair": {"scheduling_policy": "fair", "max_num_seqs": 3, "max_num_batched_tokens": 32},
    "static": {"batching": "static", "batch_size": 4},
    "drafts": {"speculative": "ngram", "num_speculative_tokens": 3, "adaptive_speculation": False},
    "evicted tokens": {
        "kv_eviction": "snapkv", "kv_eviction_budget": 48, "kv_eviction_interval": 16, "kv_eviction_window": 8,
        "num_kv_blocks": 60, "block_size": 8, "max_model_len": 256,
    },
    "all": {
        "num_kv_blocks": 51, "block_size": 4, "max_model_len": 200, "max_num_batched_tokens": 24, "max_num_seqs": 6,
        "scheduling_policy": "fair", "speculative": "ngram", "num_speculative_tokens": 4, "adaptive_speculation": False,
    },
}  # fmt: skip
USUAL = ("all",)


def prepared(count: int, **options: Any) -> tuple[EngineParts, list[Ask]]:
    parts = assemble(
        EngineConfig("tale", **({"dtype": "float32", "num_threads": 1, "max_model_len": 512} | options))
    )
    made = asks(count, workload=SHORT, rate=120.0, users=3)
    made.vocab_size = parts.spec.vocab_size
    return parts, list(made.first())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in SETTINGS]
)
def test_plans_are_those_of_the_real_engine(name: str) -> None:
    """Steps take what they take, and the simulation is told how long that was."""
    options = SETTINGS[name]
    parts, requests = prepared(24, **options)
    record = serve(parts, requests)
    real = [plan for plan in record.plans if plan.slices]

    replayed = run_simulated(parts, requests, record, Replayed(record))
    assert plan_hash(replayed) == plan_hash(record.plans)
    if "speculative" not in options:
        made_up = run_simulated(parts, requests, record, SyntheticTokens(parts.spec.vocab_size))
        assert plan_hash(made_up, tokens=False) == plan_hash(record.plans, tokens=False)
        assert plan_hash(made_up) != plan_hash(record.plans)  # the hash sees tokens

    hits = sum(work.start for plan in real for work in plan.slices if work.new is not None)
    again = sum(
        len(work.new.tokens) > work.new.num_prompt for plan in real for work in plan.slices if work.new
    )
    split = sum(not work.sample for plan in real for work in plan.slices)
    assert max(len(plan.slices) for plan in real) > 1
    assert name != "prefix" or hits > 0
    assert name not in ("preemption", "all") or again > 0
    assert name not in ("chunks", "all") or split > 0
    evicted = max(work.evicted for plan in real for work in plan.slices)
    assert (evicted > 0) == ("kv_eviction" in options)
    assert "speculative" not in options or (record.accepted > 0 and record.rejected > 0)


def test_plans_are_those_of_a_run_in_real_time() -> None:
    parts, requests = prepared(12)
    record = serve_in_real_time(parts, requests)
    assert plan_hash(run_simulated(parts, requests, record, Replayed(record))) == plan_hash(record.plans)


def test_a_step_that_takes_longer_changes_the_plans() -> None:
    """They are equal because the simulation heeds the clock."""
    parts, requests = prepared(12)
    record = serve(parts, requests)
    same = plan_hash(run_simulated(parts, requests, record, Replayed(record)))
    record.begun[4:] = [begun + 100.0 for begun in record.begun[4:]]
    assert (
        same == plan_hash(record.plans) != plan_hash(run_simulated(parts, requests, record, Replayed(record)))
    )
