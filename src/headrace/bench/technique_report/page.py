"""The report as one HTML page that loads nothing, and as Markdown with its pictures beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from headrace.bench.metrics import METRICS
from headrace.bench.report import Report, Row
from headrace.bench.technique_report.plots import draw
from headrace.bench.technique_report.sections import SECTIONS, Section, rows_of

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --main: #2f7ea8; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.25rem; margin: 2.6rem 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; } .facts { opacity: .75; }
nav a { margin-right: 1rem; } a { color: var(--main); }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem .28rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th.text, td.text { text-align: left; } td.change { white-space: normal; min-width: 12rem; opacity: .8; }
.best { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.best div { background: var(--soft); border-radius: .5rem; padding: .7rem .9rem; }
.best b { display: block; font-size: 1.35rem; }
figure { margin: 0; } svg { width: 100%; max-width: 46rem; height: auto; }
"""


def html(report: Report) -> str:
    """The page. Raises what `draw` raises."""
    parts = list(_sections(report))
    links = "".join(f'<a href="#{section.key}">{escape(section.title)}</a>' for section, _, _ in parts)
    body = "".join(_html_section(section, rows, picture) for section, rows, picture in parts)
    cards = "".join(f"<div><b>{escape(value)}</b>{escape(what)}</div>" for value, what in highlights(report))
    notes = "".join(f'<p class="facts">{escape(note)}</p>' for note in _notes(report))
    title = f"Headrace: {report.config.get('model', '')}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>What each technique gains: {escape(str(report.config.get('model', '')))}</h1>"
        f'<p class="facts">{escape(_facts(report))}</p>{notes}<nav>{links}</nav>'
        f'<div class="best">{cards}</div>{body}</body></html>\n'
    )


def markdown(report: Report, pictures: Path | None, place: str) -> str:
    """The same as Markdown. Pictures are written to the folder `pictures`, and linked as lying in `place`."""
    lines = [f"# What each technique gains: {report.config.get('model', '')}", "", _facts(report), ""]
    lines += [f"- {value}: {what}" for value, what in highlights(report)]
    lines += ["", *(note + "\n" for note in _notes(report))]
    for section, rows, picture in _sections(report):
        lines += [f"## {section.title}", "", *(f"{text}\n" for text in section.about)]
        if picture and pictures is not None:
            name = f"{section.key}.svg"
            (pictures / name).write_text(_standing(picture), encoding="utf-8")
            lines += [f"![{section.title}]({place}{name})", ""]
        if rows:
            heads, cells = _table(section, rows)
            lines.append("| " + " | ".join(heads) + " |")
            sides = ("---" if _is_text(rows, name) else "---:" for name in _names(section, rows))
            lines.append(f"|{'|'.join(sides)}|")
            lines += ["| " + " | ".join(row) + " |" for row in cells]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def tables(report: Report) -> str:
    """The sections as aligned text, for a terminal."""
    parts = []
    for section, rows, _ in _sections(report, pictures=False):
        if rows:
            shown = [name for name in section.columns if any(name in row.values for row in rows)]
            part = replace(report, rows=tuple(_without(row, "change", "against") for row in rows), notes=())
            parts.append(f"{section.title}\n{replace(part, complete=True).table(shown, title=False)}")
    return "\n\n".join(parts)


def _without(row: Row, *labels: str) -> Row:
    return Row({name: value for name, value in row.labels.items() if name not in labels}, row.values)


