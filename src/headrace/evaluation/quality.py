"""What a quantised model lost, as a page, as JSON and as a plot in its folder."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headrace.evaluation.measures import Agreement, Divergence

FILES = PAGE, NUMBERS, PLOT = "QUALITY.md", "quality.json", "quality.svg"


@dataclass(frozen=True, slots=True)
class Limits:
    """max_kl: nats a token. max_increase: of the perplexity, 0.01 is one per cent. None: no limit."""

    max_kl: float | None = None
    max_increase: float | None = None

    def excess(self, found: Divergence) -> float:
        """The largest ratio of a measure to its limit; more than 1 does not pass, nor does what is not a number."""
        ratios = [0.0]
        if self.max_kl is not None:
            ratios.append(found.mean / self.max_kl if self.max_kl > 0 else _ratio(found.mean))
        if self.max_increase is not None:
            rise = found.perplexity_increase
            ratios.append(rise / self.max_increase if self.max_increase > 0 else _ratio(rise))
        return max(float("inf") if math.isnan(ratio) else ratio for ratio in ratios)

    def would_pass(self, found: Divergence) -> str:
        """The options with which it passes."""
        words = []
        if self.max_kl is not None:
            words.append(f"--max-kl {max(self.max_kl, _above(found.mean)):.3g}")
        if self.max_increase is not None:
            words.append(
                f"--max-perplexity-increase {max(self.max_increase, _above(found.perplexity_increase)):.3g}"
            )
        return " ".join(words)


def _ratio(value: float) -> float:
    return float("inf") if value > 0 else 0.0


def _above(value: float) -> float:
    return max(0.0, value) * 1.01


@dataclass(frozen=True, slots=True)
class Quality:
    """model, reference: their names. how: the command. errors: of each matrix, the relative error of its
    products. size: in bytes, of all weights. bits: of a weight of the quantised matrices. all_bits: of all matrices,
    those that stayed floats included; None: there are none. wide: (matrix, format) of
    those that got more bits to meet the limits. calibrated: False where the errors are those of the weights."""

    model: str
    reference: str
    how: str
    divergence: Divergence
    agreement: Agreement
    errors: Mapping[str, float]
    size: int
    bits: float
    limits: Limits = dataclasses.field(default_factory=Limits)
    wide: tuple[tuple[str, str], ...] = ()
    calibrated: bool = True
    all_bits: float | None = None

    def layers(self) -> dict[str, float]:
        """The root mean square error of each layer's matrices, by its number; then of "head", where that is codes."""
        squares: dict[str, list[float]] = {}
        for name, error in self.errors.items():
            squares.setdefault(name.split(".")[0], []).append(error**2)
        return {
            layer: (sum(squares[layer]) / len(squares[layer])) ** 0.5
            for layer in sorted(squares, key=lambda one: (one == "head", len(one), one))
        }

    def rows(self) -> list[tuple[str, str]]:
        one, answers = self.divergence, self.agreement
        return [
            (
                "perplexity",
                f"{one.model.value:.4f} ({one.perplexity_increase:+.2%} ± {one.increase_error:.2%})",
            ),
            ("perplexity of the original", f"{one.reference.value:.4f}"),
            ("KL divergence, mean", f"{one.mean:.2e} ± {one.error:.0e} nats a token"),
            ("KL divergence, median, p99, largest", f"{one.median:.2e}, {one.p99:.2e}, {one.most:.2e}"),
            ("the same likeliest token", f"{one.top_1:.2%}"),
            ("greedy answers that are the same", f"{answers.equal:.1%} of {answers.answers}"),
            ("the same from their beginning", f"{answers.prefix:.1%} of {answers.tokens} tokens"),
            ("tokens measured", f"{one.model.tokens:,}"),
            ("bits a weight", f"{self.bits:.2f}{self._all_bits()}"),
            ("size", f"{self.size / 1e6:,.1f} MB"),
        ]

    def _all_bits(self) -> str:
        all_bits = self.all_bits or self.bits
        return "" if all_bits == self.bits else f" ({all_bits:.2f} of all matrices, floats included)"


