"""A plan as a picture: memory by format, and speed against the time between tokens, by batch."""

from __future__ import annotations

from typing import Any

from headrace.errors import ConfigError, MissingDependency
from headrace.extras import install_command
from headrace.plan.units import GIB
from headrace.sim.planner.formats import store
from headrace.sim.planner.memory import Footprint
from headrace.sim.planner.overview import Overview

_TYPES = ("png", "svg", "pdf")
_WEIGHTS, _ACTIVATIONS, _KV, _LIMIT = "#3b7ea1", "#8a9a5b", "#d8a657", "#c4572e"


def check_plot(path: str) -> Any:
    """matplotlib's Figure. Raises ConfigError for an unknown format, MissingDependency without matplotlib."""
    if not path.endswith(tuple(f".{name}" for name in _TYPES)):
        raise ConfigError(f"a plot is written as {', '.join(_TYPES)}; {path!r:.200} is none of them")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("--plot needs matplotlib", install_command("bench")) from None
    return Figure


def plot_overview(overview: Overview, path: str) -> None:
    """Draw it. Raises what `check_plot` raises, and ConfigError where the file cannot be written."""
    Figure = check_plot(path)
    shown = overview.shown
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_memory(left, overview)
    _draw_speed(right, overview)
    several = f"{shown.hardware.count} x " if shown.hardware.count > 1 else ""
    figure.suptitle(f"{shown.model.name} on {several}{shown.hardware.title}", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    try:
        figure.savefig(path, dpi=160)
    except OSError as error:
        raise ConfigError(f"the plot cannot be written to {path}: {error.strerror or error}") from error


def _draw_memory(axes: Any, overview: Overview) -> None:
    """What the fullest device holds with the most sequences of the load, or with one where not one fits."""
    shown, context = overview.shown, overview.question.traffic.context
    labels = []
    for at, row in enumerate(shown.formats):
        footprint = Footprint(
            store(shown.model, shown.hardware, row.format),
            shown.hardware,
            shown.placement,
            overview.question.eviction,
        )
        batch = max(1, footprint.largest_batch(context))
        start = 0.0
        for name, size, colour in (
            ("weights", footprint.weights, _WEIGHTS),
            ("activations", footprint.activations(batch), _ACTIVATIONS),
            ("KV", footprint.kv(batch, context), _KV),
        ):
            label = name if at == 0 else None
            axes.barh(at, size / GIB, left=start, height=0.6, color=colour, label=label)
            start += size / GIB
        labels.append(f"{row.label}, {row.batch} x {context}" if row.batch else f"{row.label}, 1 x {context}")
    axes.axvline(shown.hardware.memory / GIB, color=_LIMIT, lw=1.5, label="memory")
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("GiB of each device", fontsize=8)
    axes.legend(fontsize=8, frameon=False)


def _draw_speed(axes: Any, overview: Overview) -> None:
    points = overview.shown.points
    if not points:
        axes.text(0.5, 0.5, "no format fits", ha="center", transform=axes.transAxes)
        return
    times = [point.tpot_s * 1e3 for point in points]
    rates = [point.output_per_s for point in points]
    axes.plot(times, rates, marker="o", ms=4, color=_WEIGHTS)
    for point, x, y in zip(points, times, rates, strict=True):
        axes.annotate(str(point.batch), (x, y), xytext=(3, 4), textcoords="offset points", fontsize=7)
    if overview.question.promise.tpot_s is not None:
        axes.axvline(overview.question.promise.tpot_s * 1e3, color=_LIMIT, lw=1.5)
    axes.set_xlabel("TPOT (ms); numbers: batch", fontsize=8)
    axes.set_ylabel("output tokens a second of one copy", fontsize=8)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
