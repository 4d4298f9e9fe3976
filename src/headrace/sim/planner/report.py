"""A plan as text with aligned columns."""

from __future__ import annotations

from headrace.plan.hardware_table import THIS
from headrace.plan.report import table
from headrace.plan.units import format_bytes, format_count, milliseconds
from headrace.sim.planner.command import start_command
from headrace.sim.planner.money import bill
from headrace.sim.planner.overview import Overview, Shown, describe
from headrace.sim.planner.search import Setting, by_money
from headrace.sim.planner.speed import Point
from headrace.sim.planner.tables import COMPARED_BATCH, COMPARED_CONTEXT

PRODUCT_NAMES = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "fp8": "FP8", "i8": "int8", "int4": "int4", "fp4": "FP4",
}  # fmt: skip

_UNSIZED = "the unquantised row and what follows from it count floats; --formats names others"


def plan_report(overview: Overview) -> str:
    """Model, machine, memory, speed, comparisons and the best settings, a section each."""
    shown = overview.shown
    sections = [
        ("Model", table(_model(overview))),
        ("Hardware", table(_hardware(overview))),
        (f"Memory by format, {shown.placement}", _right(_formats(overview))),
    ]
    if shown.speed is not None:
        stored = shown.speed.footprint.stored
        kv = "" if stored.kv == "auto" else f", KV in {stored.kv}"
        sections += [
            (f"Speed in {stored.label}{kv}, {shown.placement}", _right(_points(overview))),
            ("Roofline", table(_bend(shown))),
            (f"Contexts in {stored.label}{kv}", _right(_contexts(shown))),
        ]
    if shown.attention:
        sections.append(
            (
                f"KV by kind of attention in 16 bits; the batch is {COMPARED_BATCH} sequences of "
                f"{format_count(COMPARED_CONTEXT)} tokens",
                _right(_attention(shown)),
            )
        )
    text = "\n\n".join(f"{title}\n{body}" for title, body in sections) + "\n"
    if overview.found.settings:
        text += "\nBest settings\n" + "\n".join(
            _setting(number, setting, overview) for number, setting in enumerate(overview.found.settings, 1)
        )
        text += "\n" + table([(_footnote(overview),)]) + "\n"
    return text


def _right(rows: list[tuple[str, ...]]) -> str:
    return table(rows, right=frozenset(range(1, len(rows[0]))))


def _time(seconds: float) -> str:
    return (
        milliseconds(seconds)
        if seconds < 1
        else f"{seconds:,.3g} s"
        if seconds < 100
        else f"{seconds:,.0f} s"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def _model(overview: Overview) -> list[tuple[str, str]]:
    model, eviction = overview.shown.model, overview.question.eviction
    rows = [
        ("name", model.name),
        ("family", model.spec.family),
        ("parameters", format_count(model.parameters)),
    ]
    if model.active_parameters != model.parameters:
        rows.append(("active a token", format_count(model.active_parameters)))
    rows.append(("context", f"{format_count(model.spec.max_position)} tokens"))
    if model.unsized:
        rows.append(("stored as", f"codes of {model.unsized}, whose files are not here: {_UNSIZED}"))
    if eviction is not None:
        kept, newer = format_count(eviction.budget), format_count(eviction.interval)
        what = f"each KV head keeps {kept} tokens of a prompt and up to {newer} newer ones"
        rows.append(("KV eviction", f"{what}; answers are not exact; room for one whole prompt at a time"))
    return rows


def _hardware(overview: Overview) -> list[tuple[str, str]]:
    one, profile = overview.shown.hardware, overview.question.profile
    measured = profile is not None and one.name == THIS
    bandwidth = profile.bandwidth() if measured and profile is not None else one.bandwidth
    rates = profile.peaks if measured and profile is not None else dict(one.peak)
    several = f"{one.count} x " if one.count > 1 else ""
    peaks = ", ".join(f"{PRODUCT_NAMES.get(name, name)} {rate / 1e12:,.4g}" for name, rate in rates.items())
    rows = [
        ("name", f"{one.label}: {several}{one.title}"),
        ("memory", f"{several}{format_bytes(one.memory)} at {bandwidth / 1e9:,.4g} GB/s"),
        ("peaks", f"{peaks} (tera-operations/s, dense)"),
    ]
    if one.count > 1:
        rows.append(("link", f"{one.link / 1e9:,.4g} GB/s in each direction"))
    rows.append(("rates", "measured by `headrace calibrate`" if measured else one.source))
    return rows


def _formats(overview: Overview) -> list[tuple[str, ...]]:
    context = overview.question.traffic.context
    rows: list[tuple[str, ...]] = [
        ("format", "bits", "weights", "KV a token", "activations", "needed", "longest context",
         f"most sequences of {context}"),
    ]  # fmt: skip
    for row in overview.shown.formats:
        rows.append(
            (
                row.label, f"{row.bits:.2f}", format_bytes(row.weights), format_bytes(row.kv_token),
                format_bytes(row.activations), format_bytes(row.needed),
                format_count(row.context) if row.context else "does not fit",
                format_count(row.batch) if row.batch else "-",
            )
        )  # fmt: skip
    return rows


def _points(overview: Overview) -> list[tuple[str, ...]]:
    speed, traffic = overview.shown.speed, overview.question.traffic
    assert speed is not None
    price = overview.prices.get(overview.shown.hardware.label)
    watts = overview.shown.hardware.total_watts
    copies = overview.shown.hardware.count // speed.footprint.placement.devices
    heads = ["batch", "prefill", "TTFT", "decode step", "TPOT", "output tok/s", "requests/s"]
    heads += ["1M output", "1M input"] if price is not None else []
    heads += ["J a token"] if watts is not None else []
    rows: list[tuple[str, ...]] = [tuple(heads)]
    for point in overview.shown.points:
        one = bill(point, traffic, copies, price, watts)
        cells = [
            str(point.batch), _time(point.prefill_s), _time(point.ttft_s),
            _time(point.decode_s), _time(point.tpot_s), f"{point.output_per_s * copies:,.0f}",
            f"{point.requests_per_s * copies:.3g}",
        ]  # fmt: skip
        if price is not None:
            cells += [f"{one.output:.3g}", f"{one.input:.3g}"]
        if one.joules is not None:
            cells.append(f"{one.joules:.3g}")
        rows.append(tuple(cells))
    return rows


def _bend(shown: Shown) -> list[tuple[str, str]]:
    assert shown.speed is not None
    rows = [
        (
            "weights alone",
            f"decode steps are bound by compute from a batch of {format_count(shown.bend)}"
            if shown.bend is not None
            else "decode steps are bound by memory at every batch",
        )
    ]
    where = (
        f"from a batch of {format_count(shown.bend_at_context)}"
        if shown.bend_at_context is not None
        else "at no batch: each sequence reads its own KV, and reading it takes longer than multiplying"
    )
    return [*rows, ("with this load's KV", where)]


def _contexts(shown: Shown) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("context", "KV of one", "most sequences", "prefill", "step with all", "step with one")
    ]
    for row in shown.contexts:
        rows.append(
            (
                format_count(row.context), format_bytes(row.kv), format_count(row.batch),
                _time(row.prefill_s), _time(row.decode_s), _time(row.decode_one_s),
            )
        )  # fmt: skip
    return rows


