"""Drives a real engine over the fake executor, and compares all of its outputs with the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.core.engine import Engine
from headrace.core.policy import SchedulerConfig
from headrace.core.request import Request
from headrace.core.step_budget import StepBudget
from headrace.core.types import (
    FinishReason,
    KVGroupSpec,
    NewRequest,
    Output,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from tests.core.checks import (
    Broken,
    check_cache,
    check_pins,
    check_plan,
    check_pools,
    check_queues,
    unfinished,
)
from tests.core.fake_executor import FakeExecutor
from tests.core.oracle import Oracle, Sampling, pooled, score

IN_STEP = "abort in a step"


@dataclass(frozen=True)
class Setup:
    """Everything that an engine is built from. `draft` and `tree` as in FakeExecutor."""

    config: SchedulerConfig
    groups: tuple[KVGroupSpec, ...]
    prefix_caching: bool = True
    draft: Callable[[int], tuple[int, int]] = lambda length: (0, 0)
    tree: Callable[[int], bool] = lambda length: False
    step_budget: StepBudget | None = None


@dataclass
class Track:
    """The state of one completion as seen by its caller."""

    number: int
    new: NewRequest
    oracle: Oracle
    tokens: list[int] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    pooled: list[bytes] = field(default_factory=list)
    reason: FinishReason | None = None
    expected_end: FinishReason | None = None  # set by an abort, a deadline or a planted error
    arrival: float = 0.0


class Driver:
    """`add`, `step`, `abort`, `advance`, then `drain`; every call counts as an operation and ends with all checks."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.engine = Engine(
            setup.config, setup.groups, prefix_caching=setup.prefix_caching, step_budget=setup.step_budget
        )
        self.executor = FakeExecutor(
            setup.groups, setup.config.vocab_size, tenant_of=lambda number: self._numbered[number].new.cache_salt,
            draft=setup.draft, recompute=not setup.config.kv_cache, tree=setup.tree,
        )  # fmt: skip
        self.now = 0.0
        self.operations = 0
        self.tracks: dict[tuple[str, int], Track] = {}
        self.events: Counter[str] = Counter()
        self._numbered: list[Track] = []  # the engine counts sequences from 0
        self._learned: dict[int, int] = {}  # sequence -> how many of its block keys are in _contents
        self._contents: dict[bytes, list[tuple[int, int]]] = {}  # block key -> cells that it stands for

    def add(self, new: NewRequest) -> list[Track]:
        self.engine.add(new, self.now)
        prompt = Oracle(self.setup.groups, new.cache_salt, new.prompt)
        tracks = [
            Track(len(self._numbered) + index, new, prompt.fork(), arrival=self.now)
            for index in range(new.params.n)
        ]
        self._numbered += tracks
        self.tracks.update(((new.request_id, index), track) for index, track in enumerate(tracks))
        self.check()
        return tracks

    def abort(self, name: str, index: int | None = None) -> None:
        for request in unfinished(self.engine):
            if request.name == name and index in (None, request.index):
                self.tracks[name, request.index].expected_end = FinishReason.ABORT
                self.events[f"abort {request.status.value}"] += 1
        self.engine.abort(name, self.now, index)
        self.check()

    def fail(self, number: int) -> None:
        """Make the executor fail this sequence's next slice."""
        self.executor.failing.add(number)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.check()

    def step(self, before: Callable[[], object] = int, after: Callable[[], object] = int) -> StepPlan:
        """One step; `before` and `after` run between begin and finish, on either side of the execution."""
        ran, preempted = set(self.engine.scheduler.running), self.engine.stats().scheduler.preemptions
        expiring = self._expiring()
        plan = self.engine.begin(self.now)
        left = {request.number for request in unfinished(self.engine)}
        for track, status in expiring:
            track.expected_end = FinishReason.TIMEOUT
            self.events[f"expired {status}"] += 1
            if track.number in left:
                raise Broken(f"deadlines: {track.number} is still there")
        self.check()  # expired requests have freed their blocks before the step runs
        check_plan(self.engine, plan)
        check_pins(self.engine.scheduler.kv, self.now)
        self.events["shared in a step"] += len(self.engine.scheduler.kv.step._sources)
        newcomers = set(self.engine.scheduler.running) - ran
        if newcomers and self.engine.stats().scheduler.preemptions > preempted:
            raise Broken("queues: a request joins in a step that preempts")
        running = tuple(self.engine.scheduler.running)
        tables = {
            (r.number, group): (list(table.live), table.dropped)
            for r in running
            for group, table in enumerate(r.tables)
        }
        aborted = self._aborts()
        before()
        result = StepResult(plan.step_id) if plan.empty else self.executor.execute(plan)
        for work in plan.slices:
            for group, mirror in enumerate(self.executor.sequences[work.request_id].tables):
                if self.setup.groups[group].is_state:
                    continue
                self.events["dropped blocks"] += mirror.dropped > 0
                if (mirror.live, mirror.dropped) != tables[work.request_id, group]:
                    raise Broken(f"table: {mirror}, but the core holds {tables[work.request_id, group]}")
        after()
        self.events[IN_STEP] += self._aborts() - aborted
        failed = {part.request_id for part in result.results if part.error is not None}
        for track in self.tracks.values():
            if track.number in failed and track.expected_end is None:
                track.expected_end = FinishReason.ERROR
        retried = self.engine.stats().scheduler.retried_slices
        for output in self.engine.finish(result, self.now):
            self._take(output)
        for track in self.tracks.values():
            if (
                track.number in failed and track.reason is None
            ):  # its slice read blocks of a slice that failed
                track.expected_end = None
                if self.engine.stats().scheduler.retried_slices == retried:
                    raise Broken(f"outputs: {track.number} failed and continues")
        self._learn_keys(running)  # those that end here, too
        self.check()
        usage, pools = self.engine.kv_usage(), self.engine.scheduler.kv.pools
        if usage.held_blocks != sum(pool.num_blocks - pool.num_free for pool in pools):
            raise Broken(f"usage: {usage}")
        self._count(plan)
        return plan

    def drain(self) -> None:
        """Run until every request has ended, in one step per token and half as many again for preemptions."""
        unlimited = self.engine.scheduler.limit or 2**31
        lengths = [
            min(unlimited, request.num_prompt + _or(request.params.max_tokens, unlimited))
            for request in unfinished(self.engine)
        ]
        again = 1 if self.setup.config.kv_cache else max(lengths, default=0)
        most_steps = 10 + 3 * sum(lengths) * again // 2
        for _ in range(most_steps):
            if not self.engine.has_work:
                break
            plan = self.step()
            if plan.empty and plan.wait_until is not None:
                self.now = max(self.now, plan.wait_until)
        open_tracks = [key for key, track in self.tracks.items() if track.reason is None]
        if open_tracks or self.engine.has_work:
            raise Broken(f"starved: {open_tracks} have not ended after {most_steps} steps")
        pools = self.engine.scheduler.kv.pools
        if any(pool.num_free != pool.num_blocks for pool in pools) or self.executor.sequences:
            raise Broken("leak: blocks or sequences are left over")
        if self.engine.scheduler.service._active:
            raise Broken("leak: users are counted as active")

    def check(self) -> None:
        self.operations += 1
        kv = self.engine.scheduler.kv
        check_pools(kv, unfinished(self.engine))
        check_queues(self.engine)
        self._learn_keys(unfinished(self.engine))
        check_cache(kv, self._holds)

    def _take(self, output: Output) -> None:
        """Compare one output with the oracle's next tokens."""
        key = (output.request_id, output.index)
        track = self.tracks[key]
        if track.reason is not None:
            raise Broken(f"outputs: {key} had ended")
        sampling = self.executor.samplings.get(track.number)
        params = track.new.params
        has_stats = output.finish_reason is not None or bool(output.tokens and not track.tokens)
        if (output.stats is not None) is not has_stats:
            raise Broken(f"outputs: {key} has stats {output.stats} after {len(track.tokens)} tokens")
        if output.tokens and params.logprobs is not None and len(output.logprobs) != len(output.tokens):
            raise Broken(f"logprobs: {len(output.logprobs)} for {len(output.tokens)} tokens")
        for at, token in enumerate(output.tokens):
            if self._expected_reason(track, sampling) is not None:
                raise Broken(f"outputs: {key} should have ended before")
            state = track.oracle.states[-1]
            expected = sampling.choose(state, len(track.tokens))
            if token != expected:
                raise Broken(f"tokens: {key} gave {token} at {len(track.tokens)}, the oracle {expected}")
            if params.logprobs is not None and output.logprobs[at] != score(state, token):
                raise Broken(f"logprobs: {key} at {len(track.tokens)}")
            track.tokens.append(token)
            track.oracle.push(token)
        track.prompt_logprobs += output.prompt_logprobs
        if output.pooled is not None:
            track.pooled.append(output.pooled)
        track.reason = output.finish_reason
        self.events["errors"] += track.reason is FinishReason.ERROR
        if track.reason is not None:
            self._check_end(key, track, output, sampling)
        elif self._expected_reason(track, sampling) is not None:
            raise Broken(f"outputs: {key} should have ended")

    def _check_end(
        self, key: tuple[str, int], track: Track, output: Output, sampling: Sampling | None
    ) -> None:
        expected = track.expected_end or self._expected_reason(track, sampling)
        stats = output.stats
        if track.reason is not expected:
            raise Broken(f"outputs: {key} ended with {track.reason}, not {expected}")
        if stats is None or stats.num_output != len(track.tokens) or stats.num_accepted > stats.num_drafted:
            raise Broken(f"outputs: {key} has stats {stats} for {len(track.tokens)} tokens")
        if output.stop_token != (track.tokens[-1] if expected is FinishReason.STOP else None):
            raise Broken(f"outputs: {key} names stop token {output.stop_token}")
        if (output.error is not None) != (expected in (FinishReason.ERROR, FinishReason.TIMEOUT)):
            raise Broken(f"outputs: {key} has error {output.error}")
        prompt = track.new.prompt
        required = [score(track.oracle.states[p], prompt[p + 1]) for p in range(len(prompt) - 1)]
        complete = required if track.new.params.prompt_logprobs is not None else []
        if track.expected_end is not None:
            complete = complete[: len(track.prompt_logprobs)]
        kind = track.new.pooling
        vectors = [] if kind is None else [pooled(kind, track.oracle.states)]
        if track.pooled != (vectors if track.expected_end is None else []):
            raise Broken(f"embedding: {key} gave {track.pooled}, not {vectors}")
        self.events["embeddings"] += len(track.pooled)
        if track.prompt_logprobs != complete:
            raise Broken(f"prompt logprobs: {key} gave {track.prompt_logprobs}, not {complete}")

    def _expected_reason(self, track: Track, sampling: Sampling | None) -> FinishReason | None:
        """The finish reason that follows from the completion's tokens so far."""
        if not track.new.params.samples:
            held = self.executor.sequences.get(track.number)
            done = held is not None and held.computed >= len(track.new.prompt)
            return FinishReason.LENGTH if done else None
        if not track.tokens or sampling is None:
            return None
        params, tokens = track.new.params, track.tokens
        if tokens[-1] in sampling.stop_ids and len(tokens) > params.min_tokens:
            return FinishReason.STOP
        limit = self.engine.scheduler.limit
        full = limit is not None and len(track.new.prompt) + len(tokens) >= limit
        at_most = params.max_tokens is not None and len(tokens) >= params.max_tokens
        return FinishReason.LENGTH if full or at_most else None

    def _learn_keys(self, requests: Iterable[Request]) -> None:
        size = self.engine.scheduler.kv.block_size
        for request in requests:
            keys = request.keys.keys
            for index in range(self._learned.get(request.number, 0), len(keys)):
                states = self._numbered[request.number].oracle.states
                cells = [(at, states[at]) for at in range(index * size, (index + 1) * size)]
                self._contents.setdefault(keys[index], cells)
            self._learned[request.number] = len(keys)

    def _holds(self, key: bytes, group: int, block: int) -> bool:
        store = self.executor.store[group]
        if self.setup.groups[group].is_state:
            return store.get((block, 0)) == self._contents[key][-1]
        cells = self._contents[key]
        return [store.get((block, at)) for at in range(len(cells))] == cells

    def _expiring(self) -> list[tuple[Track, str]]:
        """Completions that must expire at the next plan, from their arrival and the executed steps."""
        found = []
        for request in unfinished(self.engine):
            track = self._numbered[request.number]
            first = self.tracks[track.new.request_id, 0]
            started = {track.number, first.number} & self.executor.samplings.keys()
            limits = [track.new.timeout_s, None if started else track.new.queue_timeout_s]
            if any(limit is not None and track.arrival + limit <= self.now for limit in limits):
                found.append((track, request.status.value))
        return found

    def _aborts(self) -> int:
        return sum(
            count for name, count in self.events.items() if name.startswith("abort ") and name != IN_STEP
        )

    def _count(self, plan: StepPlan) -> None:
        stats = self.engine.stats()
        scheduler, cache = stats.scheduler, stats.cache
        counts = {
            "steps": scheduler.steps, "preemptions": scheduler.preemptions, "forks": scheduler.forks,
            "copies": scheduler.block_copies, "accepted": self.executor.accepted,
            "rejected": self.executor.rejected, "side paths": self.executor.side_paths,
            "hits": cache.hits if cache else 0,
            "evictions": cache.evictions if cache else 0, "retried": scheduler.retried_slices,
            "pins": cache.pins if cache else 0, "broken pins": cache.pins_broken if cache else 0,
        }  # fmt: skip
        self.events.update({"waits": int(plan.empty and plan.wait_until is not None)})
        for name, count in counts.items():
            self.events[name] = count


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
