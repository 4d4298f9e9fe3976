"""Which processes a run starts, and in which order: engines that are compared take turns, round after round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.peers import FORMATS, Peer

START_COLUMNS = ("startup", "memory")
"""Measured in a process of their own, with the small KV cache; every other column finds the model loaded."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One process."""

    round: int
    model: str
    format: str
    engine: str
    columns: tuple[str, ...]

    @property
    def key(self) -> tuple[int, str, str, str, tuple[str, ...]]:
        """What makes it that process and no other, so that a run can be gone on with."""
        return (self.round, self.model, self.format, self.engine, self.columns)


def plan(
    engines: Sequence[Peer],
    *,
    models: Sequence[str],
    formats: Sequence[str] = FORMATS,
    columns: Sequence[str],
    rounds: int,
    fresh: bool = False,
) -> Iterator[Planned]:
    """Every process of a run, in order.

    Engines of one format run directly after each other, in turned order in every second round, because a machine
    gets slower and faster over minutes. `fresh` gives each column a process of its own, start-up excepted.
    """
    for round_ in range(1, rounds + 1):
        turn = list(engines) if round_ % 2 else list(reversed(engines))
        for model in models:
            for format_ in formats:
                for group in _processes(columns, fresh):
                    for peer in turn:
                        if format_ in peer.formats:
                            yield Planned(round_, model, format_, peer.name, group)


def _processes(columns: Sequence[str], fresh: bool) -> Iterator[tuple[str, ...]]:
    start = tuple(column for column in START_COLUMNS if column in columns)
    speed = tuple(column for column in columns if column not in START_COLUMNS)
    if start:
        yield start
    if fresh:
        yield from ((column,) for column in speed)
    elif speed:
        yield speed


def without(
    columns: Sequence[str], engine: str, skipped: Mapping[str, Sequence[str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(columns that this engine runs, columns that the user left out for it)."""
    left_out = skipped.get(engine, ())
    return (
        tuple(column for column in columns if column not in left_out),
        tuple(column for column in columns if column in left_out),
    )
