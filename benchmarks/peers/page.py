"""The results page: tables of figures, ratios and limits as Markdown, with the reason of every empty cell."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.comparison import Comparison, title_of
from benchmarks.peers.limits import describe, limits, roofline_from_json
from benchmarks.peers.models import MODELS
from benchmarks.peers.peers import BY_NAME, HEADRACE, ONLY
from benchmarks.peers.record import Record
from benchmarks.peers.work_items import COLUMNS, Sizes, sizes_from_json
from headrace.bench.metrics import METRICS
from headrace.bench.report import MachineFacts

PAGE, PLOT, RECORD = "results.md", "results.svg", "results.json"
NOISY_CORES = 0.1
USUAL_ROUNDS = 3
NO_PEER = "Headrace or every other engine has no such figure"
NOT_REACHED = "not measured in this run"

Limits = Mapping[str, float]


def write_page(record: Record) -> str:
    """The whole page."""
    comparison = Comparison.of(record.samples())
    sizes = sizes_from_json(record.facts["settings"]["sizes"])
    parts = [_head(record, comparison, sizes)]
    for model in comparison.models():
        parts.append(f"## {model}\n\n{_about(model)}")
        parts += [_section(record, comparison, model, format_) for format_ in comparison.formats(model)]
    return "\n\n".join(parts) + "\n"


def limits_of(record: Record, model: str, format_: str) -> Limits:
    """Physical limits by column; empty where the run had no roofline or no Headrace."""
    facts, roofline = record.engine_facts(model, format_, HEADRACE.name), record.facts["roofline"]
    if roofline is None or not facts:
        return {}
    sizes = sizes_from_json(record.facts["settings"]["sizes"])
    return limits(model, facts, sizes, roofline_from_json(roofline))


def machine_of(record: Record) -> MachineFacts:
    """The machine of the run."""
    facts = record.facts["machine"]
    return MachineFacts(**{**facts, "flags": tuple(facts["flags"])})


def _head(record: Record, comparison: Comparison, sizes: Sizes) -> str:
    facts, machine = record.facts, machine_of(record)
    roofline = facts["roofline"]
    limit = "not measured" if roofline is None else roofline_from_json(roofline).describe()
    times = facts.get("rooflines", 1)
    when = (
        "measured at the start of the run"
        if times == 1
        else f"the best of {times} measurements during the run"
    )
    gguf = [name for name in ONLY if any(cell[1] == name for cell in record.samples())]
    same = f" In {' and '.join(gguf)} they read the same GGUF file." if gguf else ""
    versions = ", ".join(f"{name} {text}" for name, text in facts["versions"].items())
    return f"""# Beside other engines

`make bench-peers` ([benchmarks/peers](../benchmarks/peers)) writes this page from one run, whose record is
[{RECORD}]({RECORD}). Figures of other machines differ, and so do those of the same machine an hour later: only ratios
within one run count.

- Machine: {machine.describe()}, {machine.system}. Instruction sets: {", ".join(machine.flags)}.
- Limits of this machine, {when}: {limit}.{_faster(record, comparison)}
- Versions: {versions}. Run of {facts["created"]}.
- {facts["settings"]["threads"]} threads for every engine. The engines of a table are loaded together and take turns;
  one runs while the others are stopped. Figures are medians of {USUAL_ROUNDS} rounds; a number in brackets is
  another count of rounds, (1) a single measurement.
- {_quiet(record.others_cores())}

{_columns(sizes, facts["settings"]["kv_gib"])}

Weights are random (normal, deviation 0.02) and the same for every engine; prompts are token ids; decoding is
greedy and continues after any end of sequence; prefix caches are off. Prompts differ from those of the warm-up.
Compared are engines whose weights have the same size: bf16 with BF16 and F16, int8 with Q8_0, int4 with Q4_0.{same}

![Figures of every engine with their limits]({PLOT})"""


def _quiet(others: Sequence[float]) -> str:
    busy = [cores for cores in others if cores >= NOISY_CORES]
    if not busy:
        return "Nothing else ran on the machine."
    return (
        f"Other programs ran on the machine during {len(busy)} of {len(others)} measurements and kept "
        f"{statistics.median(busy):.1f} cores busy (median): these figures are low."
    )


def _faster(record: Record, comparison: Comparison) -> str:
    """What a share above 1 means, where the page has one."""
    shares = (
        _share(comparison, model, format_, column, limits_of(record, model, format_))
        for model in comparison.models()
        for format_ in comparison.formats(model)
        for column in comparison.columns(model)
    )
    if not any(share and float(share) > 1 for share in shares):
        return ""
    return " A share above 1 says that the machine was faster in that measurement than when its limits were taken."


def _columns(sizes: Sizes, kv_gib: int) -> str:
    inputs, outputs = sizes.mixed_prompts, sizes.mixed_outputs
    return f"""- **prefill**: prompt tokens a second of one prompt of {sizes.prefill}.
- **decode B=**: output tokens a second of so many sequences, {sizes.prompt} prompt and {sizes.outputs} output tokens
  each, counted from when every sequence has its first token.
