"""Where the features that matrices read can be scaled without changing the model: what makes a feature is divided by a
factor, and the columns that read it are multiplied by the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headrace.models.weights import Weights
from headrace.program.records import Attention, Buffer, Heads, Op, Program, WeightRef

_PASSING = ("encode", "gather", "dispatch")
"""Kinds of ops whose outputs have the features of their first input."""


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` rows of a matrix, or of each of its experts, from `first` on; their features come out of these."""

    weight: WeightRef
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Fold:
    """One place of a program, in one layer.

    source: the weight of a norm, then its bias if it has one; or rows of a matrix. readers: the matrices that read the
    features, and nothing else does. heads: (query heads, KV heads) where each feature of a KV head is read in the place
    of several query heads. again: other weights of the program that are the same tensors as the source.
    """

    layer: int
    source: tuple[WeightRef, ...] | Rows
    readers: tuple[WeightRef, ...]
    heads: tuple[int, int] | None = None
    again: tuple[tuple[WeightRef, ...], ...] = ()

    @property
    def features(self) -> int:
        """Factors, of one expert."""
        return self.source.count if isinstance(self.source, Rows) else self.source[0].rows

    @property
    def by_expert(self) -> bool:
        """Each expert has factors of its own."""
        return isinstance(self.source, Rows) and self.source.weight.experts is not None

    @property
    def weights(self) -> tuple[WeightRef, ...]:
        """All that change."""
        source = (self.source.weight,) if isinstance(self.source, Rows) else self.source
        return (*source, *(weight for one in self.again for weight in one), *self.readers)

    def spread(self, factors: Tensor) -> Tensor:
        """Those of the source [..., F] for the columns of its readers, [..., C]."""
        if self.heads is None:
            return factors
        share = self.heads[0] // self.heads[1]
        groups: Tensor = factors.unflatten(-1, (self.heads[1], 1, -1))
        return groups.expand(*groups.shape[:-2], share, -1).flatten(-3)

    def gather(self, columns: Tensor) -> Tensor:
        """The means over the columns [..., C] that read each feature, [..., F]."""
        if self.heads is None:
            return columns
        share = self.heads[0] // self.heads[1]
        heads: Tensor = columns.unflatten(-1, (self.heads[1], share, -1))
        return heads.mean(-2).flatten(-2)

    def apply(
        self, weights: Weights, factors: Tensor, rounded: Callable[[WeightRef, Tensor], Tensor]
    ) -> Tensor:
        """Change the weights; gives the factors that the columns of the readers were multiplied by, [C], or [E, C].

        factors: [F] above 0, or [E, F]. rounded: a vector as it will be stored. A norm's weight is rounded before the
        columns are multiplied, so that its rounding adds no error.
        """
        if isinstance(self.source, Rows):
            matrix = weights.matrices[self.source.weight.name]
            assert isinstance(matrix.weight, Tensor)
            rows = slice(self.source.first, self.source.first + self.source.count)
            matrix.weight[..., rows, :] /= factors[..., None]
            if matrix.bias is not None:
                matrix.bias[..., rows] /= factors
        else:
            norm = weights.vectors[self.source[0].name]
            fresh = rounded(self.source[0], norm / factors)
            exact = norm / fresh
            good = torch.isfinite(exact) & (exact > 0)
            fresh, factors = torch.where(good, fresh, norm), torch.where(good, exact, 1.0)
            norm.copy_(fresh)
            for bias in self.source[1:]:
                weights.vectors[bias.name].copy_(rounded(bias, weights.vectors[bias.name] / factors))
            for others in self.again:
                for one, other in zip(self.source, others, strict=True):
                    weights.vectors[other.name].copy_(weights.vectors[one.name])
        columns = self.spread(factors)
        for reader in self.readers:
            matrix = weights.matrices[reader.name].weight
            assert isinstance(matrix, Tensor)
            matrix *= columns[..., None, :]
        return columns


def folds(program: Program) -> list[Fold]:
    """All of a program, in the order of its layers: norms before matrices; `up` before `down`; values of attention
    before the matrix that mixes heads; the factor of a gated convolution before the matrix after it."""
    flow = Flow(program)
    found = [*_norms(flow), *_products(flow), *_values(flow), *_convolutions(flow)]
    return sorted(found, key=lambda one: one.layer)


