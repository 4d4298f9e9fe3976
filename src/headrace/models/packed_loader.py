"""Makes the native path's weights: tensors go from the checkpoint's pages straight into packed matrices.

Only the embeddings are ever copied whole, so that a load needs little more memory than the packed model.
Imported only where the native kernels are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace._native import Kernels, PackedMatrix, Team
from headrace.errors import CheckpointError
from headrace.models.families import weight_names
from headrace.models.packing import ALONE, ExpertPlace, pack_blocks, pack_codes, pack_floats
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights, open_weights
from headrace.models.tensor_sources import CheckpointTensors, RandomSource, TensorSource
from headrace.models.weights import Maker, Progress, Projection, Weights, check_present, make_weights
from headrace.program.lower import lower
from headrace.program.records import HeadRows, Program, WeightRef
from headrace.quant.format import WeightFormat, WeightFormats


def load_packed(
    source: ModelSource,
    spec: ModelSpec,
    *,
    dtype: str,
    weights: WeightFormats,
    kernels: Kernels,
    team: Team,
    seed: int = 0,
    progress: Progress | None = None,
) -> Weights:
    """The weights of a resolved model, matrices packed as `weights` says, embeddings in `dtype`, norms in float32.

    Tied embeddings are packed once, unless the head is rounded to fewer bits. Matrices that the checkpoint stores
    as codes keep them where `weights` names the format of `code_format.native_format`; else they are decoded, and
    rounded again if their format is one of codes.

    Read from the model's files, or random with `seed` for a shape. Names, shapes and dtypes of all tensors are
    checked before the first is read. Raises CheckpointError, naming the tensor, where the checkpoint does not hold
    what `spec` needs.
    """
    refs, maker = open_packer(
        source, spec, dtype=dtype, weights=weights, kernels=kernels, team=team, seed=seed, progress=progress,
        largest_first=True,
    )  # fmt: skip
    return make_weights(refs, maker)


def load_packed_layers(
    stored: StoredWeights,
    program: Program,
    *,
    dtype: str,
    weights: WeightFormats,
    kernels: Kernels,
    team: Team,
) -> Weights:
    """The weights of draft layers (`program.lower_layers`), packed as `load_packed` packs those of a model. The files
    may hold other tensors, too."""
    check_present(stored.checkpoint, program, stored.coded)
    expected = tuple(name for weight in program.weights for name, _ in weight.tensors())
    tensors = CheckpointTensors(stored, expected)
    return make_weights(program.weights, _Packer(tensors, dtype, weights, kernels, team, len(expected), None))


def open_packer(
    source: ModelSource,
    spec: ModelSpec,
    *,
    dtype: str,
    weights: WeightFormats,
    kernels: Kernels,
    team: Team,
    seed: int = 0,
    progress: Progress | None = None,
    largest_first: bool = False,
) -> tuple[Sequence[WeightRef], Maker]:
    """What `load_packed` loads with, which has checked the source and read nothing yet, and the weights in the order in
    which it is to make them.

    largest_first: while a weight is packed, its pages of the file are in memory too. This matters least for small ones
    when all others are there, so a whole model takes the least memory in this order.
    """
    refs = lower(spec, weight_names(spec)).weights
    if largest_first and source.path is not None:
        refs = tuple(sorted(refs, key=lambda weight: -weight.elements))
    expected = tuple(name for weight in refs for name, _ in weight.tensors())
    tensors: TensorSource
    if source.path is None:
        tensors = RandomSource(seed, dtype)
    else:
        stored = open_weights(source, spec)
        tensors = CheckpointTensors(stored, expected)
    return refs, _Packer(tensors, dtype, weights, kernels, team, len(expected), progress)


class _Packer:
    """Packed matrices; a `weights.Maker`."""

    def __init__(
        self,
        tensors: TensorSource,
        dtype: str,
        weights: WeightFormats,
        kernels: Kernels,
        team: Team,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._weights = weights
        self._kernels, self._team = kernels, team
        self._done, self._total = 0, total
        self._progress = progress

    def table(self, weight: WeightRef) -> NDArray[Any] | PackedMatrix:
        if self._weights.keeps_table(weight.name):
            packed: PackedMatrix = self.matrix(weight).weight
            return packed
        ((name, rows),) = weight.parts
        table = self._tensors.table(name, rows, weight.columns, self._dtype)
        self._finish([name])
        return table

    def vector(self, weight: WeightRef) -> NDArray[np.float32]:
        ((name, size),) = weight.parts
        vector = self._tensors.vector(name, size)
        self._finish([name])
        vector = vector if weight.factor == 1.0 else vector * np.float32(weight.factor)
        return vector + np.float32(weight.offset) if weight.offset else vector

    def matrix(self, weight: WeightRef) -> Projection:
        if weight.in_heads is not None:
            return self._heads(weight, weight.in_heads)
        if weight.experts is None:
            return self._matrix(weight, ALONE)
        first, *others = weight.each()
        packed = self._matrix(first, ExpertPlace(0, weight.experts))
        for number, one in enumerate(others, 1):
            self._matrix(one, ExpertPlace(number, weight.experts, packed.weight))
        return packed

    def _heads(self, weight: WeightRef, rows: HeadRows) -> Projection:
        """Matrices of heads, which are floats whatever the tensor that holds them is stored as."""
        ((name, (count, columns)),) = weight.tensors()
        parts = self._tensors.matrices([name], [count], columns)
        tensor = parts[0] if len(parts) == 1 else np.concatenate(parts)
        target = self._weights.of(weight.name)
        packed: Projection | None = None
        matrix: PackedMatrix | None = None
        for number in range(count // rows.each):
            start = number * rows.each + rows.first
            one = tensor[start : start + rows.count]
            one = np.ascontiguousarray(one.T if rows.transposed else one)
            place = ExpertPlace(number, count // rows.each, matrix)
            packed = self._pack([one], target, gate=False, bias=None, place=place)
            matrix = packed.weight
        self._finish([name])
        assert packed is not None
        return packed

    def _matrix(self, weight: WeightRef, place: ExpertPlace) -> Projection:
        names, rows = [name for name, _ in weight.parts], [count for _, count in weight.parts]
        bias = None
        if weight.biases:
            biases = zip(weight.biases, rows, strict=True)
            bias = np.concatenate([self._tensors.vector(name, count) for name, count in biases])
        target = self._weights.of(weight.name)
        if weight.name in self._weights.kept:
            packed = self._pack_codes(names, target, gate=weight.gated, bias=bias, place=place)
        else:
            parts = self._tensors.matrices(names, rows, weight.columns)
            packed = self._pack(parts, target, gate=weight.gated, bias=bias, place=place)
        self._finish([*names, *weight.biases])
        return packed

    def tied(self, weight: WeightRef) -> tuple[NDArray[Any] | PackedMatrix, Projection]:
        target = self._weights.of(weight.name)
        if not target.quantized or self._weights.keeps_table(weight.name):
            both = self.matrix(weight)
            return both.weight, both
        ((name, rows),) = weight.parts
        table = self._tensors.table(name, rows, weight.columns, self._dtype)
        if weight.name in self._weights.kept:
            head = self._pack_codes([name], target, gate=False, bias=None)
        else:
            head = self._pack([table], target, gate=False, bias=None)
        self._finish([name])
        return table, head

    def _pack(
        self,
        parts: Sequence[NDArray[Any]],
        target: WeightFormat,
        *,
        gate: bool,
        bias: NDArray[np.float32] | None,
        place: ExpertPlace = ALONE,
    ) -> Projection:
        packed = pack_floats(self._kernels, self._team, parts, target, gate=gate, bias=bias, place=place)
        return Projection(packed, format=target.name)

    def _pack_codes(
        self,
        names: Sequence[str],
        target: WeightFormat,
        *,
        gate: bool,
        bias: NDArray[np.float32] | None,
        place: ExpertPlace = ALONE,
    ) -> Projection:
        blocks = self._tensors.blocks(names) if target.activations == "int8" else None
        if blocks is not None:
            packed = pack_blocks(self._kernels, self._team, *blocks, gate=gate, bias=bias, place=place)
            return Projection(packed, format=target.name)
        parts = self._tensors.coded(names)
        try:
            packed = pack_codes(self._kernels, self._team, parts, target, gate=gate, bias=bias, place=place)
        except CheckpointError as error:
            raise CheckpointError(f"{', '.join(names)}: {error}") from None
        return Projection(packed, format=target.name)

    def _finish(self, names: Sequence[str]) -> None:
        self._tensors.done(names)
        for _ in names:
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total)
