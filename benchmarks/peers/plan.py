"""The measurements of a run and their order: engines that are compared take turns in every round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.drivers.driving import ONCE
from benchmarks.peers.peers import FORMATS, ONLY, Peer

CLOSE_RACE = ("bf16", "decode1")
"""Format and column whose rounds are never skipped: engines there differ by less than a machine's noise."""


@dataclass(frozen=True, slots=True)
class Group:
    """Engines that run one model in one format: they are loaded together and take turns."""

    model: str
    format: str
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often a cell is measured: `close` times in CLOSE_RACE, else up to `usual` times as its budget allows."""

    usual: int = 3
    close: int = 5

    def of(self, format_: str, column: str) -> int:
        """Most rounds of a cell. Peak memory does not change between rounds and has one."""
        if column == "memory":
            return 1
        return self.close if (format_, column) == CLOSE_RACE else self.usual

    def is_spared(self, round_: int, format_: str, column: str) -> bool:
        """Whether this round may be left out to save time."""
        return round_ > 1 and (format_, column) != CLOSE_RACE


@dataclass(frozen=True, slots=True)
class Planned:
    """One measurement."""

    round: int
    model: str
    format: str
    engine: str
    column: str

    @property
    def cell(self) -> tuple[str, str, str, str]:
        """(model, format, engine, column), which has a figure for every round."""
        return (self.model, self.format, self.engine, self.column)


def groups(
    engines: Sequence[Peer], models: Sequence[str], formats: Sequence[str] = FORMATS
) -> Iterator[Group]:
    """Every model in every format that an engine runs it in."""
    for model in models:
        for format_ in formats:
            names = tuple(peer.name for peer in engines if format_ in peer.formats)
            if names and model in ONLY.get(format_, (model,)):
                yield Group(model, format_, names)


def turns(
    group: Group, columns: Sequence[str], rounds: Rounds, skipped: Mapping[str, Sequence[str]]
) -> Iterator[Planned]:
    """Every measurement of a group, in order. `skipped`: engine -> columns that it is spared.

    Engines are measured directly after each other, in reversed order in every second round, because a machine gets
    slower and faster over minutes.
    """
    ordered = [*(name for name in ONCE if name in columns), *(name for name in columns if name not in ONCE)]
    for round_ in range(1, max(rounds.usual, rounds.close) + 1):
        turn = group.engines if round_ % 2 else tuple(reversed(group.engines))
        for column in ordered:
            if round_ > rounds.of(group.format, column):
                continue
            for engine in turn:
                if column not in skipped.get(engine, ()):
                    yield Planned(round_, group.model, group.format, engine, column)
