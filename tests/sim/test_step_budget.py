"""The time budget of steps, on a clock that a formula drives: the real scheduler, no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.build import survey
from headrace.config import EngineConfig
from headrace.core.engine import Engine
from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.step_budget import StepLoad
from headrace.core.types import KVGroupSpec, NewRequest, SliceResult, StepResult
from headrace.sim.online import DECODE, MIXED, OnlineCost, SizeTimes, sums
from headrace.sim.step_budget import LEAST_CHUNK, ROWS, TimeBudget, step_budget

STEP_S, TOKEN_S = 0.010, 0.0014
"""Of a made-up machine: as a model with 135 M parameters on two cores."""


class Line:
    """A cost model in which steps are a straight line over their tokens. `scale`: how wrong it is."""

    def __init__(self, scale: float = 1.0, token_s: float = TOKEN_S) -> None:
        self.scale, self.token_s = scale, token_s

    def step_s(self, shape) -> float:  # type: ignore[no-untyped-def]
        return self.scale * (STEP_S + self.token_s * sum(part.tokens for part in shape))

    def decoding_s(self, batch: int, keys: float) -> float:
        return self.scale * (STEP_S + self.token_s * batch)


def budget(seconds: float | None = None, scale: float = 1.0) -> TimeBudget:
    return TimeBudget(OnlineCost(Line(scale)), 512, seconds)  # type: ignore[arg-type]


class Run:
    """Streams in a closed loop: each sends its next request when the one before has ended."""

    def __init__(
        self, chosen: TimeBudget | None, streams: int, requests: int, prompt: int = 256, uneven: int = 0
    ) -> None:
        self.uneven = uneven
        config = SchedulerConfig(
            max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2048, vocab_size=50
        )
        self.engine = Engine(
            config, [KVGroupSpec("full", 2000, 32)], step_budget=chosen, prefix_caching=False
        )
        self.now, self.sent, self.ended = 0.0, 0, 0
        self.gaps: list[float] = []
        self.steps: list[tuple[int, int, float]] = []  # rows, prompt, seconds
        last: dict[str, float] = {}
        for _ in range(streams):
            self.send(prompt)
        while self.ended < requests:
            plan = self.engine.begin(self.now)
            rows, _, chunk = sums(plan)
            seconds = STEP_S + TOKEN_S * (rows + chunk)
            self.steps.append((rows, chunk, seconds))
            self.now += seconds
            results = tuple(SliceResult(part.request_id, (1,) if part.sample else ()) for part in plan.slices)
            for output in self.engine.finish(StepResult(plan.step_id, results), self.now):
                if output.tokens and output.request_id in last:
                    self.gaps.append(self.now - last[output.request_id])
                last[output.request_id] = self.now
                if output.finish_reason is not None:
                    self.ended += 1
                    if self.sent < requests:
                        self.send(prompt)

    def send(self, prompt: int) -> None:
        params = SamplingParams(max_tokens=64 + self.uneven * (self.sent % 5), ignore_eos=True)
        self.engine.add(NewRequest(f"r{self.sent}", (1,) * prompt, params), self.now)
        self.sent += 1

    def gap(self, share: float) -> float:
        return sorted(self.gaps)[int(share * (len(self.gaps) - 1))]


def test_gaps_become_even_and_throughput_stays() -> None:
    before, after = Run(None, 32, 128), Run(budget(), 32, 128)
    assert before.gap(0.99) > 10 * before.gap(0.5)
    assert after.gap(0.99) < 2.5 * after.gap(0.5)
    assert before.now > 0.95 * after.now


def test_where_few_decode_a_prompt_costs_them_one_more_step() -> None:
    chosen = budget()
    run = Run(chosen, 3, 12, prompt=40, uneven=9)
    mixed = [(rows, seconds) for rows, chunk, seconds in run.steps if rows and chunk]
    assert mixed and chosen.pressure == 0.0
    for rows, seconds in mixed:
        assert seconds <= 2.5 * (STEP_S + TOKEN_S * rows) or seconds <= STEP_S + TOKEN_S * (
            rows + LEAST_CHUNK + ROWS
        )


def test_a_fixed_budget_bounds_every_step_with_streams() -> None:
    run = Run(budget(0.08), 8, 24)
    assert all(seconds <= 0.08 for rows, chunk, seconds in run.steps if rows and chunk)
    assert any(chunk for rows, chunk, _ in run.steps if rows)
    assert max(seconds for _, _, seconds in run.steps) > 0.3  # nobody decodes: no bound


def test_a_wrong_profile_is_corrected_by_measured_steps() -> None:
    wrong = budget(0.08, scale=10.0)
    load = StepLoad(decoding=4, rows=4, keys=400, prompts=1)
    assert wrong.tokens(load) < ROWS
    run = Run(wrong, 8, 24)
    assert wrong.cost.ratio(DECODE) == pytest.approx(0.1, rel=0.05)
    assert wrong.cost.ratio(MIXED) == pytest.approx(0.1, rel=0.05)
    late = [seconds for rows, chunk, seconds in run.steps[-200:] if rows and chunk > ROWS]
    assert late and max(late) <= 0.0801
    assert wrong.tokens(load) > ROWS


def test_the_efficient_step_follows_from_measured_ones() -> None:
    times = SizeTimes()
    assert times.line() is None
    for tokens in (4, 5, 400, 512, 30):
        for _ in range(5):
            times.add(tokens, STEP_S + TOKEN_S * tokens)
    times.add(512, 9.0)  # a spike
    fixed, each = times.line() or (0.0, 0.0)
    assert fixed == pytest.approx(STEP_S, rel=0.1) and each == pytest.approx(TOKEN_S, rel=0.15)
    run = Run(wrong := TimeBudget(OnlineCost(Line(token_s=0.0)), 512), 16, 48)  # type: ignore[arg-type]
    line = budget()
    assert wrong.efficient == pytest.approx(line.efficient, abs=3 * ROWS) and run.gaps


def test_spikes_count_for_little() -> None:
    cost = OnlineCost(Line())  # type: ignore[arg-type]
    for seconds in (0.0114, 0.0114, 0.0114, 5.0):
        cost.observe(1, 10, 0, seconds)
    assert 1.0 < cost.ratio(DECODE) < 1.1
    assert cost.ratio(MIXED) == cost.ratio(DECODE)  # of a kind that was never measured


def test_chunks_fill_tiles_and_are_never_empty() -> None:
    for chosen in (budget(), budget(1e-4), budget(3600.0)):
        for rows in (1, 7, 8, 9, 15, 16, 31, 64):
            tokens = chosen.tokens(StepLoad(rows, rows, 100 * rows, 1))
            assert tokens >= LEAST_CHUNK and (rows + tokens) % ROWS == 0


def test_the_budget_of_a_model_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no profile is stored
    plan = survey(EngineConfig("tale", step_time_budget="auto"))
    made = step_budget(plan.spec, plan.resolved)
    assert made is not None and made.seconds is None
    alone = made.cost.step_s(4, 400, 0)
    chunk = made.tokens(StepLoad(4, 4, 400, 1))
    assert made.cost.step_s(4, 400, chunk) <= 2.5 * alone or chunk < LEAST_CHUNK + ROWS
    fixed = survey(EngineConfig("tale", step_time_budget=0.5))
    made = step_budget(fixed.spec, fixed.resolved)
    assert made is not None and made.seconds == 0.5
    off = survey(EngineConfig("tale"))
    assert step_budget(off.spec, off.resolved) is None
