"""The profile of this machine for the cost model, measured in under two minutes; see docs/foresight.md.

Single ops run at a few sizes, then whole steps of the bundled model. Sizes that no curve is made of are measured as
well: the profile tells its own error on them.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.bench.calibration.cases import Case, Cases, OtherPrograms, decode_step, mixer, prompt_step
from headrace.bench.calibration.engine import SKIPPED, EngineRounds, decoding, sample_costs
from headrace.bench.calibration.fit import KV_NAMES, SMALL, AttentionFit, ProductFit, RowwiseFit, rowwise
from headrace.bench.calibration.server import PROMPT_TOKENS, can_serve, server_cost
from headrace.bench.model.latency import Progress
from headrace.bench.model.profile import tape_of
from headrace.bench.model.step_times import closed_batch, undisturbed_step
from headrace.bench.native.op_tapes import OpTapes
from headrace.bench.native.roofline import measure_roofline, native_module
from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.ops.cpu_features import detect
from headrace.plan.units import MIB
from headrace.quant.format import WeightFormat
from headrace.sim.cost import CostModel
from headrace.sim.profile import CPU_REACH, SERVER, Curve, Profile
from headrace.sim.profile_store import profile_key
from headrace.sim.work import SliceShape, model_work

MODEL = "tale"
SECONDS, QUICK_SECONDS = 45.0, 12.0
"""Of the rounds of single ops."""
ENGINE_SECONDS, QUICK_ENGINE_SECONDS = 12.0, 3.0
"""Of the rounds of whole steps."""
LEAST_ROUNDS = 4
SAMPLING_S = 0.01
"""Of each setting of the sampler."""
BATCHES = (4, 16)
"""Of the hold-out."""
HELD_HEADS = (3, 3, 64)
"""Of the hold-out: KV heads, query heads of each, width."""
MEMORY_SIZES = (2 * MIB, 16 * MIB)


@dataclass(frozen=True, slots=True)
class Held:
    """A measurement that no curve is made of: `kind` of op, what it is, and what the profile predicts."""

    kind: str
    name: str
    case: Case
    predicted: Callable[[Profile], float]


@dataclass(frozen=True, slots=True)
class Check:
    """A hold-out's times, in seconds."""

    kind: str
    name: str
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """The share by which the prediction is too long."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    profile: Profile
    checks: tuple[Check, ...]
    seconds: float


def calibrate(
    formats: Sequence[WeightFormat],
    kv_types: Sequence[str] = ("bf16", "int8"),
    *,
    kernels: str | None = None,
    threads: int | None = None,
    quick: bool = False,
    progress: Progress = lambda what: None,
) -> Calibration:
    """Measure this machine. formats: of weights; kv_types: of `op_tapes.KV_TYPES`; threads: all usable cores if None.

    Raises ConfigError without native kernels.
    """
    begin, others = time.monotonic(), OtherPrograms()
    native = native_module()
    if native is None:
        raise ConfigError(f"there are no native kernels to calibrate: {detect().note}")
    progress("roofline")
    roofline = measure_roofline(kernels, threads)
    assert roofline is not None  # the native kernels are here
    tapes = OpTapes(native, roofline.kernels, roofline.threads)
    last_level = cache_bytes()
    progress("preparing")
    measuring = _Measuring(Cases(tapes), formats, kv_types, last_level, quick)
    measuring.run(QUICK_SECONDS if quick else SECONDS, progress)
    progress("sampling")
    samples = dict(sample_costs(tapes, SAMPLING_S))
    base = Profile(
        name=detect().brand or "CPU",
        source="measured",
        memory=_memory(native, roofline.kernels, roofline.threads, last_level, roofline.read.best),
        peaks={name: peak.best for name, peak in roofline.peaks.items()},
        reach=CPU_REACH,
        server=SERVER,
        samples=samples,
        key=profile_key(roofline.kernels, roofline.threads),
    )
    profile = measuring.fit(base)
    profile, steps = _with_engine(profile, roofline.kernels, roofline.threads, quick, progress)
    checks = (*measuring.checks(profile), *steps)
    profile = replace(profile, error=_errors(checks), busy=others.share())
    return Calibration(profile, checks, time.monotonic() - begin)


def cache_bytes() -> int:
    """Of the last level that a core reads; what it may be where the system does not say."""
    caches = detect().caches
    return caches.l3 or caches.l2 or 16 * MIB


class _Measuring:
    """Single ops: those that curves are made of, and those that are held out."""

    def __init__(
        self, cases: Cases, formats: Sequence[WeightFormat], kv_types: Sequence[str], cache: int, quick: bool
    ) -> None:
        levels = (cache // 2, 2 * cache)
        self._call = cases.linear(formats[0], (16, 64), 1, 0)
        self._products = [ProductFit.prepare(cases, one, levels, quick) for one in formats]
        self._attention = [AttentionFit.prepare(cases, kind, levels) for kind in kv_types]
        self._rowwise: dict[str, RowwiseFit] = rowwise(cases, formats)
        self._held = [*_held_products(cases, formats, cache), *_held_attention(cases, kv_types)]

    def _cases(self) -> Iterator[Case]:
        yield self._call
        fits: list[ProductFit | AttentionFit | RowwiseFit] = [*self._products, *self._attention]
        for fit in dict.fromkeys((*fits, *self._rowwise.values())):  # one may have two names
            yield from fit.cases()
        for held in self._held:
            yield held.case

    def run(self, seconds: float, progress: Progress) -> None:
        """Sample every case once a round, for so long."""
        end, rounds = time.monotonic() + seconds, 0
        cases = list(self._cases())
        while rounds < LEAST_ROUNDS or time.monotonic() < end:
            progress(f"round {rounds + 1} of single ops")
            for case in cases:
                case.sample()
            rounds += 1

    def fit(self, base: Profile) -> Profile:
        call_s = self._call.seconds
        return replace(
            base,
            call_s=call_s,
            products={one.weights.name: one.fit(call_s) for one in self._products},
            attention={KV_NAMES[one.kv_type]: one.fit(call_s) for one in self._attention},
            rowwise={**{name: one.fit() for name, one in self._rowwise.items()}, "other": self._other()},
        )

    def _other(self) -> Curve:
        """Ops that were not measured by themselves pass over their rows as encoding does."""
        return next(one for name, one in self._rowwise.items() if name.startswith("encode")).fit()

    def checks(self, profile: Profile) -> Iterator[Check]:
        for held in self._held:
            yield Check(held.kind, held.name, held.case.seconds, held.predicted(profile))


def _held_products(cases: Cases, formats: Sequence[WeightFormat], cache: int) -> Iterator[Held]:
    for weights in formats:
        for shape, rows, size in (
            ((576, 1536), 5, SMALL),
            ((576, 1536), 20, SMALL),
            ((1536, 576), 1, SMALL),
            ((1536, 576), 1, 2 * cache),
            ((1536, 576), 7, 2 * cache),
            ((96, 640), 100, SMALL),
        ):
            name = f"{weights.name} {shape[0]}x{shape[1]}, {rows} rows of {size / MIB:.0f} MiB"
            predict = functools.partial(_product_s, weights=weights.name, shape=shape, rows=rows, size=size)
            yield Held("products", name, cases.linear(weights, shape, rows, size), predict)


def _product_s(profile: Profile, weights: str, shape: tuple[int, int], rows: int, size: int) -> float:
    elements = shape[0] * shape[1]
    return profile.call_s + profile.products[weights](size, rows, elements, shape[0], shape[1])


def _held_attention(cases: Cases, kv_types: Sequence[str]) -> Iterator[Held]:
    for kind in kv_types:
        for sequences, tokens, start in ((6, 1, 199), (1, 1, 700), (1, 48, 100), (1, 100, 0)):
            step = decode_step(sequences, start + 1) if tokens == 1 else prompt_step(tokens, start)
            case = cases.attention(mixer(*HELD_HEADS), kind, step, 0)
            predict = functools.partial(
                _attention_s, kind=KV_NAMES[kind], sequences=sequences, tokens=tokens, start=start
            )
            yield Held("attention", f"{kind}, {sequences} x {tokens} tokens after {start}", case, predict)


def _attention_s(profile: Profile, kind: str, sequences: int, tokens: int, start: int) -> float:
    heads, group, dim = HELD_HEADS
    keys = sequences * (start + (tokens + 1) / 2)
    cost = profile.attention[kind]
    seconds = cost(SMALL, tokens * group, sequences, keys, heads, dim, 2 * heads * dim, tokens)
    return profile.call_s + seconds


def _memory(
    native: Any, kernels: str, threads: int, cache: int, main: float
) -> tuple[tuple[float, float], ...]:
    """Bytes a second of reading working sets again and again."""
    sizes = sorted(size for size in {*MEMORY_SIZES, cache // 2} if 0 < size < 2 * cache)
    reads = [
        (float(size), max(native.measure_read(kernels, threads=threads, buffer_bytes=size, runs=20)))
        for size in sizes
    ]
    return (*reads, (2.0 * cache, main))


def _with_engine(
    profile: Profile, kernels: str, threads: int, quick: bool, progress: Progress
) -> tuple[Profile, list[Check]]:
    """The profile with what the engine adds to the steps of the bundled model, and checks of whole steps."""
    config = EngineConfig(
        model=MODEL, num_threads=threads, ops_force=kernels, max_num_seqs=32, enable_prefix_caching=True
    )
    parts = assemble(config)
    tape = tape_of(parts.executor)
    if tape is None:
        raise ConfigError(f"the kernels {kernels} do not run {MODEL}, whose steps are to be measured")
    rounds = EngineRounds(parts, tape, 2 * cache_bytes())
    held: dict[int, list[Any]] = {batch: [] for batch in BATCHES}
    end, number = time.monotonic() + (QUICK_ENGINE_SECONDS if quick else ENGINE_SECONDS), 0
    while number < LEAST_ROUNDS or time.monotonic() < end:
        progress(f"round {number + 1} of steps")
        rounds.sample()
        for batch in BATCHES:
            run = list(closed_batch(parts, batch, 16, 12, 50_000 + number * 100 + batch, tape))
            held[batch] += decoding(run, batch)[SKIPPED:]
        number += 1
    profile = replace(profile, step=rounds.fit(profile.samples["greedy"]))
    model = CostModel(model_work(parts.spec, parts.resolved), profile)
    checks = []
    for batch, steps in held.items():
        predicted = statistics.fmean(model.step_s(step.shape) for step in steps)
        checks.append(
            Check("steps", f"{MODEL}, {batch} sequences decode", undisturbed_step(steps, threads), predicted)
        )
    if can_serve():
        progress("server")
        first_step_s = model.step_s((SliceShape(PROMPT_TOKENS, 0, 1),))
        profile = replace(profile, server=server_cost(MODEL, threads, kernels, first_step_s))
    return profile, checks


def _errors(checks: Sequence[Check]) -> dict[str, float]:
    """The median of the absolute errors of each kind."""
    kinds = dict.fromkeys(check.kind for check in checks)
    return {
        kind: statistics.median(abs(check.error) for check in checks if check.kind == kind) for kind in kinds
    }
