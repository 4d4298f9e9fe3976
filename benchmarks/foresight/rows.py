"""What was measured beside what was predicted, and the errors of many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.plan.report import table


@dataclass(frozen=True, slots=True)
class Prediction:
    """figure: "TPOT", "TTFT" or "tokens/s", with its share of requests where it is no median. Times in seconds.

    formula: of the plain roofline: all bytes, or all operations, at the machine's measured full rates.
    """

    model: str
    format: str
    load: str
    figure: str
    measured: float
    predicted: float
    formula: float

    @property
    def error(self) -> float:
        """The share by which the prediction is too large."""
        return self.predicted / self.measured - 1

    @property
    def formula_error(self) -> float:
        return self.formula / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rows_table(rows: Sequence[Prediction]) -> str:
    """Every row."""
    lines = [("model", "format", "load", "figure", "measured", "predicted", "error", "formula")]
    for row in rows:
        lines.append(
            (
                row.model, row.format, row.load, row.figure, _shown(row, row.measured),
                _shown(row, row.predicted), f"{row.error:+.0%}", f"{row.formula_error:+.0%}",
            )
        )  # fmt: skip
    return table(lines, right=frozenset({4, 5, 6, 7}))


def summary(rows: Sequence[Prediction]) -> str:
    """Absolute errors by figure and by model: median and the largest of nine tenths of the rows."""
    groups: dict[str, list[Prediction]] = {}
    for row in rows:
        for name in (row.figure, f"{row.model} {row.format}", "all"):
            groups.setdefault(name, []).append(row)
    lines = [("rows", "count", "median error", "p90", "formula's median", "formula's p90")]
    for name, group in groups.items():
        own, plain = ([abs(one) for one in errors] for errors in _errors(group))
        lines.append(
            (
                name, str(len(group)), f"{quantile(own, 0.5):.1%}", f"{quantile(own, 0.9):.1%}",
                f"{quantile(plain, 0.5):.1%}", f"{quantile(plain, 0.9):.1%}",
            )
        )  # fmt: skip
    return table(lines, right=frozenset(range(1, 6)))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def _errors(rows: Sequence[Prediction]) -> tuple[list[float], list[float]]:
    return [row.error for row in rows], [row.formula_error for row in rows]


def _shown(row: Prediction, value: float) -> str:
    if "/s" in row.figure:
        return f"{value:,.1f}"
    return f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"
