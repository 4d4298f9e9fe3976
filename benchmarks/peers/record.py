"""What a run measured, process by process, in a file that grows while it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.plan import Planned

FILE = "processes.jsonl"


@dataclass(frozen=True, slots=True)
class Measured:
    """One process. others_cores: cores that other programs kept busy meanwhile; figures are worth less the more.

    shares: by column, the part of its threads' time that the engine was given.
    """

    planned: Planned
    figures: Mapping[str, float]
    reason: str | None  # why figures are missing
    wall_s: float
    others_cores: float
    shares: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for one line of the file."""
        return {**asdict(self), "figures": dict(self.figures), "shares": dict(self.shares)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measured:
        """Inverse of `to_json`."""
        planned = Planned(**{**data["planned"], "columns": tuple(data["planned"]["columns"])})
        return cls(
            planned,
            data["figures"],
            data["reason"],
            data["wall_s"],
            data["others_cores"],
            data.get("shares", {}),
        )


@dataclass(slots=True)
class Record:
    """A run's folder: facts.json, written once, and one line a process."""

    folder: Path
    facts: dict[str, Any]
    measured: list[Measured] = field(default_factory=list)

    @classmethod
    def begin(cls, folder: Path, facts: Mapping[str, Any]) -> Record:
        """A new record, or the one that lies there already: it is gone on with if it was made for the same facts.

        Raises ValueError where it was made for others: medians over both would mean nothing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "facts.json"
        if file.is_file():
            record = cls.read(folder)
            if record.facts["settings"] != json.loads(json.dumps(facts["settings"])):
                raise ValueError(f"{folder} holds a run with other settings; choose another --out")
            return record
        file.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        return cls(folder, dict(facts))

    @classmethod
    def read(cls, folder: Path) -> Record:
        """A record as it lies on disk. Raises FileNotFoundError where there is none."""
        facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines() if (folder / FILE).is_file() else []
        return cls(folder, facts, [Measured.from_json(json.loads(line)) for line in lines])

    def add(self, measured: Measured) -> None:
        """Append to the file at once: an interrupted run loses at most one process."""
        self.measured.append(measured)
        with (self.folder / FILE).open("a", encoding="utf-8") as out:
            out.write(json.dumps(measured.to_json()) + "\n")

    def has(self, planned: Planned) -> bool:
        """Whether this process ran before without failing."""
        return any(one.planned.key == planned.key and one.reason is None for one in self.measured)

    def samples(self) -> dict[tuple[str, str, str, str], list[float]]:
        """(model, format, engine, column) -> figures, one a round; a process that was repeated counts once."""
        latest: dict[tuple[int, str, str, str, str], float] = {}
        for one in self.measured:
            at = one.planned
            for column, value in one.figures.items():
                latest[(at.round, at.model, at.format, at.engine, column)] = value
        samples: dict[tuple[str, str, str, str], list[float]] = {}
        for (_, *cell), value in sorted(latest.items()):
            model, format_, engine, column = cell
            samples.setdefault((model, format_, engine, column), []).append(value)
        return samples

    def failures(self) -> list[str]:
        """What is missing and why, each reason once."""
        done = self.samples()
        lines = {}
        for one in self.measured:
            at = one.planned
            missing = [name for name in at.columns if (at.model, at.format, at.engine, name) not in done]
            if one.reason is not None and missing:
                lines[(at.engine, at.model, at.format)] = (
                    f"{at.engine}, {at.model} {at.format}: no {', '.join(missing)}: {one.reason}"
                )
        return list(lines.values())

    def others_cores(self) -> Sequence[float]:
        """For each process that gave figures, the cores that others kept busy."""
        return [one.others_cores for one in self.measured if one.figures]
