"""Runs a workload on an engine and measures it from outside the core."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.bench.workload import Arrival
from headrace.core.engine import Engine
from headrace.core.executor import Executor
from headrace.core.types import Output, RequestStats
from headrace.errors import HeadraceError
from headrace.sim.work import StepShape, step_shape

KV_SAMPLE_EVERY = 4  # steps between two samples of the KV occupancy, because a sample costs time


@dataclass(frozen=True, slots=True)
class Step:
    """One step that ran: when it began and ended, in seconds after the start, its shape, and its new tokens."""

    begin_s: float
    end_s: float
    shape: StepShape
    tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Times in seconds, memory in tokens of KV. TTFT counts from arrival; TPOT is the mean gap between the output
    tokens of one request, ITL every single gap. KV figures are means over the run."""

    wall_s: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    itl_s: tuple[float, ...]
    e2e_s: tuple[float, ...]
    steps: tuple[Step, ...]
    decode_from: int  # the first step in which every request had a token before
    kv_reserved: float
    kv_used: float
    hit_rate: float  # prompt tokens taken from the prefix cache
    preemptions: int
    ttft_by_request: Mapping[str, float]

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.wall_s

    @property
    def total_rate(self) -> float:
        """Prompt and output tokens a second."""
        return (self.prompt_tokens + self.output_tokens) / self.wall_s

    @property
    def mean_batch(self) -> float:
        """Sequences a step."""
        return sum(len(step.shape) for step in self.steps) / max(1, len(self.steps))

    @property
    def prefill_steps(self) -> tuple[Step, ...]:
        """Steps up to the last first token."""
        return self.steps[: self.decode_from]

    @property
    def decode_steps(self) -> tuple[Step, ...]:
        """Steps after every request had its first token: nothing in them is prefill."""
        return self.steps[self.decode_from :]

    @property
    def prefill_s(self) -> float:
        """The start until the last first token."""
        return self.steps[self.decode_from - 1].end_s if self.decode_from else 0.0

    @property
    def decode_s(self) -> float:
        """The last first token until the last token."""
        return self.steps[-1].end_s - self.prefill_s if self.decode_steps else 0.0

    @property
    def decode_tokens(self) -> int:
        """Tokens of the decode steps."""
        return sum(step.tokens for step in self.decode_steps)


@dataclass(slots=True)
class _Tally:
    done: list[RequestStats] = field(default_factory=list)
    ttft_s: dict[str, float] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    decode_from: int = 0
    last_token_s: dict[tuple[str, int], float] = field(default_factory=dict)
    gaps: list[float] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)

    def take(self, outputs: Sequence[Output], now: float) -> int:
        """Record the outputs of one step; returns how many tokens are new. Raises HeadraceError if a request failed."""
        tokens = 0
        for output in outputs:
            if output.error is not None:
                raise HeadraceError(f"request {output.request_id} failed: {output.error}")
            if output.finish_reason is not None and output.stats is not None:
                self.done.append(output.stats)
                if output.stats.first_token_s is not None:
                    self.ttft_s[output.request_id] = output.stats.first_token_s - output.stats.arrival_s
            if output.tokens:
                tokens += len(output.tokens)
                self._gap((output.request_id, output.index), len(output.tokens), now)
        return tokens

    def _gap(self, name: tuple[str, int], count: int, now: float) -> None:
        before = self.last_token_s.get(name)
        if before is None:
            self.decode_from = len(self.steps) + 1
        else:  # tokens of one step arrive together: one gap, then gaps of zero
            self.gaps += [now - before] + [0.0] * (count - 1)
        self.last_token_s[name] = now


def run_workload(
    engine: Engine,
    executor: Executor,
    arrivals: Sequence[Arrival],
    on_token: Callable[[int], None] | None = None,
    *,
    samples_kv: bool = True,
) -> Measured:
    """Send every request at its time, run the engine until all have ended, and measure.

    `on_token` is called with the number of output tokens of each step. Without `samples_kv` there are no figures of KV:
    sampling them takes time for each KV group. Raises HeadraceError if a request fails.
    """
    tally = _Tally()
    queue = sorted(arrivals, key=lambda arrival: arrival.at_s)
    begin = time.monotonic()
    sent = 0
    while sent < len(queue) or engine.has_work:
        now = time.monotonic()
        while sent < len(queue) and begin + queue[sent].at_s <= now:
            engine.add(queue[sent].request, begin + queue[sent].at_s)
            sent += 1
        plan = engine.begin(now)
        if plan.empty:
            engine.finish(executor.execute(plan), now)
            next_arrival = begin + queue[sent].at_s if sent < len(queue) else float("inf")
            _sleep_until(min(next_arrival, plan.wait_until or float("inf")))
            continue
        if samples_kv and plan.step_id % KV_SAMPLE_EVERY == 0:
            _sample_kv(engine, tally)
        outputs = engine.finish(executor.execute(plan), time.monotonic())
        after = time.monotonic()
        tokens = tally.take(outputs, after)
        if plan.slices:
            tally.steps.append(Step(now - begin, after - begin, step_shape(plan), tokens))
        if on_token is not None:
            on_token(tokens)
    return _summary(tally, time.monotonic() - begin)


def _sample_kv(engine: Engine, tally: _Tally) -> None:
    usage = engine.kv_usage()
    tally.reserved.append(usage.reserved_tokens)
    tally.used.append(usage.used_tokens)


def _sleep_until(when: float) -> None:
    if when != float("inf"):
        time.sleep(max(0.0, when - time.monotonic()))


def _summary(tally: _Tally, wall_s: float) -> Measured:
    done = tally.done
    prompt = sum(stats.num_prompt for stats in done)
    return Measured(
        wall_s=wall_s,
        requests=len(done),
        prompt_tokens=prompt,
        output_tokens=sum(stats.num_output for stats in done),
        ttft_s=tuple(s.first_token_s - s.arrival_s for s in done if s.first_token_s is not None),
        tpot_s=tuple(tpot for s in done if (tpot := time_per_output_token(s)) is not None),
        itl_s=tuple(tally.gaps),
        e2e_s=tuple(s.finished_s - s.arrival_s for s in done if s.finished_s is not None),
        steps=tuple(tally.steps),
        decode_from=tally.decode_from,
        kv_reserved=_mean(tally.reserved),
        kv_used=_mean(tally.used),
        hit_rate=sum(stats.num_cached for stats in done) / max(1, prompt),
        preemptions=sum(stats.num_preemptions for stats in done),
        ttft_by_request=tally.ttft_s,
    )


def time_per_output_token(stats: RequestStats) -> float | None:
    """Mean seconds between output tokens, None with fewer than two."""
    if stats.first_token_s is None or stats.last_token_s is None or stats.num_output < 2:
        return None
    return (stats.last_token_s - stats.first_token_s) / (stats.num_output - 1)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
