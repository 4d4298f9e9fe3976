"""The README's table: Headrace and the best peer, between two markers, written from the same record as the page."""

from __future__ import annotations

import re

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.models import MODELS
from benchmarks.peers.page import USUAL_ROUNDS, facts_line
from benchmarks.peers.peers import BY_NAME, HEADRACE
from benchmarks.peers.plan import CLOSE_RACE
from benchmarks.peers.record import Record
from benchmarks.peers.work_items import COLUMNS

BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"
SHOWN = ("prefill", "decode1", "decode8", "decode32", "startup")


def readme_block(record: Record) -> str:
    """The text between the markers: the ratios, and the run they are from."""
    comparison = Comparison.of(record.samples())
    lines = [
        f"| | {' | '.join(COLUMNS[name].heading for name in SHOWN)} |",
        "|---" * (len(SHOWN) + 1) + "|",
    ]
    for model in comparison.models():
        for format_ in comparison.formats(model):
            cells = [_cell(comparison, model, format_, name) for name in SHOWN]
            if any(cells):
                lines.append(f"| {model}, {format_} | {' | '.join(cells)} |")
    shapes = ", ".join(f"`{name}` has the shape of {MODELS[name]}" for name in comparison.models())
    return (
        "\n".join(lines)
        + "\n\nHow many times better Headrace is than the named engine, the best one whose weights have the same size;"
        f"\n{shapes}. {_rounds(comparison)}"
        f"\nMachine and day: {facts_line(record)}."
        "\nFigures, limits and missing engines are in [docs/results.md](docs/results.md)."
    )


def write_into(readme: str, record: Record) -> str:
    """The README with the block of this record. Raises ValueError where a marker is missing."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1:
        raise ValueError(f"the README needs the lines {BEGIN} and {END} once each")
    return _BLOCK.sub(lambda _: f"{BEGIN}\n{readme_block(record)}\n{END}", readme)


def block_of(readme: str) -> str:
    """The text of a README between the markers."""
    found = _BLOCK.search(readme)
    if found is None:
        raise ValueError(f"there is no {BEGIN} … {END}")
    return found[1].strip()


_BLOCK = re.compile(f"{re.escape(BEGIN)}(.*?){re.escape(END)}", re.DOTALL)


def _cell(comparison: Comparison, model: str, format_: str, column: str) -> str:
    """The ratio and the peer; in brackets the rounds of the figure with fewer, where that is less than usual."""
    found = comparison.ratio(model, format_, column)
    if found is None:
        return ""
    times, best = found
    pair = ((model, format_, HEADRACE.name, column), (model, best.format, best.engine, column))
    rounds = min(comparison.counts[at] for at in pair)
    mark = f" ({rounds})" if rounds < USUAL_ROUNDS else ""
    return f"{times:.2f} x {BY_NAME[best.engine].title}{mark}"


def _rounds(comparison: Comparison) -> str:
    """What the figures are medians of."""
    close = [
        count
        for (_, format_, engine, column), count in comparison.counts.items()
        if engine == HEADRACE.name and (format_, column) == CLOSE_RACE
    ]
    text = f"Medians of {USUAL_ROUNDS} interleaved rounds"
    if close and min(close) > USUAL_ROUNDS:
        text += f", {min(close)} for bf16 at B=1"
    return f"{text}; ratios marked (2) or (1) are of two rounds or one."
