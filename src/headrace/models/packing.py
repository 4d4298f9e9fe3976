"""Packs one matrix for the native kernels, from floats, from codes or from blocks of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace._native import Kernels, PackedMatrix, Team
from headrace.gguf.types import TYPES
from headrace.models.floats import to_float32
from headrace.models.gguf.encode import encode as encode_blocks
from headrace.quant.coded import Coded
from headrace.quant.format import WeightFormat
from headrace.quant.native import common_order, native_codes, native_table
from headrace.quant.rounding import encode

INPUTS: dict[str, Literal["f32", "bf16", "i8"]] = {"f32": "f32", "bf16": "bf16", "int8": "i8"}
"""The names of activations in the extension."""


@dataclass(frozen=True, slots=True)
class ExpertPlace:
    """One of a matrix's experts; the first one is packed first, and makes the matrix."""

    number: int
    experts: int
    matrix: PackedMatrix | None = None


ALONE = ExpertPlace(0, 1)


def pack_floats(
    kernels: Kernels,
    team: Team,
    parts: Sequence[NDArray[Any]],
    target: WeightFormat,
    *,
    gate: bool = False,
    bias: NDArray[np.float32] | None = None,
    place: ExpertPlace = ALONE,
) -> PackedMatrix:
    """Floats, parts below each other, in a format of `parse_format`, or as floats; rounded where it has fewer bits."""
    return packer(kernels, team, parts, target, gate=gate, bias=bias, place=place)()


def packer(
    kernels: Kernels,
    team: Team,
    parts: Sequence[NDArray[Any]],
    target: WeightFormat,
    *,
    gate: bool = False,
    bias: NDArray[np.float32] | None = None,
    place: ExpertPlace = ALONE,
) -> Callable[[], PackedMatrix]:
    """`pack_floats`, for copies: codes that the kernels do not choose themselves are chosen once, before it returns."""
    if target.blocks:
        blocks = [encode_blocks(to_float32(part), TYPES[target.blocks.upper()]) for part in parts]
        return partial(pack_blocks, kernels, team, target.blocks, blocks, gate=gate, bias=bias, place=place)
    if target.quantized and target.storage not in ("int8", "int4"):
        coded = [encode(to_float32(part), target) for part in parts]
        return partial(pack_codes, kernels, team, coded, target, gate=gate, bias=bias, place=place)
    return partial(_pack_as_floats, kernels, team, parts, target, gate=gate, bias=bias, place=place)


def _pack_as_floats(
    kernels: Kernels,
    team: Team,
    parts: Sequence[NDArray[Any]],
    target: WeightFormat,
    *,
    gate: bool,
    bias: NDArray[np.float32] | None,
    place: ExpertPlace,
) -> PackedMatrix:
    if place.matrix is not None:
        place.matrix.put(kernels, team, place.number, [*parts], bias)
        return place.matrix
    return PackedMatrix(
        kernels,
        team,
        target.storage,
        list(parts),
        gate=gate,
        input=INPUTS[target.activations],
        group=target.group or 0,
        symmetric=target.symmetric,
        bias=bias,
        experts=place.experts,
    )


def pack_codes(
    kernels: Kernels,
    team: Team,
    parts: Sequence[Coded],
    target: WeightFormat,
    *,
    gate: bool = False,
    bias: NDArray[np.float32] | None = None,
    place: ExpertPlace = ALONE,
) -> PackedMatrix:
    """Codes, unchanged where the parts share bits and groups."""
    codes = [native_codes(part, target) for part in parts]
    if place.matrix is not None:
        place.matrix.put_codes(kernels, team, place.number, [*codes], bias)
        return place.matrix
    table, unit = native_table(target)
    return PackedMatrix.from_codes(
        kernels,
        team,
        target.storage,
        [*codes],
        gate=gate,
        input=INPUTS[target.activations],
        group=target.group or 0,
        span=target.span or 0 if target.activations == "int8" else 0,
        unit=unit,
        table=table,
        order=common_order(parts),
        bias=bias,
        experts=place.experts,
    )


def map_matrix(
    kept: NDArray[np.uint8],
    form: WeightFormat,
    rows: int,
    columns: int,
    *,
    gate: bool,
    bias: bool,
    experts: int | None = None,
) -> PackedMatrix:
    """A matrix that one of the others packed, in place, or those of so many experts. Raises ValueError where `kept`
    holds no such matrix."""
    if form.blocks:
        return PackedMatrix.mapped_blocks(
            kept, form.blocks, rows=rows, cols=columns, gate=gate, bias=bias, experts=experts or 1
        )
    table, unit = native_table(form)
    return PackedMatrix.mapped(
        kept,
        form.storage,
        rows=rows,
        cols=columns,
        gate=gate,
        input=INPUTS[form.activations],
        group=form.group or 0,
        span=form.span or 0 if form.quantized and form.activations == "int8" else 0,
        unit=unit,
        table=table,
        scales=form.scale,
        zeros=not form.symmetric,
        ordered=form.ordered,
        bias=bias,
        experts=experts or 1,
    )


def pack_blocks(
    kernels: Kernels,
    team: Team,
    type: str,
    parts: Sequence[NDArray[np.uint8]],
    *,
    gate: bool = False,
    bias: NDArray[np.float32] | None = None,
    place: ExpertPlace = ALONE,
) -> PackedMatrix:
    """Blocks of a type of `BLOCK_FORMATS`, uint8 [rows, bytes of a row], as they lie in a GGUF file."""
    if place.matrix is not None:
        place.matrix.put_blocks(kernels, team, place.number, [*parts], bias)
        return place.matrix
    return PackedMatrix.from_blocks(
        kernels, team, type, [*parts], gate=gate, bias=bias, experts=place.experts
    )
