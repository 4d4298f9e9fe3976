"""More bits for the matrices of a folder that hurt most: 2, 3, 4 and 8 bits, as the format holds them, then floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.program.records import WeightRef
from headrace.quantize.bits.budget import Table
from headrace.quantize.job import Job
from headrace.quantize.matrices import floats_of
from headrace.quantize.options import QuantizeOptions, Width
from headrace.quantize.rounding.scheme import BITS, Scheme
from headrace.quantize.transforms.ends import HEAD

FLOATS = "as it was"
_BIT = 0.25
"""Of the squared error that one bit more leaves."""

Losses = Mapping[str, Mapping[Width, float]]
"""What each width of a matrix costs the model, of any unit."""


@dataclass(frozen=True, slots=True)
class Step:
    """One way to store a matrix, of `size` bytes. width: None: the model's own floats."""

    width: Width | None
    size: int


@dataclass(frozen=True, slots=True)
class FolderPlan:
    """ladders: of each matrix the ways to store it, as was asked first, then wider and wider. losses: asked once, when
    matrices need more bits; None: they are taken to be the squared errors."""

    options: QuantizeOptions
    ladders: Mapping[str, Sequence[Step]]
    losses: Callable[[], Losses] | None = None

    @property
    def wide(self) -> tuple[tuple[str, str], ...]:
        """(matrix, width) of those that got more bits than was asked."""
        found = []
        for name, ladder in self.ladders.items():
            at = self._at(name)
            if at > 0:
                width = ladder[at].width
                found.append((name, FLOATS if width is None else width.name))
        return tuple(found)

    def widened(self, errors: Mapping[str, float], part: float, least: int = 1) -> Self | None:
        """A step at a time for the matrix whose loss falls most a byte, until about `part` of the loss is left and
        `least` steps are taken.

        One matrix in layers stays codes: a model with nothing quantised is the model itself. None where no matrix can
        become wider.
        """
        at = {name: self._at(name) for name in errors}
        losses = self._known(errors, at)
        left = {name: losses[name][place] for name, place in at.items()}
        whole, moved = sum(left.values()), 0
        while moved < least or sum(left.values()) > part * whole:
            coded = [name for name in at if name != HEAD and self.ladders[name][at[name]].width is not None]
            able = [
                name
                for name, place in at.items()
                if place + 1 < len(self.ladders[name])
                and (coded != [name] or self.ladders[name][place + 1].width is not None)
            ]
            if not able:
                break
            worst = max(able, key=lambda name: (self._gain(name, at[name], losses[name]), name))
            at[worst] += 1
            left[worst] = losses[worst][at[worst]]
            moved += 1
        return self._with(at) if moved else None

    def _at(self, name: str) -> int:
        """The matrix's step."""
        ladder = self.ladders[name]
        if name in self.options.keep or (name == HEAD and not self.options.head):
            return len(ladder) - 1
        width = dict(self.options.widths).get(name, ladder[0].width)
        return next(number for number, one in enumerate(ladder) if one.width == width)

    def _known(self, errors: Mapping[str, float], at: Mapping[str, int]) -> dict[str, list[float]]:
        """What each step of a matrix costs. Where that was not measured, it falls with the squared error."""
        measured = {} if self.losses is None else self.losses()
        costs = []
        for name, error in errors.items():
            width = self.ladders[name][at[name]].width
            if width is not None and width in measured.get(name, {}):
                costs.append((measured[name][width], error**2))
        squares = sum(square for _, square in costs)
        price = sum(cost for cost, _ in costs) / squares if squares > 0 else 1.0
        found = {}
        for name, error in errors.items():
            ladder, known = self.ladders[name], measured.get(name, {})
            now = ladder[at[name]].width
            assert now is not None
            found[name] = [
                0.0 if one.width is None
                else known.get(one.width, price * error**2 * _BIT ** (one.width.bits - now.bits))
                for one in ladder
            ]  # fmt: skip
        return found

    def _gain(self, name: str, at: int, losses: Sequence[float]) -> float:
        now, wider = self.ladders[name][at : at + 2]
        return (losses[at] - losses[at + 1]) / max(1, wider.size - now.size)

    def _with(self, at: Mapping[str, int]) -> Self:
        options = self.options
        widths, keep = dict(options.widths), list(options.keep)
        for name, place in at.items():
            width = self.ladders[name][place].width
            if width is not None and place > 0:
                widths[name] = width
            elif width is None:
                widths.pop(name, None)
                keep.append(name)
        fresh = replace(
            options,
            widths=tuple(widths.items()),
            keep=tuple(name for name in keep if name != HEAD),
            head=options.head and HEAD not in keep,
        )
        return replace(self, options=fresh)


def folder_plan(
    source: ModelSource,
    spec: ModelSpec,
    options: QuantizeOptions,
    table: Callable[[Sequence[int | None]], tuple[Table, Mapping[str, Width]]] | None,
) -> FolderPlan:
    """table: `auto.width_table` of the model, for some group sizes; None: there are no texts to measure on. Raises as
    `run.quantize`."""
    job = Job(source, spec, options, floats_of(source, spec))
    ladders = {weight.name: _ladder(job, weight) for weight in job.coded}
    groups = tuple({one.width.group: None for ladder in ladders.values() for one in ladder if one.width})
    known: list[Losses] = []

    def losses() -> Losses:
        if not known:
            assert table is not None
            found, widths = table(groups)
            known.append(
                {name: {widths[one.name]: one.loss for one in row} for name, row in found.rows.items()}
            )
        return known[0]

    several = any(len(one) > 2 for one in ladders.values())
    return FolderPlan(options, ladders, losses if several and table is not None else None)


def _ladder(job: Job, weight: WeightRef) -> tuple[Step, ...]:
    scheme = job.scheme(weight)
    asked = Width(scheme.bits, scheme.group)
    wider = []
    if isinstance(scheme, Scheme) and _mixes(job):
        wider = [Width(bits, asked.group) for bits in BITS if bits > asked.bits and bits in job.format.bits]
    found = [Step(asked, job.bytes_of(weight))]
    for width in wider:
        if job.can_hold(weight, job.scheme_of(width)):
            found.append(Step(width, job.bytes_of(weight, job.scheme_of(width))))
    return (*found, Step(None, job.float_bytes(weight)))


def _mixes(job: Job) -> bool:
    """Whether readers take matrices of different bits: transformers does not where compressed-tensors has zero points
    (see `formats.integers.CompressedTensors.config`)."""
    zeros = job.options.format == "compressed-tensors" and not job.options.symmetric
    return not job.method.only_eight and not zeros