def remove_quality(folder: Path) -> None:
    """What `write_quality` wrote, whole or in part."""
    for name in FILES:
        (folder / name).unlink(missing_ok=True)


def write_quality(folder: Path, quality: Quality) -> None:
    (folder / NUMBERS).write_text(json.dumps(_numbers(quality), indent=2) + "\n", encoding="utf-8")
    (folder / PLOT).write_text(_plot(quality), encoding="utf-8")
    (folder / PAGE).write_text(_page(quality), encoding="utf-8")


def _numbers(quality: Quality) -> dict[str, Any]:
    found = dataclasses.asdict(quality)
    found["divergence"]["perplexity_increase"] = quality.divergence.perplexity_increase
    for name in ("model", "reference"):
        found["divergence"][name]["perplexity"] = getattr(quality.divergence, name).value
    found["layers"] = quality.layers()
    found["all_bits"] = quality.all_bits or quality.bits
    return found


def _page(quality: Quality) -> str:
    lines = [
        f"# What {quality.model} lost", "",
        f"Compared with {quality.reference}, from which `{quality.how}` made it.", "",
        "| measure | value |", "|---|---|",
        *(f"| {name} | {value} |" for name, value in quality.rows()), "",
    ]  # fmt: skip
    limits = quality.limits
    if limits.max_kl is not None:
        lines.append(f"- Limit of the KL divergence: {limits.max_kl:g}: met.")
    if limits.max_increase is not None:
        lines.append(f"- Limit of the increase of perplexity: {limits.max_increase:.2%}: met.")
    if quality.wide:
        lines += [
            "",
            "More bits, to meet the limits: "
            + ", ".join(f"{name} ({to})" for name, to in quality.wide)
            + ".",
        ]
    what = "products" if quality.calibrated else "weights"
    over = " over the calibration texts" if quality.calibrated else ""
    lines += [
        "", f"## Error of the {what} of each layer", "",
        f"|change of the {what}| / |{what}|{over}: root mean square of a layer.", "",
        f"![Error by layer]({PLOT})", "", "| layer | error | largest | its error |", "|---|---|---|---|",
    ]  # fmt: skip
    for layer, error in quality.layers().items():
        own = {name: one for name, one in quality.errors.items() if name.split(".")[0] == layer}
        worst = max(own, key=lambda name: own[name])
        lines.append(f"| {layer} | {error:.2%} | {worst} | {own[worst]:.2%} |")
    return "\n".join(lines) + "\n"


def _plot(quality: Quality) -> str:
    """Bars, one a layer."""
    layers = quality.layers()
    what = "products" if quality.calibrated else "weights"
    width, height, left, bottom = 720, 260, 56, 28
    top = max([*layers.values(), 1e-9]) * 1.1
    step = (width - left - 12) / max(1, len(layers))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f"<title>{escape(quality.model)}: relative error of the {what} by layer</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    room = height - bottom - 12
    for number in range(5):
        y = 12 + room * number / 4
        parts.append(f'<line x1="{left}" x2="{width - 12}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{top * (1 - number / 4):.2%}</text>'
        )
    shown = max(1, len(layers) // 24)
    for at, (layer, error) in enumerate(layers.items()):
        x, tall = left + at * step, room * error / top
        parts.append(
            f'<rect x="{x + step * 0.15:.1f}" y="{12 + room - tall:.1f}" width="{step * 0.7:.1f}" height="{tall:.1f}" '
            f'fill="#4472c4"><title>{layer}: {error:.2%}</title></rect>'
        )
        if at % shown == 0:
            parts.append(
                f'<text x="{x + step / 2:.1f}" y="{height - 12}" text-anchor="middle">{layer}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"
