"""A report as a plot: measured values with the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.bench.metrics import METRICS
from headrace.bench.quality.eviction import draw_budgets
from headrace.bench.quality.quantization import draw_pareto
from headrace.bench.report import Report, Row
from headrace.bench.serving.plot import draw_rates
from headrace.errors import ConfigError, MissingDependency
from headrace.extras import install_command

_DRAWN = (
    "decode_tokens_per_s", "output_tokens_per_s", "prefill_tokens_per_s", "bytes_per_s", "perplexity", "seconds"
)  # fmt: skip
"""The metric that is drawn: the first of these that a row has."""
_TIMES = {"profile": "seconds", "overhead": "seconds"}
"""Kinds whose rows are parts of one time."""
_PHASES = ("launch_s", "import_s", "config_s", "load_s", "first_token_s")
_FORMATS = ("png", "svg", "pdf")


def check_plot(path: str) -> Any:
    """matplotlib's Figure. Raises ConfigError for an unknown format, MissingDependency without matplotlib."""
    if not path.endswith(tuple(f".{name}" for name in _FORMATS)):
        raise ConfigError(f"a plot is written as {', '.join(_FORMATS)}; {path!r:.200} is none of them")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("--plot needs matplotlib", install_command("bench")) from None
    return Figure


def plot_report(report: Report, path: str) -> None:
    """Draw the rows as bars. Raises what `check_plot` raises, and ConfigError where nothing can be drawn or written."""
    Figure = check_plot(path)
    if report.kind == "serve":
        save(draw_rates(Figure, report), path)
        return
    if report.kind == "quantization":
        save(draw_pareto(Figure, report.rows), path)
        return
    if report.kind == "eviction":
        save(draw_budgets(Figure, report.rows), path)
        return
    phases = [row for row in report.rows if "startup_s" in row.values]
    bars = [(row, name) for row in report.rows if (name := _drawn(report.kind, row)) is not None]
    if not phases and not bars:
        raise ConfigError(f"there is nothing to draw in a {report.kind} report")
    rows = phases or [row for row, _ in bars]
    figure = Figure(figsize=(8.0, 1.4 + 0.34 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    if phases:
        _draw_phases(axes, phases)
    else:
        _draw_bars(axes, bars)
    axes.set_yticks(range(len(rows)), [_name(row) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_title(
        f"{report.kind}: {report.config.get('model', '')} on {report.machine.describe()}", fontsize=9
    )
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def save(figure: Any, path: str) -> None:
    """Write a matplotlib figure. Raises ConfigError."""
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise ConfigError(f"the plot cannot be written to {path}: {error.strerror}") from None


def _draw_bars(axes: Any, bars: Sequence[tuple[Row, str]]) -> None:
    """Measured values, with a mark at the roofline."""
    values = [row.values[name] for row, name in bars]
    drawn = axes.barh(range(len(bars)), values, height=0.6, color="#3b7ea1")
    shown = [METRICS[name].show(row.values[name]) for row, name in bars]
    axes.bar_label(drawn, shown, padding=4, fontsize=8)
    marked = False
    for at, (row, name) in enumerate(bars):
        fraction = row.values.get("fraction")
        if fraction:
            limit = row.values[name] * fraction if METRICS[name].unit == "s" else row.values[name] / fraction
            axes.plot([limit] * 2, [at - 0.4, at + 0.4], color="#c4572e", lw=2)
            marked = True
    headings = ", ".join(dict.fromkeys(f"{METRICS[name].heading} ({METRICS[name].unit})" for _, name in bars))
    axes.set_xlabel(headings + ("; mark: roofline" if marked else ""))
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
    axes.figure.legend(fontsize=8, frameon=False, ncols=len(_PHASES), loc="outside lower center")


def _drawn(kind: str, row: Row) -> str | None:
    """The metric that is drawn of a row, or None."""
    names = (_TIMES[kind],) if kind in _TIMES else _DRAWN
    return next((name for name in names if name in row.values), None)


def _name(row: Row) -> str:
    labels = {key: value for key, value in row.labels.items() if key != "bound"}
    return ", ".join(value if isinstance(value, str) else f"{key} {value}" for key, value in labels.items())
