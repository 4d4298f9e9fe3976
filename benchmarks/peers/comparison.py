"""Compares figures: medians of each engine, the best peer of each column, the ratio with it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.peers.models import MODELS
from benchmarks.peers.peers import BY_NAME, ENGINES, FORMATS, HEADRACE
from benchmarks.peers.work_items import COLUMNS

Samples = Mapping[tuple[str, str, str, str], Sequence[float]]
"""(model, format, engine, column) -> figures, one a round."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best peer of a column."""

    engine: str
    format: str
    figure: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """All medians of a run."""

    medians: Mapping[tuple[str, str, str, str], float]
    counts: Mapping[tuple[str, str, str, str], int]  # figures that each median is of

    @classmethod
    def of(cls, samples: Samples) -> Comparison:
        """From the figures of every round."""
        return cls(
            {cell: statistics.median(values) for cell, values in samples.items()},
            {cell: len(values) for cell, values in samples.items()},
        )

    def models(self) -> list[str]:
        """Models with figures, in the order of MODELS."""
        found = {model for model, _, _, _ in self.medians}
        return [model for model in MODELS if model in found]

    def formats(self, model: str) -> list[str]:
        """Formats with figures of a model."""
        found = {format_ for name, format_, _, _ in self.medians if name == model}
        return [format_ for format_ in FORMATS if format_ in found]

    def columns(self, model: str) -> list[str]:
        """Columns with figures of a model."""
        found = {column for name, _, _, column in self.medians if name == model}
        return [column for column in COLUMNS if column in found]

    def engines(self, model: str, format_: str) -> list[str]:
        """Engines with figures of a model and format, Headrace first."""
        found = {engine for name, kind, engine, _ in self.medians if (name, kind) == (model, format_)}
        return [peer.name for peer in ENGINES if peer.name in found]

    def figure(self, model: str, format_: str, engine: str, column: str) -> float | None:
        """One median, None where it is missing."""
        return self.medians.get((model, format_, engine, column))

    def best_peer(self, model: str, column: str, format_: str | None = None) -> Best | None:
        """The best of the other engines in a format, or in any; None where no peer has the figure."""
        found = [
            Best(engine, kind, value)
            for (name, kind, engine, at), value in self.medians.items()
            if (name, at) == (model, column) and engine != HEADRACE.name and format_ in (None, kind)
        ]
        if not found:
            return None
        best = min if COLUMNS[column].lower_is_better else max
        return best(found, key=lambda one: one.figure)

    def ratio(
        self, model: str, format_: str, column: str, *, any_format: bool = False
    ) -> tuple[float, Best] | None:
        """(how many times better Headrace is than the best peer, that peer), None where either is missing."""
        ours = self.figure(model, format_, HEADRACE.name, column)
        best = self.best_peer(model, column, None if any_format else format_)
        if ours is None or best is None:
            return None
        return (better(column, ours, best.figure), best)


def better(column: str, ours: float, theirs: float) -> float:
    """How many times better `ours` is; above 1 is better whatever the column counts."""
    return theirs / ours if COLUMNS[column].lower_is_better else ours / theirs


def title_of(engine: str, format_: str) -> str:
    """An engine with its own name of the format."""
    peer = BY_NAME[engine]
    return f"{peer.title}, {peer.formats[format_]}"
