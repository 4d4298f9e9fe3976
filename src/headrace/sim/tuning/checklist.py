"""The techniques of the usual guides, for one model, machine and load: on, off or not for you, and what each brings.

Gains are ratios by the cost model: with the technique over without it, everything else as configured.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.plan.draft_methods import AUTO, draft_model_name
from headrace.plan.hardware import Hardware
from headrace.plan.units import format_bytes
from headrace.sim.planner.memory import Placement
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.search import BATCHES
from headrace.sim.planner.speed import Point, Speed, Speeds, Traffic
from headrace.sim.step_budget import DECODES
from headrace.sim.tuning.gains import (
    ACCEPTANCE,
    drafters_of,
    footprint_of,
    planned_drafts,
    planned_kv,
    speculation_gain,
)
from headrace.sim.workload.sessions import SHAREGPT_OUTPUT

State = Literal["on", "off", "not for you"]
WORTH = 1.03
"""Gains below this are not worth a setting."""
SHARED = 0.5
"""Assumed share of a prompt that others begin with, too."""
CALL_S = 5e-6
"""Assumed time of an interpreter to start one op."""
_DRAWS = 200
_SEQS = {"cpu": 64, "cuda": 256}
"""Defaults of --max-num-seqs by kind of device."""


@dataclass(frozen=True, slots=True)
class Item:
    """gain: how many times better `measure` is with the technique; None: the cost model cannot say."""

    technique: str
    state: State
    gain: float | None
    measure: str
    why: str
    next: str


@dataclass(frozen=True, slots=True)
class Checklist:
    """hardware: in words. point: the steady state as configured, with the sequences in flight of the load. use:
    the load's share of what the machine can serve; None: no rate was given, and the batch is full."""

    model: str
    hardware: str
    profile: str
    traffic: Traffic
    point: Point
    use: float | None
    items: tuple[Item, ...]


def checklist(
    config: EngineConfig,
    model: PlannedModel,
    hardware: Hardware,
    speeds: Speeds,
    traffic: Traffic,
    profile: str,
    rate: float | None = None,
) -> Checklist:
    """Judge every technique. rate: requests a second; None: as many as can be served. profile: where rates come from.

    Raises ConfigError where the model, stored as configured, does not fit on the machine.
    """
    made = _Maker(config, model, hardware, speeds, traffic, rate)
    return Checklist(
        model.name, _place(hardware), profile, traffic, made.point, made.use, tuple(made.items())
    )


