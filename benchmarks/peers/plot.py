"""The results as a picture: one panel a model and column, one bar an engine, a mark at the machine's limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.peers.comparison import Comparison, title_of
from benchmarks.peers.page import facts_line, limits_of
from benchmarks.peers.peers import ENGINES
from benchmarks.peers.record import Record
from benchmarks.peers.work_items import COLUMNS
from headrace.bench.metrics import METRICS

_COLOURS = dict(
    zip(
        (peer.name for peer in ENGINES),
        ("#c4572e", "#3b7ea1", "#6fb3d2", "#a9cfe0", "#7a9e3f", "#8c6bb1", "#c9a227", "#9a9a9a"),
        strict=True,
    )
)
_LIMIT_COLOUR = "#222222"
_GAP = 0.7  # between the bars of two formats


def draw(record: Record, path: Path) -> None:
    """Draw every rate of the run; nothing is drawn of models without one."""
    comparison = Comparison.of(record.samples())
    panels = [
        (model, [name for name in comparison.columns(model) if not COLUMNS[name].lower_is_better])
        for model in comparison.models()
    ]
    panels = [(model, columns) for model, columns in panels if columns]
    if not panels:
        raise ValueError("the run holds no rate to draw")
    widest = max(len(columns) for _, columns in panels)
    # Text as outlines and fixed ids: the file looks the same everywhere and changes only with the figures.
    with matplotlib.rc_context({"svg.hashsalt": "headrace"}):
        figure = Figure(figsize=(2.6 * widest + 1.6, 3.4 * len(panels) + 0.4), layout="constrained")
        grid: Any = figure.subplots(len(panels), widest, squeeze=False)
        for row, (model, columns) in zip(grid, panels, strict=True):
            limits = {format_: limits_of(record, model, format_) for format_ in comparison.formats(model)}
            for at, axes in enumerate(row):
                if at >= len(columns):
                    axes.set_visible(False)
                    continue
                _panel(axes, comparison, model, columns[at], limits, labelled=at == 0)
        figure.suptitle(f"{facts_line(record)}; tokens a second, mark: limit of the machine", fontsize=9)
        figure.savefig(path, metadata={"Date": None})


def _panel(
    axes: Any, comparison: Comparison, model: str, column: str, limits: dict[str, Any], *, labelled: bool
) -> None:
    height, names, places = 0.0, [], []
    show = METRICS[COLUMNS[column].metric].show
    for format_ in comparison.formats(model):
        for engine in comparison.engines(model, format_):
            value = comparison.figure(model, format_, engine, column)
            names.append(title_of(engine, format_))
            places.append(height)
            bar = axes.barh(height, value or 0.0, height=0.8, color=_COLOURS[engine])
            axes.bar_label(bar, [show(value) if value else "missing"], padding=3, fontsize=7)
            height += 1
        if (limit := limits[format_].get(column)) is not None:
            engines = len(comparison.engines(model, format_))
            axes.vlines(limit, height - engines - 0.4, height - 0.6, color=_LIMIT_COLOUR, lw=1.5)
        height += _GAP
    axes.set_yticks(places, names if labelled else [""] * len(names), fontsize=7)
    axes.set_title(f"{model}, {COLUMNS[column].heading}", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.22)
    axes.spines[["top", "right"]].set_visible(False)