def _attention(shown: Shown) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("kind", "KV a token", "of the batch", "reading it once", "")]
    for row in shown.attention:
        rows.append(
            (
                row.kind, format_bytes(row.kv_token), format_bytes(row.kv_batch), _time(row.read_s),
                "this model" if row.own else "",
            )
        )  # fmt: skip
    return rows


def _setting(number: int, setting: Setting, overview: Overview) -> str:
    point, context = setting.point, overview.question.traffic.context
    rows = [
        (
            "batch",
            _load(setting),
        ),
        ("speed", _speed(point, setting)),
        ("memory", _memory(setting, context)),
    ]
    money = _money(setting)
    if money:
        rows.append(("cost", money))
    if setting.machine_hours is not None:
        rows.append(("a day", f"{setting.machine_hours:.3g} busy machine hours"))
    command, note = start_command(setting, context)
    rows.append(("start", "; ".join(part for part in (command, note) if part)))
    return f"  {number}. {describe(setting)}\n" + "\n".join(f"   {line}" for line in table(rows).splitlines())


def _load(setting: Setting) -> str:
    copies = "" if setting.copies == 1 else f", {setting.copies} copies of the model on each"
    return f"{_count(setting.point.batch, 'sequence')} in flight a copy, {_count(setting.machines, 'machine')}{copies}"


def _speed(point: Point, setting: Setting) -> str:
    return (
        f"TTFT {_time(point.ttft_s)}, TPOT {_time(point.tpot_s)}, "
        f"{setting.tokens_per_s:,.0f} output tokens a second in all"
    )


def _memory(setting: Setting, context: int) -> str:
    footprint = setting.footprint
    activations = footprint.activations(setting.point.batch) + footprint.evicting(
        setting.point.batch, context
    )
    return (
        f"{format_bytes(footprint.weights)} of weights, {format_bytes(footprint.kv(setting.point.batch, context))} of "
        f"KV and {format_bytes(activations)} of activations on each device"
    )


def _money(setting: Setting) -> str:
    one = setting.bill
    parts = []
    if one.output is not None and one.input is not None:
        parts.append(
            f"{one.output:.3g} a million output tokens and {one.input:.3g} a million input tokens when busy"
        )
    if setting.tokens_per_unit is not None:
        parts.append(f"{setting.tokens_per_unit:,.0f} output tokens for 1 under this load")
    if setting.daily_cost is not None:
        parts.append(f"{setting.daily_cost:,.2f} a day")
    if setting.busy_cost is not None:
        parts.append(f"{setting.busy_cost:,.2f} for the busy hours alone")
    if one.joules is not None:
        parts.append(f"{one.joules:.3g} J an output token at the devices' design power")
    return "; ".join(parts)


def _footnote(overview: Overview) -> str:
    traffic = overview.question.traffic
    hit = f", {traffic.prefix_hit:.0%} of it in the prefix cache" if traffic.prefix_hit else ""
    money = by_money(overview.prices, overview.question.machines)
    ranked = "output tokens for the money" if money else "the fewest devices, then speed"
    return (
        f"prompts of {_count(traffic.prompt, 'token')}{hit}, answers of {traffic.output:,}; times are means; "
        f"best: {ranked}; fewer bits change answers (see `headrace eval`)"
    )
