"""The table of `headrace bench quantization` in a page of docs, between two markers."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from headrace.bench.metrics import METRICS
from headrace.bench.report import Report
from headrace.errors import ConfigError

BEGIN, END = "<!-- bench quantization: begin -->", "<!-- bench quantization: end -->"
_BLOCK = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)


def check_page(path: Path) -> None:
    """Raises ConfigError, before the work, for a file that has no place for the table. One that is not there is
    made."""
    if path.exists():
        _read(path)


def write_page(path: Path, report: Report, columns: Sequence[str], plot: str | None) -> None:
    """Put the table in the place of what is between the markers, with a link to the plot. Raises ConfigError."""
    block = f"{BEGIN}\n{_block(report, columns, plot and os.path.relpath(plot, path.parent))}\n{END}"
    text = _BLOCK.sub(lambda _: block, _read(path)) if path.exists() else block + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the table cannot be written to {path}: {error.strerror}") from None


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or not _BLOCK.search(text):
        raise ConfigError(
            f"{path} has no place for the table: it needs the lines {BEGIN} and {END}, once each"
        )
    return text


def _block(report: Report, columns: Sequence[str], plot: str | None) -> str:
    heads = ["variant", *(METRICS[name].heading for name in columns)]
    lines = [f"| {' | '.join(heads)} |", "|---" + "|---:" * len(columns) + "|"]
    for row in report.rows:
        cells = (METRICS[name].show(row.values[name]) if name in row.values else "" for name in columns)
        lines.append(f"| `{row.labels['variant']}` | {' | '.join(cells)} |")
    facts = [
        f"`{report.config.get('model')}`, {report.config.get('samples')} calibration texts, {report.created[:10]}",
        report.machine.describe(),
    ]
    lines += ["", "; ".join(facts) + "."]
    if plot is not None:
        lines += ["", f"![KL divergence over bits a weight]({Path(plot).as_posix()})"]
    return "\n".join(lines)
