"""The result of a benchmark: one documented JSON form, and the printed table."""

from __future__ import annotations

import datetime
import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headrace.bench.metrics import METRICS
from headrace.errors import ConfigError
from headrace.ops.cpu_features import detect
from headrace.plan.hardware import this_machine
from headrace.plan.report import table
from headrace.plan.units import format_bytes

SCHEMA = "headrace.bench"
VERSION = 1
"""Raised when a field changes its meaning or goes; new metrics and new labels do not raise it."""

Label = str | int | float
_PACKAGES = ("headrace", "torch", "numpy")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The machine of a benchmark. Sizes in bytes, 0 where unknown; `flags` as in /proc/cpuinfo, sorted."""

    cpu: str
    cores: int  # that this process may use
    memory_bytes: int
    l3_bytes: int
    flags: tuple[str, ...]
    system: str

    def describe(self) -> str:
        """One line for people."""
        sets = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if name in self.flags]
        vectors = f", {sets[0]}" if sets else ""
        return f"{self.cpu or 'unknown CPU'}, {self.cores} cores{vectors}, {format_bytes(self.memory_bytes)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a result.

    labels: what was run, such as {"engine": "headrace", "model": "tale", "batch": 8}; they become the first columns.
    values: figures by their name in METRICS, medians where there were repeats.
    samples: the repeats that a value is the median of, in the order in which they ran.
    """

    labels: Mapping[str, Label]
    values: Mapping[str, float]
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        samples = {name: list(values) for name, values in self.samples.items()}
        return {"labels": dict(self.labels), "values": dict(self.values), "samples": samples}


def row_of_runs(labels: Mapping[str, Label], runs: Sequence[Mapping[str, float]]) -> Row:
    """A row of the medians of several runs, which must have the same metrics, at least one run."""
    samples = {name: tuple(run[name] for run in runs) for name in runs[0]}
    return Row(labels, {name: statistics.median(values) for name, values in samples.items()}, samples)


