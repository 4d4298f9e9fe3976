"""What is measured of a run, on an engine whose executor needs no model."""

from __future__ import annotations

import pytest

from headrace.bench.measure import percentile, run_workload
from headrace.bench.workload import fixed_lengths, mixed_lengths
from headrace.core.engine import Engine
from headrace.core.policy import SchedulerConfig
from headrace.core.types import KVGroupSpec, SliceResult, StepPlan, StepResult
from headrace.errors import HeadraceError


class Echo:
    """Answers every slice that is sampled with token 7; fails request number `broken`."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def execute(self, plan: StepPlan) -> StepResult:
        results = []
        for work in plan.slices:
            error = "made to fail" if work.request_id == self.broken else None
            results.append(
                SliceResult(work.request_id, (7,) if work.sample and not error else (), error=error)
            )
        return StepResult(plan.step_id, tuple(results))


def engine(budget: int = 64) -> Engine:
    return Engine(SchedulerConfig(8, budget, 256, 100), [KVGroupSpec("full", 64, 16)])


def test_a_closed_batch_is_split_where_the_last_first_token_came() -> None:
    arrivals = fixed_lengths(3, prompt_tokens=40, output_tokens=5, vocab_size=100)
    run = run_workload(engine(), Echo(), arrivals)
    assert (run.requests, run.prompt_tokens, run.output_tokens) == (3, 120, 15)
    prompt_tokens = sum(part.tokens for step in run.prefill_steps for part in step.shape if part.tokens > 1)
    assert prompt_tokens == 120 and len(run.prefill_steps) >= 2  # 64 tokens a step
    assert all(part.tokens == 1 for step in run.decode_steps for part in step.shape)
    before = sum(step.tokens for step in run.prefill_steps)
    assert before >= 3 and run.decode_tokens == 15 - before
    assert 0 < run.prefill_s < run.prefill_s + run.decode_s <= run.wall_s
    assert len(run.ttft_s) == len(run.tpot_s) == 3 and len(run.itl_s) == 12
    assert run.steps[0].begin_s >= 0 and run.steps[-1].end_s <= run.wall_s


def test_one_output_token_leaves_nothing_to_decode() -> None:
    run = run_workload(engine(), Echo(), fixed_lengths(2, prompt_tokens=9, output_tokens=1, vocab_size=100))
    assert run.decode_steps == () and run.decode_s == 0.0 and run.decode_tokens == 0
    assert run.tpot_s == () and run.itl_s == ()


def test_a_failed_request_ends_the_measurement() -> None:
    arrivals = fixed_lengths(2, prompt_tokens=9, output_tokens=4, vocab_size=100)
    with pytest.raises(HeadraceError, match="bench-1 failed: made to fail"):
        run_workload(engine(), Echo(broken=1), arrivals)


def test_lengths_follow_one_seed_and_tokens_another() -> None:
    def shape(seed: int, prompt_seed: int) -> tuple[list[tuple[int, int | None]], list[tuple[int, ...]]]:
        arrivals = mixed_lengths(
            20,
            prompt_tokens=(1, 50),
            output_tokens=(1, 9),
            vocab_size=100,
            seed=seed,
            prompt_seed=prompt_seed,
        )
        requests = [arrival.request for arrival in arrivals]
        lengths = [(len(one.prompt), one.params.max_tokens) for one in requests]
        return lengths, [one.prompt for one in requests]

    (lengths, prompts), (same_lengths, other_prompts) = shape(0, 1), shape(0, 2)
    assert lengths == same_lengths and prompts != other_prompts
    assert shape(1, 1)[0] != lengths


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.5) == 50 and percentile(values, 0.99) == 99 and percentile(values, 1.0) == 100
    assert percentile([3.0], 0.99) == 3.0 and percentile([], 0.5) == 0.0
