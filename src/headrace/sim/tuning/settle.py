"""Settings for a goal: batch, steps, KV type and speculation, by the cost model on this machine's profile.

An answer's tokens stay what they are but where the KV is stored in int8, which is chosen only where it brings much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.hardware import Hardware
from headrace.sim.planner.memory import CPU_CHUNK
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.search import BATCHES
from headrace.sim.planner.speed import Point, Speed, Speeds, Traffic
from headrace.sim.tuning.gains import ACCEPTANCE, footprint_of, planned_kv, speculation_gain
from headrace.sim.tuning.goal import LATENCY, PROMISE, THROUGHPUT, Goal

USUAL = Traffic(prompt=220, output=195)
"""Tokens of a usual chat: the means of the conversations that `headrace bench serve` draws by default."""
MOST_BATCH = 256
SLOWER = 2.0
"""For latency: a step with all sequences takes at most so many times that of one alone."""
NEARLY = 0.99
"""Of the best rate: the smallest batch that reaches this share is taken, and the smallest step."""
LEAST_BATCH = 32
"""For throughput: more sequences than are needed cost memory alone."""
KV_WORTH, DRAFTS_WORTH = 1.10, 1.05
"""Gains from which KV in int8, and drafts, are chosen."""
CHUNKS = (256, 512, 1024, 2048)
FORMATS = ("int8", "int4")
"""Formats of weights that a refused promise may be kept with."""
PROMPTS_ROOM = 1.2
"""A step with a prompt may take so many times that of one without, at least."""
ROOM = 1.02
"""The nearest promise leaves so much room."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting, by its name in EngineConfig, and why it has this value."""

    name: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Settled:
    """The config with the choices in it, and what is predicted for `traffic` with the batch full."""

    config: EngineConfig
    goal: Goal
    choices: tuple[Choice, ...]
    point: Point
    traffic: Traffic
    profile: str

    @property
    def reasons(self) -> Mapping[str, str]:
        return {choice.name: choice.why for choice in self.choices}

    def describe(self) -> list[str]:
        """Lines for people: the prediction, then each setting."""
        point = self.point
        return [
            f"--for {self.goal}, by {self.profile}: {point.batch} requests at once of {self.traffic.prompt} + "
            f"{self.traffic.output} tokens should see TTFT {point.ttft_s:.3g} s and TPOT {point.tpot_s:.3g} s at "
            f"{point.output_per_s:,.0f} output tokens/s",
            *(f"  {choice.name} {choice.value}: {choice.why}" for choice in self.choices),
        ]


def settle(
    config: EngineConfig,
    given: Iterable[str],
    goal: Goal,
    model: PlannedModel,
    hardware: Hardware,
    speeds: Speeds,
    profile: str,
    *,
    native: bool = True,
) -> Settled:
    """Choose what `given`, names of options, leaves open. profile: where the rates come from, in words; native: the
    CPU kernels run the model, which can store KV in int8.

    Raises ConfigError for a promise that this machine cannot keep, with the nearest one that it can.
    """
    return _Settler(config, frozenset(given), goal, model, hardware, speeds, native).settled(profile)