class _Maker:
    def __init__(
        self, config: EngineConfig, model: PlannedModel, hardware: Hardware, speeds: Speeds, traffic: Traffic,
        rate: float | None,
    ) -> None:  # fmt: skip
        self.config, self.model, self.hardware = config, model, hardware
        self.speeds, self.traffic = speeds, traffic
        self.speed = speeds.of(footprint_of(model, config, hardware, planned_kv(config, hardware)))
        room = self.speed.footprint.largest_batch(traffic.context)
        if not room:
            raise ConfigError(
                f"{model.name:.80} with a sequence of {traffic.context} tokens does not fit on {_place(hardware)}: "
                f"see `headrace plan {shlex.quote(model.name)} --hardware {hardware.label}`"
            )
        self.most = min(config.max_num_seqs or _SEQS[hardware.kind], room)
        points = [self.speed.point(batch, traffic) for batch in BATCHES if batch < self.most]
        points.append(self.speed.point(self.most, traffic))
        best = max(one.requests_per_s for one in points)
        self.use = None if rate is None else rate / best
        self.point = points[-1]
        if rate is not None:
            self.point = next((one for one in points if one.requests_per_s >= rate), points[-1])
        self.batch, self.context = self.point.batch, traffic.mean_context
        self.serve = f"headrace serve {shlex.quote(model.name)}"

    def items(self) -> Iterator[Item]:
        """In the order of the guides: memory first, then scheduling, then fewer bits, then the rest."""
        rate = "output tokens/s"
        config, point, alone = self.config, self.point, self.speed.point(1, self.traffic)
        recomputed = self.batch * self.speed.prefill_s(self.context)
        yield self._switch(
            "KV cache", config.kv_cache, recomputed / point.decode_s, "time of a step",
            f"else every token computes {self.context} tokens again", "leave --no-kv-cache out",
        )  # fmt: skip
        yield self._paging()
        longest = _longest_share(self.batch)
        yield self._switch(
            "continuous batching", config.batching == "continuous", longest, rate,
            f"a static batch of {self.batch} waits for its longest answer, {longest:.2g} times the mean",
            "--batching continuous",
        )  # fmt: skip
        yield self._switch(
            f"batch of {self.batch}", self.batch > 1 or self.most > 1, point.output_per_s / alone.output_per_s, rate,
            f"{point.output_per_s:,.0f} instead of {alone.output_per_s:,.0f} with one sequence at a time",
            f"{self.serve} --max-num-seqs {max(2, self.batch)}",
        )  # fmt: skip
        yield self._prefix()
        yield self._chunks()
        for format in ("int8", "int4") if self.hardware.kind == "cpu" else ("fp8", "int4-a16"):
            yield self._weights(format)
        yield self._small_kv()
        yield self._speculation()
        yield self._attention()
        yield self._threads()
        yield self._graphs()
        yield self._tensor_parallel()

    def _switch(self, name: str, on: bool, gain: float, measure: str, why: str, next: str) -> Item:
        """A technique that a setting turns on."""
        if on:
            return Item(name, "on", gain, measure, why, "nothing")
        if gain < WORTH:
            return Item(name, "not for you", gain, measure, why, "nothing")
        return Item(name, "off", gain, measure, why, next)

    # ---- memory and scheduling ----

    def _paging(self) -> Item:
        footprint, longest = self.speed.footprint, self.config.max_model_len or self.model.spec.max_position
        whole = footprint.largest_batch(longest)
        paged = footprint.largest_batch(self.traffic.context)
        least = max(1, min(self.batch, whole))
        gain = self.point.output_per_s / self.speed.point(least, self.traffic).output_per_s
        why = f"memory holds {paged} sequences of {self.traffic.context} tokens, or {whole} of {longest}"
        return self._switch(
            "paged KV", self.config.kv_layout == "paged", gain, "output tokens/s", why, "--kv-layout paged"
        )

    def _prefix(self) -> Item:
        shared = int(self.traffic.prompt * SHARED)
        whole = self.speed.prefill_s(self.traffic.prompt)
        gain = whole / self.speed.prefill_s(max(1, self.traffic.prompt - shared), shared)
        return self._switch(
            "prefix cache", self.config.enable_prefix_caching, gain, "time of a prompt",
            f"if the first {shared} of {self.traffic.prompt} tokens are known", "leave --no-enable-prefix-caching out",
        )  # fmt: skip

    def _chunks(self) -> Item:
        """The longest gap between tokens of a stream beside a prompt."""
        whole = self.point.decode_s + self.speed.prefill_s(self.traffic.prompt)
        bounded = min(whole, DECODES * self.point.decode_s)
        times = f"{_s(whole)}, a chunk within the time budget {_s(bounded)}"
        on = self.config.enable_chunked_prefill and self.config.step_time_budget != "off"
        return self._switch(
            "chunked prefill", on, whole / bounded, "longest gap between tokens",
            f"a whole prompt beside {self.batch} streams takes {times}",
            f"{self.serve} --step-time-budget auto",
        )  # fmt: skip

    # ---- fewer bits ----

    def _weights(self, format: str) -> Item:
        name = f"weights in {format}"
        stored, next = self.model.spec.codes, f"{self.serve} --quantization {format}"
        if stored is not None:
            return Item(
                name, "not for you", None, "output tokens/s", f"the checkpoint has codes already ({stored.method})",
                "nothing",
            )  # fmt: skip
        on = self.config.quantization == format
        try:
            other = self._gain(lambda: self._other(format=format), on, {"quantization": None})
        except ConfigError as error:
            return Item(name, "not for you", None, "output tokens/s", str(error), "nothing")
        why = "fewer bytes a step; it changes answers: `headrace eval kl` says how much"
        return self._switch(name, on, other, "output tokens/s", why, next)

    def _small_kv(self) -> Item:
        kv = "int8" if self.hardware.kind == "cpu" else "fp8"
        if kv == "fp8" and not self.hardware.peak_of("fp8"):
            return Item(
                "KV in fp8", "not for you", None, "output tokens/s", "the device has no fp8", "nothing"
            )
        on = planned_kv(self.config, self.hardware) == kv
        gain = self._gain(lambda: self._other(kv=kv), on, {"kv_cache_dtype": "auto"})
        why = f"{format_bytes(self.speed.footprint.kv_token)} a token now; it changes answers a little"
        return self._switch(
            f"KV in {kv}", on, gain, "output tokens/s", why, f"{self.serve} --kv-cache-dtype {kv}"
        )

    def _other(self, format: str | None = None, kv: str | None = None) -> Speed:
        config = self.config if format is None else replace(self.config, quantization=None)
        return self.speeds.of(
            footprint_of(
                self.model, config, self.hardware, kv or planned_kv(self.config, self.hardware), format
            )
        )

    def _gain(self, other: Callable[[], Speed], on: bool, plain: dict[str, Any]) -> float:
        """Of what is on over `plain`, the setting that it replaces; of what is off over what there is."""
        if on:
            config = replace(self.config, **plain)
            speed = self.speeds.of(
                footprint_of(self.model, config, self.hardware, planned_kv(config, self.hardware))
            )
            return self.point.output_per_s / speed.point(self.batch, self.traffic).output_per_s
        return other().point(self.batch, self.traffic).output_per_s / self.point.output_per_s

    # ---- the rest ----

    def _speculation(self) -> Item:
        if self.config.kv_eviction != "off":
            return Item(
                "speculation", "not for you", None, "output tokens/s", "drafts cannot be taken back after an eviction",
                "nothing",
            )  # fmt: skip
        drafters = drafters_of(self.model, self.config, self.config.speculative or AUTO)
        gain = speculation_gain(self.speed, self.batch, self.context, planned_drafts(drafters, self.speed))
        name = draft_model_name(drafters.option)
        who = "looked up" if name is None else f"of {name}"
        right = f"if {100 * ACCEPTANCE:.0f} % of drafts {who} are right"
        why = f"{right}: `headrace bench speculative -m {shlex.quote(self.model.name)}` measures"
        return self._switch(
            "speculation", self.config.speculative is not None, gain, "output tokens/s", why,
            f"{self.serve} --speculative auto",
        )  # fmt: skip

    def _attention(self) -> Item:
        longest = self.config.max_model_len or self.model.spec.max_position
        heads = max((op.attributes.num_heads for op in self.model.program.of_kind("attention")), default=0)
        scores = 4 * heads * longest * longest
        return Item(
            "flash attention", "on", None, "memory",
            f"scores of a prompt of {longest} tokens would take {format_bytes(scores)} a layer; tiles are used instead",
            "nothing",
        )  # fmt: skip

    def _threads(self) -> Item:
        cores, threads = self.hardware.cores, self.config.num_threads or self.hardware.cores
        if self.hardware.kind != "cpu":
            return Item(
                "threads and pinning",
                "not for you",
                None,
                "output tokens/s",
                "the device computes",
                "nothing",
            )
        pinned = "pinned" if self.config.pin_threads else "not pinned"
        next = (
            "nothing" if self.config.pin_threads else f"{self.serve} --pin-threads, on a machine for it alone"
        )
        if threads < cores:
            next = f"{self.serve} --num-threads {cores}"
        state: State = "on" if threads >= cores else "off"
        return Item("threads and pinning", state, cores / threads, "output tokens/s, at most",
                    f"{threads} of {cores} cores compute, {pinned}", next)  # fmt: skip

    def _graphs(self) -> Item:
        ops = len(self.model.native.ops)
        gain = (self.point.decode_s + ops * CALL_S) / self.point.decode_s
        why = f"{ops} ops of a step are one call; started one by one they would take {_s(ops * CALL_S)} more"
        on = self.config.ops_force not in ("torch", "reference")
        return self._switch("graphs (the tape)", on, gain, "time of a step", why, "leave --ops-force out")

    def _tensor_parallel(self) -> Item:
        name, measure = "tensor parallel", "output tokens/s"
        count = self.hardware.count
        heads = [op.attributes.num_heads for op in self.model.program.of_kind("attention")]
        if count == 1 or any(number % count for number in heads):
            why = "there is one device" if count == 1 else f"{count} devices cannot share {heads[0]} heads"
            return Item(name, "not for you", None, measure, why, "nothing")
        footprint = replace(self.speed.footprint, placement=Placement(tp=count))
        gain = (
            self.speeds.of(footprint).point(self.batch, self.traffic).output_per_s / self.point.output_per_s
        )
        return Item(
            name, "not for you", gain, measure, "this version runs on one device", "see `headrace plan`"
        )


def _place(hardware: Hardware) -> str:
    """What is judged: this version runs a model on one device."""
    return hardware.label if hardware.count == 1 else f"one device of {hardware.label}"


def _longest_share(batch: int) -> float:
    """The longest of so many answers over their mean, for the lengths of shared chats."""
    rng = random.Random(0)
    draws = [[SHAREGPT_OUTPUT.draw(rng) for _ in range(batch)] for _ in range(max(1, _DRAWS // batch))]
    return sum(max(one) for one in draws) * batch / sum(map(sum, draws))


def _s(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
