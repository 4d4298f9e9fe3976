"""The first guess for a goal: settings by the closed formula of `planner.speed`, with the batch full all the time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from headrace.config import EngineConfig
from headrace.plan.draft_methods import AUTO
from headrace.plan.hardware import Hardware
from headrace.sim.planner.memory import CPU_CHUNK
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.search import BATCHES
from headrace.sim.planner.speed import Point, Speed, Speeds, Traffic
from headrace.sim.tuning.gains import drafters_of, footprint_of, planned_drafts, planned_kv, speculation_gain
from headrace.sim.tuning.goal import LATENCY, PROMISE, THROUGHPUT, Goal
from headrace.sim.tuning.trials import Settings
from headrace.speculative.drafters import Drafters

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
PROMPTS_ROOM = 1.2
"""A step with a prompt may take so many times that of one without, at least."""


@dataclass(frozen=True, slots=True)
class Open:
    """Which settings are to be chosen; the others were given, or another option excludes a choice."""

    max_num_seqs: bool
    kv_cache_dtype: bool
    max_num_batched_tokens: bool
    step_time_budget: bool
    speculative: bool


@dataclass(frozen=True, slots=True)
class Guess:
    """settings: given ones included. point: the steady state of its batch, as the formula sees it."""

    settings: Settings
    point: Point


class Formula:
    """Prices one model on one machine under a config."""

    def __init__(
        self, config: EngineConfig, given: frozenset[str], goal: Goal, model: PlannedModel, hardware: Hardware,
        speeds: Speeds, native: bool,
    ) -> None:  # fmt: skip
        self.config, self.given, self.goal = config, given, goal
        self.model, self.hardware, self.speeds = model, hardware, speeds
        longest = config.max_model_len or model.spec.max_position
        self.traffic = replace(USUAL, prompt=min(USUAL.prompt, max(1, longest * 3 // 4)))
        self.traffic = replace(self.traffic, output=min(USUAL.output, max(1, longest - self.traffic.prompt)))
        self.chunked = config.kv_cache and config.enable_chunked_prefill  # or a step takes whole prompts
        both = native and "kv_cache_dtype" not in given and config.kv_cache_dtype == "auto"
        self.open = Open(
            "max_num_seqs" not in given,
            both,
            "max_num_batched_tokens" not in given and self.chunked,
            "step_time_budget" not in given,
            "speculative" not in given and config.kv_eviction == "off",
        )
        self.types = ("auto", "int8") if both else (config.kv_cache_dtype,)
        self.by_type = {kv: self._speed(kv) for kv in self.types}

    @cached_property
    def drafters(self) -> Drafters:
        """What drafts where the choice is open."""
        return drafters_of(self.model, self.config, AUTO)

    def guess(self) -> Guess:
        """The best by the formula; of a promise that it cannot keep, one sequence at a time."""
        chosen = {kv: self._batch(kv) for kv in self.types}
        kept = {kv: point for kv, point in chosen.items() if point is not None}
        kv = self._kv(kept) if kept else self.types[0]
        point = kept[kv] if kept else self._points(kv)[0]
        return Guess(self._settings(kv, point), point)

    def point(self, settings: Settings) -> Point:
        """The steady state of these settings with the batch full."""
        return self.by_type[settings.kv_cache_dtype].point(settings.max_num_seqs, self.traffic)

    def most_batch(self, kv: str) -> int:
        """The largest batch whose usual requests fit in memory and in a step."""
        room = max(1, self.by_type[kv].footprint.largest_batch(self.traffic.context))
        return min(MOST_BATCH, room, self.config.max_num_batched_tokens or MOST_BATCH)

    def latency_batch(self, kv: str) -> int:
        """The largest batch whose step takes at most SLOWER times that of one sequence."""
        points = self._points(kv)
        return [one for one in points if one.decode_s <= SLOWER * points[0].decode_s][-1].batch

    def slower(self, point: Point, kv: str) -> float:
        """How many times longer a step takes than that of one sequence."""
        return point.decode_s / self.by_type[kv].decode_s(1, self.traffic.mean_context)

    def budget(self, batch: int, kv: str) -> float | str:
        """The time budget of steps. That of a promise leaves prompts some time in each."""
        if not self.chunked or self.goal.kind == THROUGHPUT:
            return "off"
        if self.goal.tpot_s is None:
            return "auto"
        decode_s = self.by_type[kv].decode_s(batch, self.traffic.mean_context)
        return round(max(self.goal.tpot_s, PROMPTS_ROOM * decode_s), 4)

    def _settings(self, kv: str, point: Point) -> Settings:
        config, speed = self.config, self.by_type[kv]
        budget: float | str = self.budget(point.batch, kv)
        return Settings(
            point.batch,
            kv,
            self._chunk(speed) if self.open.max_num_batched_tokens else config.max_num_batched_tokens,
            budget if self.open.step_time_budget else config.step_time_budget,
            self._speculation(speed, point) if self.open.speculative else config.speculative,
        )

    def _speed(self, kv: str) -> Speed:
        planned = kv if len(self.types) > 1 else planned_kv(self.config, self.hardware)
        return self.speeds.of(footprint_of(self.model, self.config, self.hardware, planned))

    def _points(self, kv: str) -> list[Point]:
        """Of the batches that fit, the given one alone where one is given."""
        if self.config.max_num_seqs is not None:
            batches = [self.config.max_num_seqs]
        else:
            most = self.most_batch(kv)
            batches = [batch for batch in BATCHES if batch <= most]
        return [self.by_type[kv].point(batch, self.traffic) for batch in batches]

    def _batch(self, kv: str) -> Point | None:
        """The steady state of the best batch; None where no batch keeps the promise."""
        points = self._points(kv)
        if self.goal.kind == LATENCY:
            most = self.latency_batch(kv)
            return next(one for one in points if one.batch == most)
        if self.goal.kind == PROMISE:
            points = [one for one in points if self._keeps(one)]
        best = max((one.output_per_s for one in points), default=0.0)
        least = LEAST_BATCH if self.goal.kind == THROUGHPUT else 1
        enough = [one for one in points if one.output_per_s >= NEARLY * best]
        return next((one for one in enough if one.batch >= least), enough[-1] if enough else None)

    def _keeps(self, point: Point) -> bool:
        goal = self.goal
        server_s = self.by_type[self.types[0]].profile.server.first_token_s
        return (goal.ttft_s is None or point.ttft_s + server_s <= goal.ttft_s) and (
            goal.tpot_s is None or point.tpot_s <= goal.tpot_s
        )

    def _kv(self, kept: Mapping[str, Point]) -> str:
        """The KV type: int8 where it brings much, in the time of a step for latency, else in tokens a second."""
        if len(kept) == 1:
            return next(iter(kept))
        plain, small = kept["auto"], kept["int8"]
        gain = small.output_per_s / plain.output_per_s
        if self.goal.kind == LATENCY:
            gain = plain.decode_s / self.by_type["int8"].decode_s(plain.batch, self.traffic.mean_context)
        return "int8" if gain >= KV_WORTH else "auto"

    def _chunk(self, speed: Speed) -> int:
        least = max(self.config.max_num_seqs or 1, 1)
        if self.goal.kind != THROUGHPUT:
            return max(CPU_CHUNK, least)
        rates = {tokens: tokens / speed.costs.prefill_s(tokens) for tokens in CHUNKS if tokens >= least}
        best = max(rates.values(), default=1.0)
        return next((size for size, rate in rates.items() if rate >= NEARLY * best), max(CPU_CHUNK, least))

    def _speculation(self, speed: Speed, point: Point) -> str | None:
        if not self.config.kv_cache:
            return None
        drafts, context = planned_drafts(self.drafters, speed), self.traffic.mean_context
        gain = speculation_gain(speed, point.batch, context, drafts)
        if self.goal.kind == LATENCY:
            gain = max(gain, speculation_gain(speed, 1, context, drafts))
        if self.goal.kind == PROMISE or math.isnan(gain):  # a promise is first kept without drafts
            return None
        return "auto" if gain >= DRAFTS_WORTH else None
