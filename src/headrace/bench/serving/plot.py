"""Latency over the rate of requests, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.bench.report import Report, Row
from headrace.errors import ConfigError

_PANELS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "end to end"))
_COLORS = (("p50", "#3b7ea1"), ("p90", "#8a6bbe"), ("p99", "#c4572e"))


def draw_rates(make_figure: Any, report: Report) -> Any:
    """A matplotlib figure: a panel for each latency, and one for answers and refusals, over the rate.

    Raises ConfigError for a report without an answered request.
    """
    rows = [row for row in report.rows if "ttft_p50_s" in row.values]
    if not rows:
        raise ConfigError("there is nothing to draw: no request was answered")
    figure = make_figure(figsize=(11.0, 3.2), layout="constrained")
    panels = figure.subplots(1, len(_PANELS) + 1)
    for axes, (name, heading) in zip(panels, _PANELS, strict=False):
        _draw_latency(axes, rows, name, heading)
    _draw_answers(panels[-1], rows)
    for axes in panels:
        axes.set_xticks(range(len(rows)), [_tick(row) for row in rows], fontsize=8)
        axes.set_xlabel("requests a second, sent" if "rate" in rows[0].labels else "clients", fontsize=8)
        axes.tick_params(axis="y", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    config = report.config
    figure.suptitle(
        f"{config.get('model', '')} at {config.get('base_url', '')}, client on {report.machine.describe()}",
        fontsize=9,
    )
    return figure


def _draw_latency(axes: Any, rows: Sequence[Row], name: str, heading: str) -> None:
    drawn = 0.0
    for share, color in _COLORS:
        points = [(at, row.values.get(f"{name}_{share}_s")) for at, row in enumerate(rows)]
        known = [(at, value * 1e3) for at, value in points if value is not None]
        axes.plot(
            *zip(*known, strict=True), "o-", ms=3.5, lw=1.3, color=color, label=share
        ) if known else None
        drawn = max([drawn, *(value for _, value in known)])
    axes.set_title(f"{heading} (ms)", fontsize=9)
    axes.set_ylim(0, drawn * 1.1 or 1)
    axes.legend(fontsize=7, frameon=False, loc="upper left")


def _draw_answers(axes: Any, rows: Sequence[Row]) -> None:
    shown = (("requests_per_s", "answered", "#3b7ea1"), ("goodput_per_s", "within SLO", "#4a9a5d"))
    for name, label, color in shown:
        if all(name in row.values for row in rows):
            axes.plot([row.values[name] for row in rows], "o-", ms=3.5, lw=1.3, color=color, label=label)
    lost = [(row.values["refused"] + row.values["failed"]) / row.values["wall_s"] for row in rows]
    if any(lost):
        axes.plot(lost, "o--", ms=3.5, lw=1.3, color="#c4572e", label="refused, failed")
    axes.set_title("requests a second", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False, loc="upper left")


def _tick(row: Row) -> str:
    label = row.labels.get("rate", row.labels.get("clients", ""))
    return f"{label:g}" if isinstance(label, int | float) else label
