"""What was measured beside what was predicted, and the errors of many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.plan.report import table

Lines = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Prediction:
    """figure: "TPOT", "TTFT" or "tokens/s", with its share of requests where it is not a median. Times in seconds.

    formula: of the plain roofline: all bytes, or all operations, at the machine's measured full rates. corrected: by
    the ratios of measured to predicted time of another run, by kind of step, as a running engine corrects them
    (`sim.online`).
    """

    model: str
    format: str
    load: str
    figure: str
    measured: float
    predicted: float
    formula: float
    corrected: float | None = None

    @property
    def error(self) -> float:
        """The share by which the prediction is too large."""
        return self.predicted / self.measured - 1

    @property
    def formula_error(self) -> float:
        return self.formula / self.measured - 1

    @property
    def corrected_error(self) -> float | None:
        return None if self.corrected is None else self.corrected / self.measured - 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rows_lines(rows: Sequence[Prediction]) -> Lines:
    """The head and a line of every row."""
    lines: Lines = [
        ("model", "format", "load", "figure", "measured", "predicted", "error", "corrected", "formula")
    ]
    for row in rows:
        lines.append(
            (
                row.model, row.format, row.load, row.figure, _shown(row, row.measured),
                _shown(row, row.predicted), f"{row.error:+.0%}",
                "" if row.corrected_error is None else f"{row.corrected_error:+.0%}", f"{row.formula_error:+.0%}",
            )
        )  # fmt: skip
    return lines


def summary_lines(rows: Sequence[Prediction]) -> Lines:
    """The head, and absolute errors by figure and by model: median and the largest of nine tenths of the rows."""
    groups: dict[str, list[Prediction]] = {}
    for row in rows:
        for name in (row.figure, f"{row.model} {row.format}", "all"):
            groups.setdefault(name, []).append(row)
    lines: Lines = [("rows", "count", "median error", "p90", "corrected", "p90", "formula's median", "p90")]
    for name, group in groups.items():
        errors = [row.error for row in group]
        corrected = [one for row in group if (one := row.corrected_error) is not None]
        plain = [row.formula_error for row in group]
        lines.append((name, str(len(group)), *_shares(errors), *_shares(corrected), *_shares(plain)))
    return lines


def text(rows: Sequence[Prediction]) -> str:
    """All rows, and the errors of groups of them, for a terminal."""
    both = (rows_lines(rows), frozenset(range(4, 9))), (summary_lines(rows), frozenset(range(1, 8)))
    return "\n\n".join(table(lines, right=right) for lines, right in both)


def markdown(rows: Sequence[Prediction]) -> str:
    """The same as two Markdown tables, the errors of groups first."""
    both = (summary_lines(rows), 1), (rows_lines(rows), 4)
    return "\n".join(_markdown_table(lines, words) for lines, words in both)


def _markdown_table(lines: Lines, words: int) -> str:
    """Its first columns, so many, are words; the others are numbers."""
    sides = ["---"] * words + ["---:"] * (len(lines[0]) - words)
    shown = (lines[0], sides, *lines[1:])
    return "".join("| " + " | ".join(line) + " |\n" for line in shown)


def _shares(errors: Sequence[float]) -> tuple[str, str]:
    """Median and 90th percentile of the absolute errors; nothing of no errors."""
    sizes = [abs(error) for error in errors]
    return (f"{quantile(sizes, 0.5):.1%}", f"{quantile(sizes, 0.9):.1%}") if sizes else ("", "")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def _shown(row: Prediction, value: float) -> str:
    if "/s" in row.figure:
        return f"{value:,.1f}"
    return f"{value * 1e3:,.2f} ms" if value < 1 else f"{value:,.2f} s"
