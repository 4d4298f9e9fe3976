"""The planner against figures that others published: papers' and vendors' engines on A100 and H100.

    python -m benchmarks.published                    every row: published, predicted, their ratio
    python -m benchmarks.published --json

The figures lie in published.json, each with its source. Only the model's config, the data sheet and the shares of it
that `sim.profile` assumes go into a prediction. Needs no GPU and no weights. See docs/planning.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.plan.hardware_table import find_hardware
from headrace.plan.report import table
from headrace.sim.planner.formats import store
from headrace.sim.planner.memory import Footprint, Placement
from headrace.sim.planner.model import open_model
from headrace.sim.planner.speed import Speeds
from headrace.sim.work import SliceShape, decode_shape

FILE = Path(__file__).with_suffix(".json")
DECODE, FIRST, WHOLE = "decode tokens/s", "first token ms", "output tokens/s"
PROMPT_ROWS = 8192
"""Most tokens of a step in which a batch of prompts is computed."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure. kind: decoding alone, of one sequence after another; the first token of one prompt, in
    milliseconds; or a static batch with its prompts, in output tokens a second of all devices together."""

    source: str
    model: str
    hardware: str
    format: str
    kv: str
    tp: int
    batch: int
    prompt: int
    output: int
    kind: str
    published: float


@dataclass(frozen=True, slots=True)
class Checked:
    """ratio: predicted / published."""

    figure: Figure
    predicted: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.figure.published


def read_figures(path: Path = FILE) -> tuple[dict[str, dict[str, str]], tuple[Figure, ...]]:
    """(sources by name, figures)."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return data["sources"], tuple(Figure(**row) for row in data["rows"])


def check(figures: Sequence[Figure]) -> tuple[Checked, ...]:
    """Predict each figure."""
    speeds = Speeds()
    return tuple(Checked(figure, _predict(figure, speeds)) for figure in figures)


def _predict(figure: Figure, speeds: Speeds) -> float:
    hardware = find_hardware(figure.hardware).times(figure.tp)
    stored = store(open_model(f"shape:{figure.model}"), hardware, figure.format, figure.kv)
    costs = speeds.of(Footprint(stored, hardware, Placement(figure.tp, 1))).costs
    middle = figure.prompt + figure.output // 2
    if figure.kind == FIRST:
        return 1e3 * costs.prefill_s(figure.prompt)
    decode = costs.step_s(decode_shape(figure.batch, middle))
    if figure.kind == DECODE:
        return figure.batch / decode
    at_once = max(1, PROMPT_ROWS // figure.prompt)
    whole, rest = divmod(figure.batch, at_once)
    prompts = whole * costs.step_s((SliceShape(figure.prompt, 0, 1),) * at_once)
    prompts += costs.step_s((SliceShape(figure.prompt, 0, 1),) * rest)
    return figure.batch * figure.output / (prompts + (figure.output - 1) * decode)


def report(checked: Sequence[Checked], sources: dict[str, dict[str, str]]) -> str:
    """Every row, then medians by kind, then the sources."""
    rows: list[tuple[str, ...]] = [
        (
            "source",
            "model",
            "hardware",
            "format",
            "TP",
            "batch",
            "in",
            "out",
            "kind",
            "published",
            "predicted",
            "ratio",
        )
    ]
    for one in checked:
        figure = one.figure
        rows.append(
            (
                figure.source, figure.model, figure.hardware, "16 bits" if figure.format == "stored" else figure.format,
                str(figure.tp), str(figure.batch), str(figure.prompt), str(figure.output), figure.kind,
                f"{figure.published:,.4g}", f"{one.predicted:,.4g}", f"{one.ratio:.2f}",
            )
        )  # fmt: skip
    text = table(rows, right=frozenset({4, 5, 6, 7, 9, 10, 11})) + "\n\n"
    for kind in (DECODE, FIRST, WHOLE, "all"):
        ratios = [one.ratio for one in checked if kind in ("all", one.figure.kind)]
        if ratios:
            errors = [abs(ratio - 1) for ratio in ratios]
            text += (
                f"{kind}: {len(ratios)} figures, median ratio {statistics.median(ratios):.2f}, from {min(ratios):.2f} "
                f"to {max(ratios):.2f}; median error {statistics.median(errors):.0%}\n"
            )
    used = {one.figure.source for one in checked}
    return text + "".join(
        f"{name}: {source['title']}; {source['setup']}\n  {source['url']}\n"
        for name, source in sources.items()
        if name in used
    )


def to_json(checked: Sequence[Checked]) -> list[dict[str, Any]]:
    return [asdict(one.figure) | {"predicted": one.predicted, "ratio": one.ratio} for one in checked]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print plain values")
    args = parser.parse_args(argv)
    sources, figures = read_figures()
    checked = check(figures)
    print(json.dumps(to_json(checked), indent=2) if args.json else report(checked, sources), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
