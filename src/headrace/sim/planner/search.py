"""The search: formats, KV types, placements, batches, machines and models that keep a promise, best first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.eviction import Eviction
from headrace.errors import ConfigError
from headrace.plan.hardware import Hardware
from headrace.sim.planner.formats import Stored, formats_of, kv_types, restore, store
from headrace.sim.planner.memory import Footprint, Placement, allowed
from headrace.sim.planner.model import PlannedModel
from headrace.sim.planner.money import DAY_S, HOUR_S, Bill, bill
from headrace.sim.planner.speed import Point, Speeds, Traffic
from headrace.sim.profile import Profile

BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
BEST = 3
SAME = 0.03
"""Settings whose results differ by less are about as good as each other."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What the setting must keep; None: no limit. users: requests in flight at once. Means, not percentiles."""

    users: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    requests_per_day: float | None = None

    @property
    def timed(self) -> bool:
        return self.ttft_s is not None or self.tpot_s is not None

    def keeps(self, point: Point) -> bool:
        return (self.ttft_s is None or point.ttft_s <= self.ttft_s) and (
            self.tpot_s is None or point.tpot_s <= self.tpot_s
        )

    def excess(self, point: Point) -> float:
        """How many times the worst of its times is longer than promised; at most 1 where it keeps the promise."""
        ratios = [1.0]
        if self.ttft_s is not None:
            ratios.append(point.ttft_s / self.ttft_s)
        if self.tpot_s is not None:
            ratios.append(point.tpot_s / self.tpot_s)
        return max(ratios)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to serve a load: `machines` of `hardware`, each with `copies` of the model, `point.batch` sequences each.

    machine_hours: of a day, busy ones, where requests a day were given. tokens_per_unit: output tokens for one unit of
    money; of what is paid for, idle time included where `users` fix the number of machines.
    """

    footprint: Footprint
    point: Point
    copies: int
    machines: int
    price: float | None
    bill: Bill
    tokens_per_s: float
    tokens_per_unit: float | None
    machine_hours: float | None = None

    @property
    def stored(self) -> Stored:
        return self.footprint.stored

    @property
    def hardware(self) -> Hardware:
        return self.footprint.hardware

    @property
    def daily_cost(self) -> float | None:
        """Of all machines, on all day."""
        return None if self.price is None else self.price * self.machines * 24

    @property
    def busy_cost(self) -> float | None:
        """Of the busy hours of a day alone, where machines can be paid by the hour."""
        if self.price is None or self.machine_hours is None:
            return None
        return self.price * self.machine_hours

    @property
    def sequences(self) -> int:
        """Requests in flight that all machines have room for."""
        return self.point.batch * self.copies * self.machines


@dataclass(frozen=True, slots=True)
class Found:
    """settings: the best ones that keep the promise, best first. nearest: where none does, what comes closest, if the
    model fits at all. tried: settings that fit in memory."""

    settings: tuple[Setting, ...]
    nearest: Setting | None
    tried: int
    smallest: Footprint | None
    """Where nothing fits: the one that lacks least memory."""


def search(
    models: Sequence[PlannedModel],
    machines: Sequence[Hardware],
    traffic: Traffic,
    promise: Promise,
    *,
    prices: Mapping[str, float] | None = None,
    formats: Sequence[str] | None = None,
    profile: Profile | None = None,
    eviction: Eviction | None = None,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """Try everything, and keep the best settings of different formats, machines and models.

    With prices for all machines the most output tokens for the money are best, else the fewest devices, then speed.
    profile: of "this" machine, where it was measured. progress: is called with each model and machine. Raises
    ConfigError where a sequence is longer than every model's context.
    """
    longest = max(model.spec.max_position for model in models)
    if traffic.context > longest:
        raise ConfigError(
            f"a prompt of {traffic.prompt} and an answer of {traffic.output} tokens are longer than the context of "
            f"{longest} tokens; lower --prompt-tokens or --output-tokens to {longest} together"
        )
    kept: list[Setting] = []
    nearest: tuple[float, Setting] | None = None
    smallest: tuple[int, Footprint] | None = None
    tried, speeds = 0, Speeds(profile)
    for footprint in _footprints(models, machines, traffic, formats, eviction, progress):
        most = footprint.largest_batch(traffic.context)
        if not most:
            lacks = footprint.needed(1, traffic.context) - footprint.hardware.memory
            if smallest is None or lacks < smallest[0]:
                smallest = lacks, footprint
            continue
        speed = speeds.of(footprint)
        for batch in _batches(most, promise, footprint.placement):
            tried += 1
            setting = _setting(footprint, speed.point(batch, traffic), traffic, promise, prices)
            excess = promise.excess(setting.point)
            if promise.keeps(setting.point):
                kept.append(setting)
            elif nearest is None or excess < nearest[0]:
                nearest = excess, setting
    kept.sort(key=lambda setting: _rank(setting, prices, machines))
    return Found(
        _different(kept), None if nearest is None else nearest[1], tried, None if smallest is None else smallest[1]
    )  # fmt: skip


def _footprints(
    models: Sequence[PlannedModel],
    machines: Sequence[Hardware],
    traffic: Traffic,
    formats: Sequence[str] | None,
    eviction: Eviction | None,
    progress: Callable[[str], None] | None,
) -> Iterator[Footprint]:
    for model in models:
        if traffic.context > model.spec.max_position:
            continue
        for hardware in machines:
            if progress is not None:
                progress(f"{model.name} on {hardware.label}")
            for format in formats_of(hardware, formats):
                try:
                    stored = store(model, hardware, format)
                except ConfigError:  # rows that are not whole blocks of this format
                    continue
                for kv in kv_types(hardware):
                    for placement in allowed(model.program, hardware):
                        yield Footprint(restore(stored, kv, hardware), hardware, placement, eviction)


def _batches(most: int, promise: Promise, placement: Placement) -> list[int]:
    """Batches that fill the stages of a pipeline, up to what fits; no larger than all users together."""
    limit = most if promise.users is None else min(most, promise.users)
    limit = max(limit, min(most, placement.pp))
    return sorted({*(batch for batch in BATCHES if placement.pp <= batch <= limit), limit})


def _setting(
    footprint: Footprint, point: Point, traffic: Traffic, promise: Promise, prices: Mapping[str, float] | None
) -> Setting:
    hardware = footprint.hardware
    copies = hardware.count // footprint.placement.devices
    price = (prices or {}).get(hardware.label)
    one = bill(point, traffic, copies, price, hardware.total_watts)
    needed = 1
    if promise.users is not None:
        needed = math.ceil(promise.users / (point.batch * copies))
    rate = point.requests_per_s * copies  # of one machine
    hours = None
    if promise.requests_per_day is not None:
        hours = promise.requests_per_day / rate / HOUR_S
        needed = max(needed, math.ceil(hours / 24))
    tokens = point.output_per_s * copies * needed
    if promise.users is not None:  # fewer may be in flight than there is room for
        tokens *= min(1.0, promise.users / (point.batch * copies * needed))
    if promise.requests_per_day is not None:
        tokens = min(tokens, promise.requests_per_day / DAY_S * traffic.output)
    per_unit = None if price is None else tokens / (price * needed / HOUR_S)
    return Setting(footprint, point, copies, needed, price, one, tokens, per_unit, hours)


def _rank(
    setting: Setting, prices: Mapping[str, float] | None, machines: Sequence[Hardware]
) -> tuple[float, ...]:
    """Smaller is better. Of settings that are about as good: wider weights and KV, fewer devices, the smaller batch."""
    plain = (
        -setting.stored.bits,
        float(setting.stored.kv != "auto"),
        float(setting.footprint.placement.devices),
        float(setting.point.batch),
    )
    if by_money(prices, machines):
        return (-_step(setting.tokens_per_unit or 0.0), *plain)
    return (float(setting.machines * setting.hardware.count), -_step(setting.tokens_per_s), *plain)


def by_money(prices: Mapping[str, float] | None, machines: Sequence[Hardware]) -> bool:
    """Whether settings are ranked by tokens for the money: where every machine has a price."""
    return bool(prices) and all(machine.label in (prices or {}) for machine in machines)


def _step(value: float) -> float:
    """Equal for values that differ by a few percent."""
    return float(round(math.log(value) / math.log(1 + SAME))) if value > 0 else -math.inf


def _different(ranked: Sequence[Setting]) -> tuple[Setting, ...]:
    """The best of each pair of model, machine and format."""
    best: dict[tuple[str, str, str], Setting] = {}
    for setting in ranked:
        key = (setting.stored.model.name, setting.hardware.label, setting.stored.format)
        best.setdefault(key, setting)
    return tuple(best.values())[:BEST]
