"""Two reports side by side: which figures differ, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.bench.metrics import METRICS
from headrace.bench.report import Label, Report, Row
from headrace.bench.technique_report.sections import SECTION, SECTIONS
from headrace.errors import ConfigError
from headrace.plan.report import table

_CHANGING = ("change", "against", "tokens_measured")
"""Labels that say more about a row, and do not name it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one row in both reports."""

    section: str
    row: str
    metric: str
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """after / before; None where before is zero."""
        return self.after / self.before if self.before else None


def differences(before: Report, after: Report) -> list[Difference]:
    """Of every figure that both have. Raises ConfigError where they have no row in common."""
    old = {_name(row): row for row in before.rows}
    found = [one for row in after.rows if _name(row) in old for one in _of_row(old[_name(row)], row)]
    if not found:
        raise ConfigError(
            "the two reports have no row in common: give two that `headrace bench report` wrote"
        )
    return found


def render(before: Report, after: Report) -> str:
    """The first metric of each section by row, with its ratio, as aligned text."""
    leading = {key: section.columns[0] for key, section in SECTIONS.items() if section.columns}
    lines = [("section", "row", "figure", "before", "after", "ratio")]
    for one in differences(before, after):
        if leading.get(one.section) == one.metric:
            show = METRICS[one.metric].show
            ratio = "-" if one.ratio is None else f"{one.ratio:.2f} x"
            lines.append(
                (one.section, one.row, METRICS[one.metric].heading, show(one.before), show(one.after), ratio)
            )
    return "\n".join(
        [
            f"before: {before.machine.describe()}, {before.created}",
            f"after:  {after.machine.describe()}, {after.created}",
            "",
            table(lines, right=frozenset({3, 4, 5})),
        ]
    )


def _of_row(before: Row, after: Row) -> Iterator[Difference]:
    name = ", ".join(
        str(value) for key, value in after.labels.items() if key != SECTION and key not in _CHANGING
    )
    for metric, value in after.values.items():
        if metric in before.values and metric in METRICS:
            yield Difference(str(after.labels.get(SECTION, "")), name, metric, before.values[metric], value)


def _name(row: Row) -> tuple[tuple[str, Label], ...]:
    return tuple((key, value) for key, value in row.labels.items() if key not in _CHANGING)
