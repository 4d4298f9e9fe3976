"""Rotates a model without changing it: QuaRot's and SpinQuant's transforms that fold into the weights (Ashkboos et al.
2024, https://arxiv.org/abs/2404.00456; Liu et al. 2024, https://arxiv.org/abs/2405.16406), with random matrices.

The residual stream x becomes x Q. A norm by the root mean square does not see that once its weight has moved into the
matrices after it; what reads the stream is multiplied by Q, what adds to it by the transpose. The values of each KV
head are rotated too, and turned back by the matrix that mixes heads. Large features are spread over all that way, so
that groups of weights and inputs are easier to round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headrace.errors import UnsupportedModel
from headrace.models.weights import Weights
from headrace.program.records import Buffer, Op, Program, WeightRef
from headrace.quantize.transforms.folds import Flow, Fold, Rows, folds
from headrace.quantize.transforms.hadamard import Rotation, rotation


class Rotations:
    """What is rotated in a program, and by what."""

    def __init__(self, program: Program, name: str, seed: int) -> None:
        """Raises UnsupportedModel, naming the model, where something reads the residual stream that would change."""
        self._name, self._flow = name, Flow(program)
        self._norms: dict[WeightRef, dict[WeightRef, None]] = {}  # what reads each
        self.tables: list[WeightRef] = []
        self._writers: dict[str, WeightRef] = {}
        self._readers: dict[str, WeightRef] = {}
        self._stream: set[Buffer] = set()
        for number, op in enumerate(program.ops[:-1]):
            self._visit(number, op)
        gated = {op.layer for op in program.of_kind("gate")}
        self.values = [one for one in folds(program) if one.heads is not None and one.layer not in gated]
        self.stream = rotation(program.hidden_size, seed)
        sizes = {self._head_dim(one) for one in self.values}
        self._of_values: Mapping[int, Rotation] = {size: rotation(size, seed + 1) for size in sizes}

    def weights(self, layer: int) -> list[WeightRef]:
        """Those of a layer that change."""
        of_values = [weight for fold in self.values for weight in fold.weights]
        changed = (*self._norms, *self._readers.values(), *self._writers.values(), *of_values)
        return list(dict.fromkeys(weight for weight in changed if weight.layer == layer))

    @torch.inference_mode()
    def apply(self, weights: Weights, layer: int) -> None:
        """Change the weights of a layer, in their type."""
        for norm, readers in self._norms.items():
            if norm.layer == layer:
                for reader in readers:
                    _matrix(weights, reader).mul_(weights.vectors[norm.name])
                weights.vectors[norm.name].fill_(1.0)
        for reader in self._readers.values():
            if reader.layer == layer:
                matrix = _matrix(weights, reader)
                matrix.copy_(self.stream.rows(matrix))
        for writer in self._writers.values():
            if writer.layer == layer:
                matrix, bias = _matrix(weights, writer), weights.matrices[writer.name].bias
                matrix.copy_(self.stream.columns(matrix))
                if bias is not None:
                    bias.copy_(self.stream.rows(bias))
        for fold in self.values:
            if fold.layer == layer:
                self._turn_values(weights, fold)

    def _turn_values(self, weights: Weights, fold: Fold) -> None:
        assert isinstance(fold.source, Rows) and fold.heads is not None
        size = self._head_dim(fold)
        turn = self._of_values[size]
        rows = slice(fold.source.first, fold.source.first + fold.source.count)
        matrix, bias = _matrix(weights, fold.source.weight), weights.matrices[fold.source.weight.name].bias
        matrix[rows] = turn.columns(matrix[rows].unflatten(0, (-1, size))).flatten(0, 1)
        if bias is not None:
            bias[rows] = turn.rows(bias[rows].unflatten(0, (-1, size))).flatten()
        for reader in fold.readers:
            out = _matrix(weights, reader)
            out.copy_(turn.rows(out.unflatten(1, (-1, size))).flatten(1))

    def _head_dim(self, fold: Fold) -> int:
        assert fold.heads is not None
        return fold.features // fold.heads[1]

    def _visit(self, number: int, op: Op[Any]) -> None:
        reads, writes = self._stream & {*op.inputs}, self._stream & {*op.outputs}
        if op.kind == "embed":
            if not (self._stream or writes):
                self._stream.update(op.outputs)
            if {*op.outputs} <= self._stream:
                self.tables.append(op.weights[0])
        elif op.kind == "gather" and reads:
            self._stream.update(op.outputs)
        elif op.kind in ("norm", "encode") and reads and not writes:
            self._reads(number, op)
        elif op.kind == "linear" and writes and op.attributes.epilogue == "add" and op.inputs[0] not in reads:
            self._writers[op.weights[0].name] = op.weights[0]
        elif writes and op.inputs[0] not in reads and self._adds(op):
            self._makers(number, op)
        elif reads or writes:
            self._refuse(op)

    def _adds(self, op: Op[Any]) -> bool:
        """Whether it adds to its output, with no norm between."""
        if op.kind == "combine":
            return bool(op.attributes.add)
        return op.kind == "add" and op.attributes.norm is None

    def _reads(self, number: int, op: Op[Any]) -> None:
        """A norm, or none, before matrices."""
        if op.kind == "norm" and (op.attributes.kind != "rms" or len(op.weights) > 1):
            self._refuse(op)
        users = [self._flow.ops[user] for user, _ in self._flow.uses[number]]
        if op.kind == "norm" and all(user.kind == "logits" for user in users):
            return  # the norm before the head
        readers = self._flow.readers(number)
        if readers is None:
            self._refuse(op)
            return
        for reader in readers:
            self._readers[reader.name] = reader
            for norm in op.weights:
                self._norms.setdefault(norm, {})[reader] = None

    def _makers(self, number: int, op: Op[Any]) -> None:
        """The matrices behind a sum that is added to the stream."""
        for place, buffer in enumerate(op.inputs):
            maker = self._flow.makers[number][place]
            if buffer in self._stream or buffer.form == "routing" or maker is None:
                continue
            made = self._flow.ops[maker]
            if made.kind == "combine":
                self._makers(maker, made)
            elif made.kind in ("linear", "experts") and made.attributes.epilogue == "none":
                self._writers[made.weights[0].name] = made.weights[0]
            else:
                self._refuse(op)

    def _refuse(self, op: Op[Any]) -> None:
        raise UnsupportedModel(
            f"{self._name} cannot be rotated: {op.name} of layer {op.layer} does not see the residual stream through a "
            "norm by the root mean square alone; leave out --rotate"
        )


def _matrix(weights: Weights, weight: WeightRef) -> Tensor:
    matrix = weights.matrices[weight.name].weight
    assert isinstance(matrix, Tensor)
    return matrix