@dataclass(frozen=True, slots=True)
class Report:
    """What `headrace bench KIND --json` writes.

    config: the settings that the figures depend on, as plain JSON values.
    roofline: `headrace.bench.native.roofline.Roofline.to_json()`, or None where nothing is compared with it.
    complete: False where the run was interrupted and later rows are missing.
    """

    kind: str
    machine: MachineFacts
    versions: Mapping[str, str]
    config: Mapping[str, Any]
    roofline: Mapping[str, Any] | None
    rows: tuple[Row, ...]
    created: str  # ISO 8601, UTC
    complete: bool = True
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` is the inverse."""
        machine = {name: getattr(self.machine, name) for name in MachineFacts.__slots__}
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "kind": self.kind,
            "created": self.created,
            "complete": self.complete,
            "machine": {**machine, "flags": list(self.machine.flags)},
            "versions": dict(self.versions),
            "config": dict(self.config),
            "roofline": None if self.roofline is None else dict(self.roofline),
            "notes": list(self.notes),
            "rows": [row.to_json() for row in self.rows],
        }

    @classmethod
    def from_json(cls, data: object) -> Report:
        """Inverse of `to_json`. Raises ConfigError with the place of the first fault."""
        top = _object(data, "the report")
        if top.get("schema") != SCHEMA or top.get("version") != VERSION:
            raise ConfigError(f"this is no {SCHEMA} report of version {VERSION}")
        machine = _object(_of(top, "machine", dict), "machine")
        facts = MachineFacts(
            cpu=_of(machine, "cpu", str),
            cores=_of(machine, "cores", int),
            memory_bytes=_of(machine, "memory_bytes", int),
            l3_bytes=_of(machine, "l3_bytes", int),
            flags=tuple(_texts(machine, "flags")),
            system=_of(machine, "system", str),
        )
        roofline = top.get("roofline")
        return cls(
            kind=_of(top, "kind", str),
            machine=facts,
            versions=_object(_of(top, "versions", dict), "versions"),
            config=_object(_of(top, "config", dict), "config"),
            roofline=None if roofline is None else _object(roofline, "roofline"),
            rows=tuple(_row(entry) for entry in _of(top, "rows", list)),
            created=_of(top, "created", str),
            complete=_of(top, "complete", bool),
            notes=tuple(_texts(top, "notes")),
        )

    def table(self, columns: Sequence[str] | None = None, *, title: bool = True) -> str:
        """The rows as aligned text. `columns` are metrics, those of the rows in the order of METRICS if None."""
        shown = tuple(columns or (name for name in METRICS if any(name in row.values for row in self.rows)))
        labels = list(dict.fromkeys(name for row in self.rows for name in row.labels))
        head = (*labels, *(METRICS[name].heading for name in shown))
        body = [
            (*(str(row.labels.get(name, "")) for name in labels), *(_cell(row, name) for name in shown))
            for row in self.rows
        ]
        numeric = {at for at, name in enumerate(labels) if all(_is_number(row, name) for row in self.rows)}
        text = table([head, *body], right=frozenset(numeric | set(range(len(labels), len(head)))))
        parts = [self.machine.describe()] if title else []
        parts += [text, *self.notes]
        if not self.complete:
            parts.append("interrupted: these are the results until then")
        return "\n".join(parts)

    def write(self, path: str) -> None:
        """Write the JSON to a file, or to standard output for "-". Raises ConfigError where that fails."""
        text = json.dumps(self.to_json(), indent=2, allow_nan=False)
        if path == "-":
            print(text)
            return
        try:
            Path(path).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the result cannot be written to {path}: {error.strerror}") from None


def make_report(
    kind: str,
    rows: Sequence[Row],
    *,
    config: Mapping[str, Any],
    roofline: Mapping[str, Any] | None = None,
    complete: bool = True,
    notes: Sequence[str] = (),
) -> Report:
    """A report with the current time, machine and package versions."""
    return Report(
        kind=kind,
        machine=machine_facts(),
        versions=package_versions(_PACKAGES),
        config=config,
        roofline=roofline,
        rows=tuple(rows),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        complete=complete,
        notes=tuple(notes),
    )


def machine_facts() -> MachineFacts:
    """Facts about this machine."""
    cpu = detect()
    return MachineFacts(
        cpu=cpu.brand,
        cores=cpu.cores.usable,
        memory_bytes=this_machine(cpu).memory_total,
        l3_bytes=cpu.caches.l3 or 0,
        flags=tuple(sorted(cpu.flags)),
        system=f"{platform.system()} {platform.machine()}",
    )


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Python's version and those of the packages that are installed, by name."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cell(row: Row, name: str) -> str:
    return METRICS[name].show(row.values[name]) if name in row.values else "-"


def _is_number(row: Row, label: str) -> bool:
    return not isinstance(row.labels.get(label), str)


# ---- Reading ----


def _row(data: object) -> Row:
    entry = _object(data, "a row")
    labels = _object(_of(entry, "labels", dict), "labels")
    values = _object(_of(entry, "values", dict), "values")
    samples = _object(_of(entry, "samples", dict), "samples")
    for name, label in labels.items():
        if isinstance(label, bool) or not isinstance(label, str | int | float):
            raise ConfigError(f"label {name!r:.80} must be text or a number")
    for name in (*values, *samples):
        if name not in METRICS:
            raise ConfigError(f"there is no metric {name!r:.80}")
    return Row(
        labels,
        {name: _number(value, name) for name, value in values.items()},
        {name: tuple(_number(value, name) for value in _list(many, name)) for name, many in samples.items()},
    )


def _object(data: object, what: str) -> dict[str, Any]:
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{what} must be an object with named fields")
    return data


def _of(data: Mapping[str, Any], name: str, kind: type) -> Any:
    value = data.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"the field {name} must be of type {kind.__name__}")
    return value


def _list(data: object, what: str) -> list[Any]:
    if not isinstance(data, list):
        raise ConfigError(f"{what} must be a list")
    return data


def _texts(data: Mapping[str, Any], name: str) -> list[str]:
    texts = _list(data.get(name), name)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} must be a list of texts")
    return texts


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what} must be a number")
    return float(value)
