"""The pictures of the report, as SVG in the colours of the page around them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headrace.bench.metrics import METRICS
from headrace.bench.report import Report, Row
from headrace.bench.technique_report.attention import MATERIALISED, TILED
from headrace.bench.technique_report.sections import rows_of

INK, MAIN, SECOND, THIRD = "#010203", "#2f7ea8", "#c4572e", "#5b8c3a"
"""INK stands for the colour of the text around the picture."""
WIDTH = 7.2


def draw(report: Report, key: str) -> str:
    """A section's picture as an SVG element, or "" where nothing was measured. Needs matplotlib."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    drawing = _DRAWINGS[key]
    rows = rows_of(report, "batch" if key == "roofline" else key)
    if not rows:
        return ""
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": key, "font.size": 9, "axes.linewidth": 0.6, **dict.fromkeys(inked, INK)
    }  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
        if not drawing(axes, report, rows):
            return ""
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue(), key)


def _inline(text: str, key: str) -> str:
    """The SVG element alone, with ids of its own, as wide as its place."""
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{key}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return svg.replace(INK, "currentColor").strip()


def _techniques(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    axes.figure.set_size_inches(WIDTH, 0.9 + 0.3 * len(rows))
    values = [row.values["output_tokens_per_s"] for row in rows]
    bars = axes.barh(range(len(rows)), values, height=0.6, color=MAIN)
    axes.bar_label(bars, [_speed(row) for row in rows], padding=4)
    for at, row in enumerate(rows):
        predicted = row.values.get("predicted_tokens_per_s")
        if predicted:
            axes.plot([predicted] * 2, [at - 0.4, at + 0.4], color=SECOND, lw=2)
    axes.set_yticks(range(len(rows)), [str(row.labels["technique"]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("output tokens a second; x: over the row it is compared with; mark: predicted")
    axes.margins(x=0.2)
    return True


def _speed(row: Row) -> str:
    gain = f"  {row.values['gain']:.2f} x" if "gain" in row.values else ""
    return METRICS["output_tokens_per_s"].show(row.values["output_tokens_per_s"]) + gain


def _chunking(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    axes.figure.set_size_inches(WIDTH, 1.1 + 0.5 * len(rows))
    for name, colour, shift in (("itl_p50_s", MAIN, -0.2), ("itl_p99_s", SECOND, 0.2)):
        values = [row.values[name] * 1e3 for row in rows]
        bars = axes.barh(
            [at + shift for at in range(len(rows))],
            values,
            height=0.36,
            color=colour,
            label=METRICS[name].heading,
        )
        axes.bar_label(bars, [METRICS[name].show(row.values[name]) for row in rows], padding=4)
    axes.set_yticks(range(len(rows)), [str(row.labels["prompts"]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds between two tokens of a stream")
    axes.margins(x=0.15)
    axes.legend(frameon=False)
    return True


def _batch(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    batches = [int(row.labels["batch"]) for row in rows]
    axes.plot(
        batches, [row.values["decode_tokens_per_s"] for row in rows], "o-", color=MAIN, label="measured"
    )
    for name, colour, label in (
        ("predicted_tokens_per_s", SECOND, "cost model"), ("limit_tokens_per_s", THIRD, "roofline"),
    ):  # fmt: skip
        found = [
            (batch, row.values[name]) for batch, row in zip(batches, rows, strict=True) if name in row.values
        ]
        if found:
            axes.plot(*zip(*found, strict=True), "--", color=colour, label=label)
    _powers(axes, batches, "sequences in a step")
    axes.set_yscale("log")
    axes.set_ylabel("decoded tokens a second")
    axes.legend(frameon=False)
    return True


def _roofline(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    limits = report.roofline
    if limits is None:
        return False
    bandwidth = max(limits["read_bytes_per_s"]["best"], limits["read_one_thread_bytes_per_s"]["best"])
    points = [(f"B={row.labels['batch']}", row, MAIN) for row in rows]
    points += [(f"prompt {row.labels['prompt']}", row, THIRD) for row in rows_of(report, "prefill")]
    drawn = [
        (
            name,
            row.values["operations_per_s"] / row.values["bytes_per_s"],
            row.values["operations_per_s"] / 1e9,
            colour,
        )
        for name, row, colour in points
        if row.values.get("bytes_per_s") and "operations_per_s" in row.values
    ]
    if not drawn:
        return False
    low, high = min(each[1] for each in drawn) / 2, max(each[1] for each in drawn) * 4
    for name, peak in limits["peak_operations_per_s"].items():
        top = peak["best"]
        bend = top / bandwidth
        axes.plot(
            [low, bend, max(high, bend * 2)],
            [low * bandwidth / 1e9, top / 1e9, top / 1e9],
            color=INK,
            lw=0.8,
            alpha=0.6,
        )
        axes.annotate(
            name, (max(high, bend * 2), top / 1e9), xytext=(2, 2), textcoords="offset points", ha="right"
        )
    for name, intensity, rate, colour in drawn:
        axes.plot([intensity], [rate], "o", color=colour, ms=5)
        axes.annotate(name, (intensity, rate), xytext=(5, -9), textcoords="offset points", fontsize=8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("GFLOP/s")
    return True


def _attention(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    for way, colour in ((MATERIALISED, SECOND), (TILED, MAIN)):
        chosen = [row for row in rows if row.labels["scores"] == way]
        done = [row for row in chosen if "seconds" in row.values]
        tokens = [int(row.labels["tokens"]) for row in chosen]
        axes.plot(
            tokens,
            [max(1.0, row.values["peak_bytes"] / 2**20) for row in chosen],
            "o-",
            color=colour,
            label=way,
        )
        for row in chosen:
            if row not in done:
                axes.annotate(
                    "not run", (int(row.labels["tokens"]), row.values["peak_bytes"] / 2**20), xytext=(-4, 6),
                    textcoords="offset points", ha="right", fontsize=8,
                )  # fmt: skip
    _powers(axes, sorted({int(row.labels["tokens"]) for row in rows}), "tokens of the prompt")
    axes.set_yscale("log")
    axes.set_ylabel("peak memory, MiB")
    axes.legend(frameon=False)
    return True


def _prefix(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    for name, colour in (("computed", SECOND), ("prefix hit", MAIN)):
        chosen = [row for row in rows if row.labels["prefix"] == name]
        axes.plot(
            [int(row.labels["prompt"]) for row in chosen], [row.values["ttft_p50_s"] * 1e3 for row in chosen], "o-",
            color=colour, label=name,
        )  # fmt: skip
    _powers(axes, sorted({int(row.labels["prompt"]) for row in rows}), "tokens of the prompt")
    axes.set_yscale("log")
    axes.set_ylabel("TTFT, milliseconds")
    axes.legend(frameon=False)
    return True


def _quality(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    axes.figure.set_size_inches(WIDTH, 0.9 + 0.35 * len(rows))
    bars = axes.barh(range(len(rows)), [row.values["kl"] for row in rows], height=0.55, color=MAIN)
    axes.bar_label(bars, [f"{row.values['kl']:.1e}" for row in rows], padding=4)
    axes.set_yticks(range(len(rows)), [str(row.labels["format"]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("KL divergence, nats a token")
    axes.margins(x=0.15)
    return True


def _kv_memory(axes: Any, report: Report, rows: Sequence[Row]) -> bool:
    axes.figure.set_size_inches(WIDTH, 0.9 + 0.35 * len(rows))
    bars = axes.barh(
        range(len(rows)), [row.values["token_bytes"] / 1024 for row in rows], height=0.55, color=MAIN
    )
    axes.bar_label(bars, [METRICS["token_bytes"].show(row.values["token_bytes"]) for row in rows], padding=4)
    axes.set_yticks(range(len(rows)), [f"{row.labels['attention']}: {row.labels['model']}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("KiB of keys and values a token")
    axes.margins(x=0.15)
    return True


def _powers(axes: Any, at: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(at), [f"{size:,}" for size in at])
    axes.minorticks_off()
    axes.set_xlabel(label)


_DRAWINGS: Mapping[str, Callable[[Any, Report, Sequence[Row]], bool]] = MappingProxyType(
    {
        "techniques": _techniques, "chunking": _chunking, "batch": _batch, "roofline": _roofline,
        "attention": _attention, "prefix": _prefix, "quality": _quality, "kv_memory": _kv_memory,
    }
)  # fmt: skip
