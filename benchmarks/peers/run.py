"""Runs what was planned and records it; a peer that is missing or fails is reported and stops nobody."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.drivers.driving import Job
from benchmarks.peers.execute import run_driver
from benchmarks.peers.install import installed_versions
from benchmarks.peers.peers import BY_NAME, FORMATS, Peer
from benchmarks.peers.plan import START_COLUMNS, Planned, plan, without
from benchmarks.peers.record import Measured, Record
from benchmarks.peers.work_items import COLUMNS, Sizes
from benchmarks.peers.workplace import Workplace
from headrace.bench.report import machine_facts, package_versions
from headrace.bench.roofline import measure_roofline

Say = Callable[[str], None]

GGUF_FORMATS: Mapping[str, str] = {"int8": "Q8_0", "int4": "Q4_0"}
START_KV_GIB, SPEED_KV_GIB = 1, 2
"""KV cache of the processes that measure memory, and of those that measure speed."""
MAX_SEQS = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run depends on. `skipped`: engine -> columns that it is spared."""

    models: tuple[str, ...]
    columns: tuple[str, ...] = tuple(COLUMNS)
    formats: tuple[str, ...] = FORMATS
    threads: int = 2
    rounds: int = 3
    fresh: bool = False
    limit_s: float = 1800.0
    skipped: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)

    def comparable(self) -> dict[str, Any]:
        """The settings that figures depend on; more rounds may be added to a run."""
        return {"threads": self.threads, "fresh": self.fresh, "sizes": asdict(self.sizes)}


def run(engines: Sequence[Peer], settings: Settings, workplace: Workplace, out: Path, say: Say) -> Record:
    """Measure; goes on where a run with the same settings in `out` was interrupted."""
    ready = [peer for peer in engines if _is_ready(peer, workplace, say)]
    record = Record.begin(out, _facts(ready, settings, workplace))
    planned = [
        one
        for one in plan(
            ready,
            models=settings.models,
            formats=settings.formats,
            columns=settings.columns,
            rounds=settings.rounds,
            fresh=settings.fresh,
        )
        if without(one.columns, one.engine, settings.skipped)[0]
    ]
    for number, one in enumerate(planned, 1):
        kept, _ = without(one.columns, one.engine, settings.skipped)
        process = Planned(one.round, one.model, one.format, one.engine, kept)
        title = f"[{number}/{len(planned)}] round {one.round}: {one.engine} {one.model} {one.format}"
        if record.has(process):
            say(f"{title}: done before")
            continue
        say(f"{title}: {', '.join(kept)}")
        measured = _measure(process, settings, workplace)
        record.add(measured)
        say(f"{title}: {_summary(measured)}")
    return record


def model_file(peer: Peer, model: str, format_: str, workplace: Workplace) -> Path:
    """What `peer` is given to load."""
    return workplace.gguf(model, GGUF_FORMATS[format_]) if peer.files == "gguf" else workplace.model(model)


def _is_ready(peer: Peer, workplace: Workplace, say: Say) -> bool:
    if not peer.packages or workplace.installed_mark(peer.name).is_file():
        return True
    say(f"{peer.name}: not installed; see `setup`")
    return False


def _python(peer: Peer, workplace: Workplace) -> Path:
    return workplace.python(peer.name) if peer.packages else Path(sys.executable)


def _measure(process: Planned, settings: Settings, workplace: Workplace) -> Measured:
    peer = BY_NAME[process.engine]
    file = model_file(peer, process.model, process.format, workplace)
    if not file.exists():
        return Measured(process, {}, f"{file.name} is missing; see `models`", 0.0, 0.0)
    _read_into_cache(file)
    only_start = set(process.columns) <= set(START_COLUMNS)
    job = Job(
        model=str(file),
        format=process.format,
        columns=process.columns,
        threads=settings.threads,
        kv_gib=START_KV_GIB if only_start else SPEED_KV_GIB,
        max_seqs=MAX_SEQS,
        sizes=settings.sizes,
        launched_at=0.0,
        report="",
    )
    log = workplace.logs / f"{process.engine}-{process.model}-{process.format}-{process.columns[0]}.log"
    meter = _Meter()
    outcome = run_driver(peer, _python(peer, workplace), job, log, settings.limit_s)
    return Measured(
        process, outcome.figures, outcome.reason, outcome.wall_s, meter.others_cores(), outcome.shares
    )


def _read_into_cache(path: Path) -> None:
    """So that start-up compares engines and not who came first to the disk."""
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with file.open("rb", buffering=0) as data:
            while data.read(1 << 24):
                pass


class _Meter:
    """Tells how busy others kept this machine since it was made. Linux; 0 elsewhere."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._busy, self._own = _busy_s(), _own_s()

    def others_cores(self) -> float:
        """Cores that neither this process nor its ended children used."""
        seconds = time.monotonic() - self._begin
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        return max(0.0, others / seconds)


def _busy_s() -> float:
    """Seconds that all cores together spent on programs since the machine started."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _idle, _wait, irq, soft, steal = (int(text) for text in fields[:8])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _facts(engines: Sequence[Peer], settings: Settings, workplace: Workplace) -> dict[str, Any]:
    versions = package_versions(("headrace",))
    for peer in engines:
        if peer.packages:
            found = installed_versions(workplace.python(peer.name))
            versions[peer.distribution] = found.get(peer.distribution, "unknown")
    roofline = measure_roofline(threads=settings.threads)
    return {
        "settings": settings.comparable(),
        "created": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": asdict(machine_facts()),
        "versions": versions,
        "roofline": None if roofline is None else roofline.to_json(),
    }


def _summary(measured: Measured) -> str:
    figures = ", ".join(
        f"{name} {value:.4g} ({measured.shares.get(name, 0.0):.0%} of its threads)"
        for name, value in measured.figures.items()
    )
    busy = f"; others used {measured.others_cores:.1f} cores" if measured.others_cores >= 0.1 else ""
    failed = "" if measured.reason is None else f"; FAILED: {measured.reason}"
    return f"{figures or 'nothing'} in {measured.wall_s:.0f} s{busy}{failed}"
