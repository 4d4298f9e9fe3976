"""The measurements of a run: in a file that grows during the run, and as one published file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.limits import roofline_from_json
from benchmarks.peers.plan import Planned
from headrace.bench.native.roofline import Roofline

FILE = "measured.jsonl"

Cell = tuple[str, str, str, str]
"""(model, format, engine, column)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: a figure, or the reason why there is none.

    others_cores: cores that other programs kept busy meanwhile; the more, the less reliable is the figure.
    share: the part of its threads' time that the engine got. facts: how the engine runs, from its driver.
    """

    planned: Planned
    figure: float | None
    reason: str | None
    wall_s: float
    others_cores: float
    share: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for one line of the file."""
        return {**asdict(self), "facts": dict(self.facts)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """Inverse of `to_json`."""
        return cls(**{**data, "planned": Planned(**data["planned"])})


@dataclass(slots=True)
class Record:
    """A run's folder: facts.json, written again where a limit rises, and one line a measurement."""

    folder: Path | None
    facts: dict[str, Any]
    measured: list[Measured] = field(default_factory=list)

    @classmethod
    def begin(cls, folder: Path, facts: Mapping[str, Any]) -> Record:
        """A new record, or the one in `folder`, which continues if its settings are the same.

        Raises ValueError where they differ: medians over both would have no meaning.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "facts.json"
        if file.is_file():
            record = cls.read(folder)
            if record.facts["settings"] != json.loads(json.dumps(facts["settings"])):
                raise ValueError(f"{folder} holds a run with other settings; choose another --out")
            return record
        record = cls(folder, dict(facts))
        record._write_facts()
        return record

    @classmethod
    def read(cls, folder: Path) -> Record:
        """A record from disk. Raises FileNotFoundError where there is none."""
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines() if (folder / FILE).is_file() else []
        return cls(folder, facts, [Measured.from_json(json.loads(line)) for line in lines])

    @classmethod
    def parse(cls, text: str) -> Record:
        """Inverse of `publish`."""
        data = json.loads(text)
        return cls(None, data["facts"], [Measured.from_json(one) for one in data["measured"]])

    def publish(self) -> str:
        """The whole record as one JSON text, a line a measurement."""
        lines = ",\n  ".join(json.dumps(one.to_json()) for one in self.measured)
        return f'{{"facts": {json.dumps(self.facts)},\n "measured": [\n  {lines}\n ]}}\n'

    def add(self, measured: Measured) -> None:
        """Append to the file at once: an interrupted run loses at most one measurement."""
        self.measured.append(measured)
        if self.folder is not None:
            with (self.folder / FILE).open("a", encoding="utf-8") as out:
                out.write(json.dumps(measured.to_json()) + "\n")

    def add_roofline(self, measured: Roofline | None) -> None:
        """Keep the higher of each limit. None: the kernels that measure are missing here."""
        if measured is not None:
            known = self.facts["roofline"]
            best = measured if known is None else measured.or_faster(roofline_from_json(known))
            self.facts["roofline"] = best.to_json()
            self.facts["rooflines"] = self.facts.get("rooflines", 0) + 1
            self._write_facts()

    def has(self, planned: Planned) -> bool:
        """Whether this figure was measured."""
        return any(one.planned == planned and one.figure is not None for one in self.measured)

    def samples(self) -> dict[Cell, list[float]]:
        """Figures of every cell, one a round; a measurement that was repeated counts once."""
        latest: dict[tuple[int, Cell], float] = {}
        for one in self.measured:
            if one.figure is not None:
                latest[(one.planned.round, one.planned.cell)] = one.figure
        samples: dict[Cell, list[float]] = {}
        for (_, cell), value in sorted(latest.items()):
            samples.setdefault(cell, []).append(value)
        return samples

    def reasons(self) -> dict[Cell, str]:
        """Why cells that were tried have no figure; the latest reason of each."""
        done = self.samples()
        return {
            one.planned.cell: one.reason
            for one in self.measured
            if one.reason is not None and one.planned.cell not in done
        }

    def engine_facts(self, model: str, format_: str, engine: str) -> Mapping[str, Any]:
        """How an engine ran a model, from its driver; empty where it never loaded."""
        for one in self.measured:
            at = one.planned
            if one.facts and (at.model, at.format, at.engine) == (model, format_, engine):
                return one.facts
        return {}

    def others_cores(self) -> Sequence[float]:
        """For each figure, the cores that other programs kept busy."""
        return [one.others_cores for one in self.measured if one.figure is not None]

    def _write_facts(self) -> None:
        if self.folder is not None:
            (self.folder / "facts.json").write_text(json.dumps(self.facts, indent=1), encoding="utf-8")