class _Settler:
    def __init__(
        self, config: EngineConfig, given: frozenset[str], goal: Goal, model: PlannedModel, hardware: Hardware,
        speeds: Speeds, native: bool,
    ) -> None:  # fmt: skip
        self.config, self.given, self.goal = config, given, goal
        self.model, self.hardware, self.speeds = model, hardware, speeds
        longest = config.max_model_len or model.spec.max_position
        self.traffic = replace(USUAL, prompt=min(USUAL.prompt, max(1, longest * 3 // 4)))
        self.traffic = replace(self.traffic, output=min(USUAL.output, max(1, longest - self.traffic.prompt)))
        both = native and "kv_cache_dtype" not in given and config.kv_cache_dtype == "auto"
        self.types = ("auto", "int8") if both else (planned_kv(config, hardware),)
        self.by_type = {kv: self._speed(kv) for kv in self.types}

    def settled(self, profile: str) -> Settled:
        chosen = {kv: self._batch(kv) for kv in self.types}
        kept = {kv: point for kv, point in chosen.items() if point is not None}
        if not kept:
            raise ConfigError(self._refusal())
        kv, gain = self._kv(kept)
        point, speed = kept[kv], self.by_type[kv]
        choices = [self._batch_choice(speed, point)]
        if len(self.types) > 1:
            choices.append(self._kv_choice(kv, gain))
        if self.config.kv_cache and self.config.enable_chunked_prefill:  # or a step takes whole prompts
            choices.append(self._chunk(speed))
        choices += [self._step_budget(speed, point), self._speculation(speed, point)]
        open_ones = tuple(choice for choice in choices if choice.name not in self.given)
        config = replace(self.config, **{choice.name: choice.value for choice in open_ones})
        return Settled(config, self.goal, open_ones, point, self.traffic, profile)

    def _speed(self, kv: str, format: str | None = None) -> Speed:
        return self.speeds.of(footprint_of(self.model, self.config, self.hardware, kv, format))

    # ---- batch ----

    def _points(self, speed: Speed) -> list[Point]:
        """Of the batches that fit, the given one alone where one is given."""
        room = max(1, speed.footprint.largest_batch(self.traffic.context))
        most = min(MOST_BATCH, room, self.config.max_num_batched_tokens or MOST_BATCH)
        batches = [batch for batch in BATCHES if batch <= most]
        if self.config.max_num_seqs is not None:
            batches = [self.config.max_num_seqs]
        return [speed.point(batch, self.traffic) for batch in batches]

    def _batch(self, kv: str) -> Point | None:
        """The steady state of the best batch; None where no batch keeps the promise."""
        points = self._points(self.by_type[kv])
        if self.goal.kind == LATENCY:
            return [one for one in points if one.decode_s <= SLOWER * points[0].decode_s][-1]
        if self.goal.kind == PROMISE:
            points = [one for one in points if self._keeps(one)]
        best = max((one.output_per_s for one in points), default=0.0)
        least = LEAST_BATCH if self.goal.kind == THROUGHPUT else 1
        enough = [one for one in points if one.output_per_s >= NEARLY * best]
        return next((one for one in enough if one.batch >= least), enough[-1] if enough else None)

    def _keeps(self, point: Point) -> bool:
        goal = self.goal
        return (goal.ttft_s is None or self._ttft_s(point) <= goal.ttft_s) and (
            goal.tpot_s is None or point.tpot_s <= goal.tpot_s
        )

    def _ttft_s(self, point: Point) -> float:
        return point.ttft_s + self.by_type[self.types[0]].profile.server.first_token_s

    def _batch_choice(self, speed: Speed, point: Point) -> Choice:
        alone = speed.decode_s(1, self.traffic.mean_context)
        times = f"a step takes {_ms(point.decode_s)}, {point.decode_s / alone:.2g} times that of one sequence"
        if self.goal.kind == LATENCY:
            why = f"{times}; more would make each wait longer than {SLOWER:g} times"
        elif self.goal.kind == PROMISE:
            why = f"the most within {self.goal}: TTFT {self._ttft_s(point):.3g} s, TPOT {point.tpot_s:.3g} s predicted"
        else:
            why = f"{point.output_per_s:,.0f} output tokens/s predicted; more sequences bring less than 1 % more"
        return Choice("max_num_seqs", point.batch, why)

    # ---- other settings ----

    def _kv(self, kept: Mapping[str, Point]) -> tuple[str, float]:
        """The KV type, and the gain of int8: in the time of a step for latency, else in tokens a second."""
        if len(kept) == 1:
            return next(iter(kept)), math.inf if "int8" in kept and len(self.types) > 1 else 1.0
        plain, small = kept["auto"], kept["int8"]
        gain = small.output_per_s / plain.output_per_s
        if self.goal.kind == LATENCY:
            gain = plain.decode_s / self.by_type["int8"].decode_s(plain.batch, self.traffic.mean_context)
        return ("int8" if gain >= KV_WORTH else "auto"), gain

    def _kv_choice(self, kv: str, gain: float) -> Choice:
        if math.isinf(gain):
            return Choice(
                "kv_cache_dtype", kv, "only with KV in int8 the promise is kept; it changes answers a little"
            )
        what = f"int8 would bring {100 * (gain - 1):+.0f} %"
        if kv == "int8":
            return Choice("kv_cache_dtype", kv, f"{what}; it changes answers a little")
        return Choice("kv_cache_dtype", kv, f"{what}, too little to change answers for")

    def _chunk(self, speed: Speed) -> Choice:
        least = max(self.config.max_num_seqs or 1, 1)
        if self.goal.kind != THROUGHPUT:
            tokens = max(CPU_CHUNK, least)
            return Choice(
                "max_num_batched_tokens", tokens,
                "while nobody decodes; else the step time budget cuts prompts",
            )  # fmt: skip
        rates = {tokens: tokens / speed.costs.prefill_s(tokens) for tokens in CHUNKS if tokens >= least}
        best = max(rates.values(), default=1.0)
        tokens = next((size for size, rate in rates.items() if rate >= NEARLY * best), max(CPU_CHUNK, least))
        return Choice(
            "max_num_batched_tokens",
            tokens,
            "the smallest step that computes prompts at 99 % of the best rate",
        )

    def _step_budget(self, speed: Speed, point: Point) -> Choice:
        if not (self.config.kv_cache and self.config.enable_chunked_prefill):
            return Choice("step_time_budget", "off", "prompts are not cut into chunks")
        if self.goal.kind == THROUGHPUT:
            return Choice(
                "step_time_budget", "off", "large chunks are fastest, and streams may wait for them"
            )
        if self.goal.tpot_s is not None:
            least = PROMPTS_ROOM * point.decode_s
            why = "no step with a prompt takes longer than the promised TPOT"
            if least > self.goal.tpot_s:
                why = f"{PROMPTS_ROOM:g} times a step without a prompt: the promised TPOT leaves prompts less"
            return Choice("step_time_budget", round(max(self.goal.tpot_s, least), 4), why)
        return Choice("step_time_budget", "auto", "prompts cost streams about one more step")

    def _speculation(self, speed: Speed, point: Point) -> Choice:
        if not self.config.kv_cache:
            return Choice("speculative", None, "drafts need the KV cache")
        gain = speculation_gain(speed, point.batch, self.traffic.mean_context)
        if self.goal.kind == LATENCY:
            gain = max(gain, speculation_gain(speed, 1, self.traffic.mean_context))
        what = f"{gain:.2f} times the tokens of a step if {100 * ACCEPTANCE:.0f} % of drafts are right"
        if gain >= DRAFTS_WORTH:
            return Choice("speculative", "auto", f"{what}; fewer are drafted where that does not pay")
        return Choice(
            "speculative", None, f"{what}: verifying costs as much as it brings at {point.batch} sequences"
        )

    # ---- promises that cannot be kept ----

    def _refusal(self) -> str:
        point = min(
            (self._points(speed)[0] for speed in self.by_type.values()),
            key=lambda one: (self._excess(one), one.ttft_s),
        )
        near = Goal(
            PROMISE,
            None if self.goal.ttft_s is None else _up(max(self.goal.ttft_s, ROOM * self._ttft_s(point))),
            None if self.goal.tpot_s is None else _up(max(self.goal.tpot_s, ROOM * point.tpot_s)),
        )
        who = f"{point.batch} requests at once" if point.batch > 1 else "one request at a time"
        return (
            f"this machine cannot keep --for {self.goal} with {self.config.model:.80}, for {who} of "
            f"{self.traffic.prompt} + {self.traffic.output} tokens; the nearest possible is --for {near}{self._hint()}"
        )

    def _excess(self, point: Point) -> float:
        goal = self.goal
        return max(
            0.0 if goal.ttft_s is None else self._ttft_s(point) / goal.ttft_s,
            0.0 if goal.tpot_s is None else point.tpot_s / goal.tpot_s,
        )

    def _hint(self) -> str:
        """A format of weights that would keep the promise."""
        if (
            "quantization" in self.given
            or self.config.quantization is not None
            or self.model.spec.codes is not None
        ):
            return ""
        for format in FORMATS:
            if self._keeps(self._points(self._speed(self.types[-1], format))[0]):
                return f", and with --quantization {format} the promise can be kept"
        return ""


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _up(seconds: float) -> float:
    """Rounded up to two digits."""
    scale = 10.0 ** (1 - math.floor(math.log10(seconds)))
    return round(math.ceil(seconds * scale) / scale, 6)
