"""Runs the planned measurements and records them; an engine that is missing or fails is recorded and skipped."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.drivers.driving import Job
from benchmarks.peers.execute import Driver, DriverError
from benchmarks.peers.files import model_file
from benchmarks.peers.install import installed_versions
from benchmarks.peers.peers import BY_NAME, FORMATS, Peer, cpu_vendor, fits
from benchmarks.peers.plan import Group, Planned, Rounds, groups, turns
from benchmarks.peers.record import Cell, Measured, Record
from benchmarks.peers.work_items import COLUMNS, Sizes
from benchmarks.peers.workplace import Workplace
from headrace.bench.native.roofline import measure_roofline
from headrace.bench.report import machine_facts, package_versions
from headrace.plan.hardware import this_machine

Say = Callable[[str], None]

KV_GIB = 1
MAX_SEQS = 64
FREE_BYTES = 1 << 30
"""Memory that stays free when another engine is loaded, in addition to its expected size."""
LOADED_OVER_FILE = 1.5
"""Engines that copy or repack weights need more memory than the file while they load."""
OVERTIME = 1.1
"""When a run ends in any case, as a multiple of the minutes after which rounds are skipped."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run. `skipped`: engine -> columns that are not measured.

    budget_s: a cell gets another optional round only while its rounds together stay below.
    limit_s: of one measurement. minutes: no optional round begins later.
    """

    models: tuple[str, ...]
    columns: tuple[str, ...] = tuple(COLUMNS)
    formats: tuple[str, ...] = FORMATS
    threads: int = 2
    rounds: Rounds = field(default_factory=Rounds)
    budget_s: float = 20.0
    limit_s: float = 240.0
    minutes: float = 42.0
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)

    def comparable(self) -> dict[str, Any]:
        """The settings that figures depend on; more rounds may be added to a run."""
        return {"threads": self.threads, "kv_gib": KV_GIB, "sizes": asdict(self.sizes)}


def run(engines: Sequence[Peer], settings: Settings, workplace: Workplace, out: Path, say: Say) -> Record:
    """Measure; continues where a run with the same settings in `out` was interrupted."""
    here = [peer for peer in engines if fits(peer, cpu_vendor())]
    absent = {peer.name: reason for peer in here if (reason := _absence(peer, workplace)) is not None}
    for name, reason in absent.items():
        say(f"{name}: {reason}")
    ready = [peer for peer in here if peer.name not in absent]
    record = Record.begin(out, _facts(here, absent, settings, workplace))
    bench = Bench(settings, workplace, record, say)
    for group in groups(ready, settings.models, settings.formats):
        record.add_roofline(measure_roofline(threads=settings.threads))
        try:
            bench.measure(group)
        finally:
            bench.close()
    return record


class Bench:
    """The engines of one group at a time, loaded side by side; one runs, the others are stopped."""

    def __init__(self, settings: Settings, workplace: Workplace, record: Record, say: Say) -> None:
        self._settings, self._workplace, self._record, self._say = settings, workplace, record, say
        self._begin = time.monotonic()
        self._drivers: dict[str, Driver] = {}  # by engine
        self._load_s: dict[str, float] = {}  # by engine, what loading it again would take
        self._spent: dict[Cell, list[float]] = {}
        self._dead: dict[tuple[str, str, str], str] = {}  # (model, format, engine) -> why it cannot be loaded

    def measure(self, group: Group) -> None:
        """Every round of every cell of the group that time allows."""
        settings = self._settings
        for planned in turns(group, settings.columns, settings.rounds, settings.skipped):
            title = (
                f"{planned.model} {planned.format} {planned.column} round {planned.round}: {planned.engine}"
            )
            if self._record.has(planned) or not self._has_time(planned):
                continue
            begin = time.monotonic()
            measured = self._measured(planned)
            self._spent.setdefault(planned.cell, []).append(time.monotonic() - begin)
            self._record.add(measured)
            self._say(f"[{(time.monotonic() - self._begin) / 60:.1f} min] {title}: {_summary(measured)}")

    def close(self) -> None:
        """End every engine."""
        while self._drivers:
            self._drivers.popitem()[1].close()

    def _has_time(self, planned: Planned) -> bool:
        if planned.round == 1:
            return True
        if planned.cell in self._record.reasons():
            return False
        settings = self._settings
        if not settings.rounds.is_spared(planned.round, planned.format, planned.column):
            return True
        spent = self._spent.get(planned.cell, [0.0])
        return sum(spent) + spent[-1] <= settings.budget_s and self._minutes() < settings.minutes

    def _minutes(self) -> float:
        return (time.monotonic() - self._begin) / 60

    def _measured(self, planned: Planned) -> Measured:
        where = (planned.model, planned.format, planned.engine)
        begin, meter = time.monotonic(), _Meter()
        left_s = 60 * (OVERTIME * self._settings.minutes - self._minutes())
        if (reason := self._dead.get(where)) is None and left_s < 1:
            reason = f"the run's {self._settings.minutes:.0f} minutes were over"
        if reason is not None:
            return Measured(planned, None, reason, 0.0, 0.0)
        driver: Driver | None = None
        try:
            driver = self._driver(planned)
            reply = driver.measure(planned.column, min(self._settings.limit_s, left_s))
        except DriverError as error:
            if driver is None or not driver.facts:  # it cannot be loaded
                self._dead[where] = str(error)
            return Measured(planned, None, str(error), time.monotonic() - begin, 0.0)
        others = meter.others_cores(reply["cpu_s"])
        wall_s = time.monotonic() - begin
        if planned.column == "startup":
            self._load_s[planned.engine] = wall_s
        return Measured(planned, reply["figure"], None, wall_s, others, reply["share"], driver.facts)

    def _driver(self, planned: Planned) -> Driver:
        """The engine's loaded driver, or a new one: always a new one for start-up."""
        kept = self._drivers.get(planned.engine)
        if kept is not None and (planned.column == "startup" or not kept.alive):
            self._drivers.pop(planned.engine).close()
            kept = None
        if kept is None:
            kept = self._drivers[planned.engine] = self._start(planned)
        return kept

    def _start(self, planned: Planned) -> Driver:
        settings, peer = self._settings, BY_NAME[planned.engine]
        file = model_file(peer, planned.model, planned.format, self._workplace)
        if not file.exists():
            raise DriverError(f"{file.name} is missing; see `models`")
        self._make_room(LOADED_OVER_FILE * _read_into_cache(file) + (KV_GIB << 30) + FREE_BYTES)
        job = Job(
            model=str(file),
            format=planned.format,
            threads=settings.threads,
            kv_gib=KV_GIB,
            max_seqs=MAX_SEQS,
            sizes=settings.sizes,
            launched_at=0.0,
            replies=-1,
        )
        log = self._workplace.logs / f"{planned.engine}-{planned.model}-{planned.format}.log"
        return Driver(peer, _python(peer, self._workplace), job, log)

    def _make_room(self, needed: float) -> None:
        """End the engines that load fastest until so many bytes are free; they are loaded again when needed."""
        while this_machine().memory_available < needed and self._drivers:
            engine = min(self._drivers, key=lambda name: self._load_s.get(name, 0.0))
            self._say(f"{engine}: ended for now, to make room")
            self._drivers.pop(engine).close()


