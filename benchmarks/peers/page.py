"""The results page: tables of figures, ratios and limits as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.comparison import Comparison, title_of
from benchmarks.peers.limits import limits, roofline_from_json
from benchmarks.peers.models import MODELS
from benchmarks.peers.peers import BY_NAME, HEADRACE
from benchmarks.peers.record import Record
from benchmarks.peers.work_items import COLUMNS, Sizes, sizes_from_json
from headrace.bench.metrics import METRICS
from headrace.bench.report import MachineFacts

PLOT = "results.svg"
NOISY_CORES = 0.1

Limits = Mapping[str, float]


def write_page(record: Record) -> str:
    """The whole page."""
    comparison = Comparison.of(record.samples())
    sizes = sizes_from_json(record.facts["settings"]["sizes"])
    parts = [_head(record, comparison, sizes)]
    for model in comparison.models():
        parts.append(f"## {model}\n\n{_about(model)}")
        for format_ in comparison.formats(model):
            parts.append(
                f"### {model}, {format_}\n\n{_table(comparison, model, format_, limits_of(record, model, format_))}"
            )
    if failures := record.failures():
        parts.append("## Missing\n\n" + "\n".join(f"- {line}" for line in failures))
    return "\n\n".join(parts) + "\n"


def limits_of(record: Record, model: str, format_: str) -> Limits:
    """Physical limits by column; empty where the run had no roofline."""
    roofline = record.facts["roofline"]
    if roofline is None:
        return {}
    sizes = sizes_from_json(record.facts["settings"]["sizes"])
    return limits(model, format_, sizes, roofline_from_json(roofline))


def _head(record: Record, comparison: Comparison, sizes: Sizes) -> str:
    facts = record.facts
    machine = MachineFacts(**{**facts["machine"], "flags": tuple(facts["machine"]["flags"])})
    roofline = facts["roofline"]
    limit = "not measured" if roofline is None else roofline_from_json(roofline).describe()
    count = comparison.rounds
    rounds = "one round, so no median" if count == 1 else f"medians of {count} rounds"
    versions = ", ".join(f"{name} {text}" for name, text in facts["versions"].items())
    return f"""# Beside other engines

This page is written by `make bench-peers` ([benchmarks/peers](../benchmarks/peers)). Figures of other machines
differ, and so do those of the same machine an hour later: only ratios within one run count.

- Machine: {machine.describe()}, {machine.system}. Instruction sets: {", ".join(machine.flags)}.
- Limits of this machine, measured at the start of the run: {limit}.
- Versions: {versions}. Run of {facts["created"]}.
- {facts["settings"]["threads"]} threads for every engine, which take turns; {rounds}.
- {_quiet(record.others_cores())}

{_columns(sizes)}

Weights are random (normal, deviation 0.02) and the same for every engine; prompts are token ids; decoding is
greedy and runs past any end of sequence; prefix caches are off. Prompts differ from those of the warm-up.
Compared are engines whose weights have the same size: bf16 with bf16, int8 with Q8_0, int4 with Q4_0.

![Figures of every engine with their limits]({PLOT})"""


def _quiet(others: Sequence[float]) -> str:
    busy = [cores for cores in others if cores >= NOISY_CORES]
    if not busy:
        return "Nothing else ran on the machine."
    return (
        f"Other programs ran on the machine during {len(busy)} of {len(others)} processes and kept "
        f"{statistics.median(busy):.1f} cores busy (median): these figures are low, each in its own way."
    )


def _columns(sizes: Sizes) -> str:
    inputs, outputs = sizes.mixed_prompts, sizes.mixed_outputs
    return f"""- **prefill**: prompt tokens a second of one prompt of {sizes.prefill}.
- **decode B=**: output tokens a second of so many sequences, {sizes.prompt} prompt and {sizes.outputs} output tokens
  each, counted from when every sequence has its first token.
- **mixed**: output tokens a second of {sizes.mixed_requests} requests at once, with {inputs[0]} to {inputs[1]} prompt
  and {outputs[0]} to {outputs[1]} output tokens.
- **start-up**: launch of the process to its first token, files in the page cache.
- **peak memory**: most memory resident, loading included, with 1 GiB of KV cache and 8 sequences."""


def _about(model: str) -> str:
    return f"The shape of `{MODELS[model]}` (`headrace inspect shape:{MODELS[model]}`)."


def _table(comparison: Comparison, model: str, format_: str, limit: Limits) -> str:
    columns = comparison.columns(model)

    def ratios(any_format: bool) -> list[str]:
        return [_ratio(comparison, model, format_, name, any_format) for name in columns]

    rows = []
    for engine in comparison.engines(model, format_):
        mark = "**" if engine == HEADRACE.name else ""
        figures = {name: comparison.figure(model, format_, engine, name) for name in columns}
        rows.append((f"{mark}{title_of(engine, format_)}{mark}", _cells(figures)))
    rows += [
        ("limit of the machine", _cells({name: limit.get(name) for name in columns})),
        ("Headrace / limit", [_share(comparison, model, format_, name, limit) for name in columns]),
        ("Headrace / best peer", ratios(False)),
        ("Headrace / best of any format", ratios(True)),
    ]
    lines = [f"| | {' | '.join(_heading(name) for name in columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {title} | {' | '.join(cells)} |" for title, cells in rows if set(cells) != {"-"}]
    return "\n".join(lines)


def _heading(column: str) -> str:
    metric = METRICS[COLUMNS[column].metric]
    return f"{COLUMNS[column].heading}, tok/s" if metric.unit == "tokens/s" else COLUMNS[column].heading


def _cells(figures: Mapping[str, float | None]) -> list[str]:
    return [
        "-" if value is None else METRICS[COLUMNS[name].metric].show(value) for name, value in figures.items()
    ]


def _share(comparison: Comparison, model: str, format_: str, column: str, limit: Limits) -> str:
    ours = comparison.figure(model, format_, HEADRACE.name, column)
    if ours is None or column not in limit or COLUMNS[column].lower_is_better:
        return "-"
    return f"{ours / limit[column]:.2f}"


def _ratio(comparison: Comparison, model: str, format_: str, column: str, any_format: bool) -> str:
    found = comparison.ratio(model, format_, column, any_format=any_format)
    if found is None:
        return "-"
    times, best = found
    peer = BY_NAME[best.engine]
    who = f"{peer.title}, {best.format}" if any_format else peer.title
    return f"**{times:.2f} x** ({who})"


def facts_line(facts: Mapping[str, Any]) -> str:
    """One line that names the run, for the plot."""
    machine = MachineFacts(**{**facts["machine"], "flags": tuple(facts["machine"]["flags"])})
    return f"{machine.describe()}, {facts['created']}"