- **mixed**: output tokens a second of {sizes.mixed_requests} requests at once, with {inputs[0]} to {inputs[1]} prompt
  and {outputs[0]} to {outputs[1]} output tokens.
- **start-up**: launch of the process to its first token, files in the page cache.
- **peak memory**: most memory resident, loading included, with {kv_gib} GiB of KV cache and 8 sequences."""


def _about(model: str) -> str:
    return f"The shape of `{MODELS[model]}` (`headrace inspect shape:{MODELS[model]}`)."


def _section(record: Record, comparison: Comparison, model: str, format_: str) -> str:
    """One table, the configuration of its limit, and why cells or engines are missing."""
    notes = Notes()
    parts = [
        f"### {model}, {format_}",
        _table(record, comparison, model, format_, notes),
    ]
    if facts := record.engine_facts(model, format_, HEADRACE.name):
        parts.append(f"The limit is that of Headrace's configuration: {describe(facts)}. Start-up has none.")
    if reasons := [*notes.lines(), *_absent(record, format_)]:
        parts.append("\n".join(f"- {line}" for line in reasons))
    return "\n\n".join(parts)


class Notes:
    """Numbered reasons for empty cells; equal reasons share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """The text of the cell."""
        return f"- ({_letter(self._numbers.setdefault(reason, len(self._numbers)))})"

    def lines(self) -> list[str]:
        """Every reason with its letter."""
        return [f"({_letter(number)}) {_one_line(reason)}" for reason, number in self._numbers.items()]


def _letter(number: int) -> str:
    return chr(ord("a") + number % 26) * (1 + number // 26)


def _one_line(reason: str) -> str:
    return reason.replace("|", "/").replace("\n", " ").rstrip(".") + "."


def _absent(record: Record, format_: str) -> list[str]:
    """Engines without a row, each with its reason."""
    lines = []
    for name in record.facts["engines"]:
        peer = BY_NAME[name]
        reason = record.facts["absent"].get(name) or peer.missing.get(format_)
        if reason is not None:
            lines.append(f"{peer.title}: {_one_line(reason)}")
    return lines


def _rows(record: Record, format_: str) -> list[str]:
    """Engines that run the format, Headrace first."""
    absent = record.facts["absent"]
    return [
        name for name in record.facts["engines"] if format_ in BY_NAME[name].formats and name not in absent
    ]


def _table(record: Record, comparison: Comparison, model: str, format_: str, notes: Notes) -> str:
    columns, reasons = comparison.columns(model), record.reasons()
    limit = limits_of(record, model, format_)

    def cell(engine: str, column: str) -> str:
        at = (model, format_, engine, column)
        value = comparison.figure(*at)
        if value is None:
            return notes.mark(reasons.get(at, NOT_REACHED))
        count = comparison.counts[at]
        return show(column, value) + ("" if count == USUAL_ROUNDS else f" ({count})")

    def ratios(any_format: bool) -> list[str]:
        found = (_ratio(comparison, model, format_, name, any_format) for name in columns)
        return [text or notes.mark(NO_PEER) for text in found]

    rows = []
    for engine in _rows(record, format_):
        mark = "**" if engine == HEADRACE.name else ""
        rows.append((f"{mark}{title_of(engine, format_)}{mark}", [cell(engine, name) for name in columns]))
    rows += [
        ("limit of the machine", [show(name, limit[name]) if name in limit else "" for name in columns]),
        ("Headrace / limit", [_share(comparison, model, format_, name, limit) for name in columns]),
        ("Headrace / best peer", ratios(False)),
        ("Headrace / best of any format", ratios(True)),
    ]
    lines = [f"| | {' | '.join(_heading(name) for name in columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {title} | {' | '.join(cells)} |" for title, cells in rows if any(cells)]
    return "\n".join(lines)


def _heading(column: str) -> str:
    metric = METRICS[COLUMNS[column].metric]
    return f"{COLUMNS[column].heading}, tok/s" if metric.unit == "tokens/s" else COLUMNS[column].heading


def show(column: str, value: float) -> str:
    """A figure of a column, with its unit where the heading has none."""
    return METRICS[COLUMNS[column].metric].show(value)


def _share(comparison: Comparison, model: str, format_: str, column: str, limit: Limits) -> str:
    ours = comparison.figure(model, format_, HEADRACE.name, column)
    if ours is None or column not in limit or COLUMNS[column].lower_is_better:
        return ""
    return f"{ours / limit[column]:.2f}"


def _ratio(comparison: Comparison, model: str, format_: str, column: str, any_format: bool) -> str:
    found = comparison.ratio(model, format_, column, any_format=any_format)
    if found is None:
        return ""
    times, best = found
    peer = BY_NAME[best.engine]
    who = f"{peer.title}, {best.format}" if any_format else peer.title
    return f"**{times:.2f} x** ({who})"


def facts_line(record: Record) -> str:
    """One line that names the run, for the plot and the README."""
    facts: Mapping[str, Any] = record.facts
    return f"{machine_of(record).describe()}, {facts['created']}"
