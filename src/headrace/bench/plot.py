"""A report as a picture: what was reached, beside the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.bench.metrics import METRICS
from headrace.bench.report import Report, Row
from headrace.errors import ConfigError, MissingDependency

_RATES = ("decode_tokens_per_s", "output_tokens_per_s", "prefill_tokens_per_s")
_PHASES = ("launch_s", "import_s", "config_s", "load_s", "first_token_s")
_FORMATS = ("png", "svg", "pdf")


def plot_report(report: Report, path: str) -> None:
    """Draw the rows as bars. Raises MissingDependency without matplotlib, ConfigError for a bad path."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("--plot needs matplotlib: pip install 'headrace[bench]'") from None
    if not path.endswith(tuple(f".{name}" for name in _FORMATS)):
        raise ConfigError(f"a plot is written as {', '.join(_FORMATS)}; {path!r:.200} is none of them")
    rows = [row for row in report.rows if _measure(row) or _phases(row)]
    if not rows:
        raise ConfigError(f"there is nothing to draw in a {report.kind} report")
    figure = Figure(figsize=(8.0, 1.2 + 0.45 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    if _phases(rows[0]):
        _draw_phases(axes, rows)
    else:
        _draw_rates(axes, rows)
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows])
    axes.invert_yaxis()
    axes.set_title(
        f"{report.kind}: {report.config.get('model', '')} on {report.machine.describe()}", fontsize=9
    )
    axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"the plot cannot be written to {path}: {error.strerror}") from None


def _draw_rates(axes: Any, rows: Sequence[Row]) -> None:
    """Bars of what was reached, with a tick where the roofline is."""
    names = [_measure(row) or _RATES[0] for row in rows]
    values = [row.values.get(name, 0.0) for row, name in zip(rows, names, strict=True)]
    bars = axes.barh(range(len(rows)), values, height=0.6, color="#3b7ea1")
    shown = [METRICS[name].show(value) for name, value in zip(names, values, strict=True)]
    axes.bar_label(bars, shown, padding=4, fontsize=8)
    for at, (row, value) in enumerate(zip(rows, values, strict=True)):
        fraction = row.values.get("fraction")
        if fraction:
            axes.plot([value / fraction] * 2, [at - 0.4, at + 0.4], color="#c4572e", lw=2)
    headings = dict.fromkeys(METRICS[name].heading for name in names)
    axes.set_xlabel(f"{', '.join(headings)}; mark: roofline")
    axes.set_xlim(left=0)
    axes.margins(x=0.12)


def _draw_phases(axes: Any, rows: Sequence[Row]) -> None:
    """Start-up: one bar a row, its phases one after the other."""
    left = [0.0] * len(rows)
    for name in _PHASES:
        widths = [row.values.get(name, 0.0) for row in rows]
        axes.barh(range(len(rows)), widths, left=left, height=0.6, label=METRICS[name].heading)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel("seconds since the launch")
    axes.legend(fontsize=8, frameon=False)


def _measure(row: Row) -> str | None:
    """What to draw of a row: its rate, or the seconds and operations where there is none."""
    return next((name for name in (*_RATES, "bytes_per_s", "seconds") if name in row.values), None)


def _phases(row: Row) -> bool:
    return "startup_s" in row.values


def _name(row: Row) -> str:
    return ", ".join(
        f"{key} {value}" if not isinstance(value, str) else value for key, value in row.labels.items()
    )