def _absence(peer: Peer, workplace: Workplace) -> str | None:
    """Why an engine cannot run here at all."""
    if peer.unavailable is not None:
        return peer.unavailable
    if peer.own and not workplace.installed_mark(peer.name).is_file():
        return "it could not be installed"
    return None


def _python(peer: Peer, workplace: Workplace) -> Path:
    return workplace.python(peer.name) if peer.own else Path(sys.executable)


def _read_into_cache(path: Path) -> int:
    """Makes start-up times independent of which engine read the files first. Returns their bytes."""
    size = 0
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with file.open("rb", buffering=0) as data:
            while block := data.read(1 << 24):
                size += len(block)
    return size


class _Meter:
    """Measures how busy other programs kept this machine since it was made. Linux; 0 elsewhere."""

    def __init__(self) -> None:
        self._begin, self._busy, self._own = time.monotonic(), _busy_s(), time.process_time()

    def others_cores(self, used_s: float) -> float:
        """Cores that neither this process nor an engine, which used `used_s` CPU seconds, kept busy."""
        seconds = time.monotonic() - self._begin
        others = (_busy_s() - self._busy) - (time.process_time() - self._own) - used_s
        return max(0.0, others / seconds)


def _busy_s() -> float:
    """Seconds that all cores together spent on programs since the machine started."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, irq, soft, steal = (int(text) for text in fields[:8])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _facts(
    here: Sequence[Peer], absent: Mapping[str, str], settings: Settings, workplace: Workplace
) -> dict[str, Any]:
    versions = package_versions(("headrace",))
    for peer in here:
        if peer.own and peer.name not in absent:
            found = installed_versions(workplace.python(peer.name))
            versions[peer.distribution] = found.get(peer.distribution, "unknown")
    return {
        "settings": settings.comparable(),
        "engines": [peer.name for peer in here],
        "absent": dict(absent),
        "created": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": asdict(machine_facts()),
        "versions": versions,
        "roofline": None,
    }


def _summary(measured: Measured) -> str:
    if measured.figure is None:
        return f"FAILED after {measured.wall_s:.0f} s: {measured.reason}"
    busy = f"; others used {measured.others_cores:.1f} cores" if measured.others_cores >= 0.1 else ""
    return f"{measured.figure:.4g} ({measured.share:.0%} of its threads) in {measured.wall_s:.0f} s{busy}"