class Flow:
    """Which op made what each op reads. Buffers are reused, so their names do not tell."""

    def __init__(self, program: Program) -> None:
        self.ops = program.ops
        self.makers: list[tuple[int | None, ...]] = []  # of each op's inputs, the numbers of ops
        self.uses: list[list[tuple[int, int]]] = [[] for _ in self.ops]  # (op, place among its inputs)
        last: dict[Buffer, int] = {}
        for number, op in enumerate(self.ops):
            self.makers.append(tuple(last.get(buffer) for buffer in op.inputs))
            for place, maker in enumerate(self.makers[-1]):
                if maker is not None:
                    self.uses[maker].append((number, place))
            last.update(dict.fromkeys(op.outputs, number))
        self.users: dict[str, list[int]] = {}  # ops by the names of their weights
        for number, op in enumerate(self.ops):
            for weight in op.weights:
                self.users.setdefault(weight.name, []).append(number)

    def readers(self, number: int, through: Sequence[str] = _PASSING) -> list[WeightRef] | None:
        """The matrices that multiply what an op gives; None where something else reads it."""
        found: list[WeightRef] = []
        for user, place in self.uses[number]:
            op = self.ops[user]
            if place == 0 and op.kind in through:
                more = self.readers(user, through)
                if more is None:
                    return None
                found += more
            elif place == 0 and op.kind in ("linear", "experts"):
                found.append(op.weights[0])
            else:
                return None
        return found

    def fold(
        self, source: tuple[WeightRef, ...] | Rows, numbers: Sequence[int], heads: tuple[int, int] | None = None,
        through: Sequence[str] = _PASSING, again: tuple[tuple[WeightRef, ...], ...] = (),
    ) -> Iterator[Fold]:  # fmt: skip
        """That of the features which these ops give, if all that reads them can be scaled."""
        readers: list[WeightRef] = []
        for number in numbers:
            more = self.readers(number, through)
            if more is None:
                return
            readers += more
        made = source.weight if isinstance(source, Rows) else source[0]
        names = {weight.name for weight in readers}
        alone = all(len(self.users[name]) == 1 for name in names) and not any(one.in_heads for one in readers)
        if not names or not alone or made.layer is None or any(one.layer != made.layer for one in readers):
            return
        if isinstance(source, Rows) and any(one.experts != made.experts for one in readers):
            return
        yield Fold(made.layer, source, tuple(dict.fromkeys(readers)), heads, again)


def _norms(flow: Flow) -> Iterator[Fold]:
    """Those of norms; the two of a parallel layer may be one tensor."""
    groups: dict[tuple[object, ...], dict[tuple[WeightRef, ...], list[int]]] = {}
    for number, op in enumerate(flow.ops):
        if op.kind == "norm" and op.weights:
            tensors = tuple(weight.parts for weight in op.weights)
            groups.setdefault(tensors, {}).setdefault(op.weights, []).append(number)
    for same in groups.values():
        if all(flow.users[weight.name] == numbers for one, numbers in same.items() for weight in one):
            source, *again = same
            yield from flow.fold(
                source, [n for numbers in same.values() for n in numbers], again=tuple(again)
            )


def _products(flow: Flow) -> Iterator[Fold]:
    """Those of products that an activation of another one multiplies, or that meet relu: both let factors through."""
    for number, op in enumerate(flow.ops):
        if op.kind not in ("linear", "experts"):
            continue
        weight, how = op.weights[0], op.attributes
        linear = how.activation != "swiglu_oai"
        if how.epilogue == "gate" and linear:
            yield from flow.fold(Rows(weight, weight.rows // 2, weight.rows // 2), [number])
        elif how.epilogue == "multiply" and linear:
            yield from flow.fold(Rows(weight, 0, weight.rows), [number])
        elif how.epilogue == "none" and len(flow.uses[number]) == 1:
            user = flow.uses[number][0][0]
            relu = flow.ops[user]
            if relu.kind == "activate" and relu.attributes.activation == "relu" and len(relu.inputs) == 1:
                yield from flow.fold(Rows(weight, 0, weight.rows), [user])


def _values(flow: Flow) -> Iterator[Fold]:
    ropes: dict[int, list[int]] = {}
    attends: dict[int, list[int]] = {}
    for number, op in enumerate(flow.ops):
        if isinstance(op.attributes, Heads):
            ropes.setdefault(op.attributes.cache, []).append(number)
        elif isinstance(op.attributes, Attention):
            attends.setdefault(op.attributes.cache, []).append(number)
    for cache, numbers in attends.items():
        writers = ropes.get(cache, [])
        if len(numbers) != 1 or len(writers) != 1:  # layers that share keys and values, or latent attention
            continue
        heads: Heads = flow.ops[writers[0]].attributes
        if heads.value_norm or heads.keys_are_values or not heads.writes:
            continue
        first = (heads.num_heads + heads.num_kv_heads) * heads.head_dim
        source = _rows_of(flow, flow.makers[writers[0]][0], first, heads.num_kv_heads * heads.head_dim)
        if source is not None:
            yield from flow.fold(source, numbers, (heads.num_heads, heads.num_kv_heads), (*_PASSING, "gate"))


def _rows_of(flow: Flow, number: int | None, first: int, count: int) -> Rows | None:
    """The rows of a matrix that give these columns of what an op gives, which appends to what others gave."""
    while number is not None:
        op: Op[Any] = flow.ops[number]
        if op.kind == "linear" and op.attributes.epilogue in ("none", "append"):
            if op.attributes.column <= first:
                start = first - op.attributes.column
                return Rows(op.weights[0], start, count) if start + count <= op.weights[0].rows else None
            number = flow.makers[number][1]
        elif op.kind == "norm_columns" and sum(op.attributes.columns or (first + 1, 0)) <= first:
            number = flow.makers[number][0]
        else:
            return None
    return None


def _convolutions(flow: Flow) -> Iterator[Fold]:
    for number, op in enumerate(flow.ops):
        if op.kind == "conv" and op.attributes.gated:
            size = op.attributes.channels
            source = _rows_of(flow, flow.makers[number][0], size, size)
            if source is not None:
                yield from flow.fold(source, [number])