def highlights(report: Report) -> list[tuple[str, str]]:
    """(figure, what it is) of what the report found, for its top."""
    found = []
    ways = {str(row.labels["technique"]): row for row in rows_of(report, "techniques")}
    first, best = ways.get("no KV cache"), max(ways.values(), key=_measured, default=None)
    if first is not None and best is not None and best is not first:
        gain = _measured(best) / _measured(first)
        found.append((f"{gain:,.0f} x", f"{best.labels['technique']} over no KV cache"))
        found.append(
            (f"{_measured(best):,.0f} tok/s", f"of {best.labels['technique']}, the fastest of all ways")
        )
    hits = [row for row in rows_of(report, "prefix") if row.labels["prefix"] == "prefix hit"]
    if hits:
        sooner, tokens = hits[-1].values["speedup"], hits[-1].labels["prompt"]
        found.append(
            (f"{sooner:.1f} x", f"sooner to the first token with {tokens} tokens in the prefix cache")
        )
    errors = sorted(
        abs(row.values["predicted_tokens_per_s"] / _measured(row) - 1)
        for row in report.rows
        if "predicted_tokens_per_s" in row.values
    )
    if errors:
        middle = errors[len(errors) // 2]
        found.append((f"{middle:.0%}", f"median error of the {len(errors)} predicted speeds"))
    return found


def _measured(row: Row) -> float:
    """The speed that a row is about, in tokens a second."""
    names = ("decode_tokens_per_s", "prefill_tokens_per_s", "output_tokens_per_s")
    return next(row.values[name] for name in names if name in row.values)


def _facts(report: Report) -> str:
    config = report.config
    options = ", ".join(
        f"{name} {config[name]}" for name in ("dtype", "kernels", "num_threads") if config.get(name)
    )
    return f"{report.machine.describe()}; {options}; {report.created}; headrace {report.versions.get('headrace', '')}"


def _notes(report: Report) -> list[str]:
    interrupted = [] if report.complete else ["The run was interrupted: later sections are missing."]
    return [*report.notes, *interrupted]


def _sections(report: Report, *, pictures: bool = True) -> Iterator[tuple[Section, list[Row], str]]:
    """Each that has rows or a picture."""
    for section in SECTIONS.values():
        rows = rows_of(report, section.key)
        picture = draw(report, section.key) if pictures and section.drawn else ""
        if rows or picture:
            yield section, rows, picture


def _names(section: Section, rows: Sequence[Row]) -> list[str]:
    """Columns: labels, then metrics that any row has."""
    labels = dict.fromkeys(name for row in rows for name in row.labels)
    return [*labels, *(name for name in section.columns if any(name in row.values for row in rows))]


def _table(section: Section, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    names = _names(section, rows)
    heads = [METRICS[name].heading if name in METRICS else name for name in names]
    return heads, [[_cell(row, name) for name in names] for row in rows]


def _cell(row: Row, name: str) -> str:
    if name in row.labels:
        value = row.labels[name]
        return f"{value:,}" if isinstance(value, int) else str(value)
    return METRICS[name].show(row.values[name]) if name in row.values else "-"


def _is_text(rows: Sequence[Row], name: str) -> bool:
    return any(isinstance(row.labels.get(name), str) for row in rows)


def _html_section(section: Section, rows: Sequence[Row], picture: str) -> str:
    about = "".join(f"<p>{escape(text)}</p>" for text in section.about)
    drawn = f'<figure role="img" aria-label="{escape(section.title)}">{picture}</figure>' if picture else ""
    table = _html_table(section, rows) if rows else ""
    return f'<section id="{section.key}"><h2>{escape(section.title)}</h2>{about}{drawn}{table}</section>'


def _html_table(section: Section, rows: Sequence[Row]) -> str:
    names = _names(section, rows)
    kinds = [_class(rows, name) for name in names]
    heads, cells = _table(section, rows)
    head = "".join(
        f'<th scope="col"{kind} title="{escape(METRICS[name].meaning if name in METRICS else name)}">'
        f"{escape(text)}</th>"
        for name, kind, text in zip(names, kinds, heads, strict=True)
    )
    lines = (
        "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        for row in cells
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(rows: Sequence[Row], name: str) -> str:
    if not _is_text(rows, name):
        return ""
    return ' class="text change"' if name == "change" else ' class="text"'


def _standing(picture: str) -> str:
    """A picture as a file of its own, on white."""
    return picture.replace("<svg", '<svg color="#1b1f24" style="background:#fff"', 1) + "\n"
