"""A loaded model under measurement: its engine, the work of its steps, and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.measure import Measured, Step, percentile, run_workload
from headrace.bench.native.roofline import Roofline, measure_roofline
from headrace.bench.report import Row
from headrace.bench.workload import Arrival
from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.units import format_bytes
from headrace.sim.step_budget import step_budget
from headrace.sim.work import ModelWork, Work, model_work


@dataclass(slots=True)
class Subject:
    """`roofline` is None if it was not requested or the native kernels are missing."""

    parts: EngineParts
    work: ModelWork
    roofline: Roofline | None
    _seed: int = field(default=0, init=False)

    @property
    def vocab_size(self) -> int:
        return self.parts.spec.vocab_size

    def next_seed(self) -> int:
        """A seed that no earlier prompt used, because equal prompts would hit the prefix cache."""
        self._seed += 1
        return self._seed

    def run(self, arrivals: Sequence[Arrival]) -> Measured:
        """Measure one workload. The engine must be idle."""
        return run_workload(self.parts.engine, self.parts.executor, arrivals)

    def check(self, *, batch: int, length: int) -> None:
        """Raises ConfigError where `batch` sequences of up to `length` tokens cannot run all at once."""
        resolved = self.parts.resolved
        if batch > resolved.max_num_seqs:
            raise ConfigError(
                f"a batch of {batch} needs --max-num-seqs {batch}; it is {resolved.max_num_seqs}"
            )
        if length > resolved.max_model_len and resolved.sliding_window is None:
            raise ConfigError(
                f"prompt and output of {length} tokens need --max-model-len {length}; it is {resolved.max_model_len}"
            )

    def against_roofline(
        self, steps: Sequence[Step], seconds: float, tokens: int | None = None
    ) -> dict[str, float]:
        """Metrics of steps that took `seconds` together and gave `tokens`; empty without a roofline."""
        if self.roofline is None or not steps or seconds <= 0:
            return {}
        return {
            **achieved(self.work.steps(step.shape for step in steps), seconds),
            **self._limits([self.work.step(step.shape) for step in steps], seconds, tokens),
        }

    def _limits(self, works: Sequence[Work], seconds: float, tokens: int | None) -> dict[str, float]:
        """The limit of each step by itself: reading during one and multiplying during the next do not overlap."""
        assert self.roofline is not None
        least = sum(self.roofline.limit(work).seconds for work in works)
        rate = {} if tokens is None else {"limit_tokens_per_s": tokens / least}
        return {**rate, "fraction": least / seconds}

    def config(self) -> dict[str, Any]:
        """The settings that figures depend on, as plain values."""
        resolved = self.parts.resolved
        names = (
            "model", "device", "dtype", "quantization", "kv_cache_dtype", "kv_layout", "block_size", "kv_cache_memory",
            "max_model_len", "max_num_seqs", "max_num_batched_tokens", "batching", "enable_prefix_caching",
            "enable_chunked_prefill", "num_threads", "pin_threads", "kernels", "ops_force", "seed",
        )  # fmt: skip
        return {name: getattr(resolved, name) for name in names}

    def describe(self) -> str:
        """One line for people."""
        resolved = self.parts.resolved
        weights = format_bytes(self.work.layer_bytes + self.work.head_bytes)
        return (
            f"{resolved.model}: weights {resolved.quantization or resolved.dtype} ({weights} a step), "
            f"KV {resolved.kv_cache_dtype}, {resolved.kernels or 'torch'}, {resolved.num_threads} threads"
        )


def load_subject(config: EngineConfig, *, roofline: bool = True) -> Subject:
    """Load the model and measure the limits. Raises what `assemble` raises."""
    parts = assemble(config, step_budget=step_budget)
    resolved = parts.resolved
    # Where torch runs the model, the limits are still those of the best instruction set.
    measured = measure_roofline(resolved.kernels, resolved.num_threads) if roofline else None
    return Subject(parts, model_work(parts.spec, resolved), measured)


def achieved(work: Work, seconds: float) -> dict[str, float]:
    """Rates of work that took `seconds`."""
    return {"bytes_per_s": work.bytes / seconds, "operations_per_s": work.all_operations / seconds}


def with_percentiles(row: Row, runs: Sequence[Measured]) -> Row:
    """The row with TTFT, TPOT and ITL over the requests of all runs together; metrics without samples are left out."""
    pools: Mapping[str, list[float]] = {
        "ttft": [value for run in runs for value in run.ttft_s],
        "tpot": [value for run in runs for value in run.tpot_s],
        "itl": [value for run in runs for value in run.itl_s],
    }
    values = {
        f"{name}_p{share}_s": percentile(pool, share / 100)
        for name, pool in pools.items()
        if pool
        for share in (50, 99)
    }
    return Row(row.labels, {**values, **row.values}, row.samples)
