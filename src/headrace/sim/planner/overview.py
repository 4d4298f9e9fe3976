"""The whole answer of `headrace plan`: tables for one machine, the best settings of all, and why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.core.eviction import Eviction
from headrace.errors import ConfigError
from headrace.plan.eviction import check_eviction
from headrace.plan.hardware import Hardware
from headrace.plan.hardware_table import HARDWARE, THIS
from headrace.plan.units import format_bytes, round_up
from headrace.sim.planner.formats import formats_of, kv_types, restore, store
from headrace.sim.planner.memory import Footprint, Placement, allowed
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.money import read_prices
from headrace.sim.planner.search import Found, Promise, Setting, search
from headrace.sim.planner.speed import Point, Speed, Speeds, Traffic
from headrace.sim.planner.tables import (
    AttentionRow,
    ContextRow,
    FormatRow,
    attention_rows,
    batch_rows,
    context_rows,
    format_rows,
    widest,
)
from headrace.sim.profile import Profile

DEVICE_COUNTS = (1, 2, 4, 8)
FEWEST_BITS = 2
"""No format has fewer bits a weight."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. fit: bytes of each device's memory, in place of its own. prices: as `read_prices` takes them.
    eviction: of KV tokens, on CPUs."""

    models: tuple[PlannedModel, ...]
    machines: tuple[Hardware, ...]
    traffic: Traffic
    promise: Promise = field(default_factory=Promise)
    formats: tuple[str, ...] | None = None
    fit: int | None = None
    prices: str | None = None
    profile: Profile | None = None
    eviction: Eviction | None = None

    @property
    def limited(self) -> tuple[Hardware, ...]:
        """The machines with the memory that `fit` leaves them."""
        if self.fit is None:
            return self.machines
        return tuple(replace(machine, memory=self.fit) for machine in self.machines)


@dataclass(frozen=True, slots=True)
class Shown:
    """Tables for one model on one machine. `speed` and what follows it are None and empty where nothing fits."""

    model: PlannedModel
    hardware: Hardware
    placement: Placement
    formats: tuple[FormatRow, ...]
    attention: tuple[AttentionRow, ...]
    speed: Speed | None
    points: tuple[Point, ...] = ()
    contexts: tuple[ContextRow, ...] = ()
    bend: int | None = None
    bend_at_context: int | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """shown: of the first model and machine. problem: one sentence, where no setting keeps the promise."""

    question: Question
    prices: Mapping[str, float]
    shown: Shown
    found: Found
    problem: str | None


def make_overview(question: Question, progress: Callable[[str], None] | None = None) -> Overview:
    """Answer a question; `progress` is called with each model and machine. Raises ConfigError for a contradiction."""
    machines = question.limited
    if question.eviction is not None:
        _check_eviction(question)
    prices = read_prices(question.prices, machines)
    found = search(
        question.models,
        machines,
        question.traffic,
        question.promise,
        prices=prices,
        formats=question.formats,
        profile=question.profile,
        eviction=question.eviction,
        progress=progress,
    )
    shown = _shown(question, question.models[0], machines[0], found)
    return Overview(question, prices, shown, found, _problem(question, found))


def _shown(question: Question, model: PlannedModel, hardware: Hardware, found: Found) -> Shown:
    rows = format_rows(model, hardware, question.traffic, question.formats, question.eviction)
    attention = attention_rows(model, hardware)
    best = next(
        (
            setting.footprint
            for setting in found.settings
            if setting.stored.model is model and setting.hardware == hardware
        ),
        None,
    ) or next(
        (
            Footprint(
                store(model, hardware, row.format), hardware, widest(model, hardware), question.eviction
            )
            for row in rows
            if row.batch
        ),
        None,
    )
    if best is None:
        return Shown(model, hardware, widest(model, hardware), rows, attention, None)
    speed = Speeds(question.profile).of(best)
    return Shown(
        model,
        hardware,
        best.placement,
        rows,
        attention,
        speed,
        batch_rows(speed, question.traffic),
        context_rows(speed),
        speed.bend(0),
        speed.bend(question.traffic.mean_context),
    )


def _check_eviction(question: Question) -> None:
    """Raise ConfigError where tokens cannot be evicted of a model, or on a machine."""
    for hardware in question.machines:
        if hardware.kind != "cpu":
            raise ConfigError(
                f"kv_eviction snapkv needs the native CPU kernels, which {hardware.label} does not run: plan for CPUs, "
                "or leave --kv-eviction out"
            )
    for model in question.models:
        check_eviction(model.spec, native=True)


def _problem(question: Question, found: Found) -> str | None:
    if found.settings:
        return None
    if found.nearest is not None:
        return _missed(question.promise, found.nearest)
    assert found.smallest is not None
    return _does_not_fit(question, found.smallest)


def _missed(promise: Promise, nearest: Setting) -> str:
    asked = [
        f"{name} of {limit:g} s"
        for name, limit in (("a TTFT", promise.ttft_s), ("a TPOT", promise.tpot_s))
        if limit is not None
    ]
    return (
        f"no setting keeps {' and '.join(asked)}; the nearest is {describe(nearest)} with a batch of "
        f"{nearest.point.batch}: a TTFT of {round_up(nearest.point.ttft_s, 3):.3g} s and a TPOT of "
        f"{round_up(nearest.point.tpot_s, 3):.3g} s"
    )


def _does_not_fit(question: Question, smallest: Footprint) -> str:
    context = question.traffic.context
    needed, memory = smallest.needed(1, context), smallest.hardware.memory
    each = "each device" if smallest.hardware.count > 1 else "memory"
    what = (
        f"{smallest.stored.model.name} does not fit {_named(smallest.hardware)}: in {smallest.stored.label} with one "
        f"sequence of {context} tokens it needs {format_bytes(needed)} of {each}, {format_bytes(needed - memory)} more "
        f"than there is"
    )
    return f"{what}; {holder(smallest.stored.model, question.traffic, question.formats)}"


def holder(model: PlannedModel, traffic: Traffic, formats: Sequence[str] | None = None) -> str:
    """`nearest_machine` in words."""
    near = nearest_machine(model, traffic, formats)
    if near is None:
        return "no machine in the table holds it"
    return f"the smallest machine in the table that holds it is {near.hardware.label}, in {near.stored.label}"


def _named(hardware: Hardware) -> str:
    return "this machine" if hardware.name == THIS else hardware.label


def nearest_machine(
    model: PlannedModel, traffic: Traffic, formats: Sequence[str] | None = None
) -> Footprint | None:
    """The machine of the table with the least memory that holds one sequence of the load, and how; None where none
    does."""
    machines = [one.times(count) for one in HARDWARE for count in DEVICE_COUNTS if count <= one.most]
    for hardware in sorted(machines, key=lambda one: (one.total_memory, one.count)):
        if hardware.total_memory < model.parameters * FEWEST_BITS / 8:
            continue
        for name in formats_of(hardware, formats):
            try:
                stored = store(model, hardware, name)
            except ConfigError:
                continue
            for kv in kv_types(hardware):
                for placement in allowed(model.program, hardware):
                    footprint = Footprint(restore(stored, kv, hardware), hardware, placement)
                    if footprint.fits(1, min(traffic.context, model.spec.max_position)):
                        return footprint
    return None


def describe(setting: Setting) -> str:
    """A setting in a few words."""
    kv = "" if setting.stored.kv == "auto" else f", KV in {setting.stored.kv}"
    placed = "" if setting.footprint.placement.devices == 1 else f", {setting.footprint.placement}"
    return f"{setting.stored.model.name} in {setting.stored.label}{kv} on {_named(setting.hardware)}{placed}"
