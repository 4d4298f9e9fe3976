"""What draft heads and their training need of the model that they belong to. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.models.families import weight_names
from headrace.models.floats import to_float32
from headrace.models.packed.header import is_packed
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import open_weights
from headrace.program.lower import lower
from headrace.program.records import WeightRef

SAMPLE_ROWS = 8
"""Rows of the embedding that tell models apart."""


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Sizes of a model, and rows of its token embedding [SAMPLE_ROWS, H], spread over the vocabulary.

    sample is None where the embedding cannot be read, as in packed folders and for random weights.
    """

    name: str
    vocab_size: int
    hidden_size: int
    sample: NDArray[np.float32] | None = None


def base_model(source: ModelSource, spec: ModelSpec) -> BaseModel:
    """Raises as `open_weights` does."""
    if source.path is None or is_packed(source.path):
        return BaseModel(source.name, spec.vocab_size, spec.hidden_size)
    stored, name = open_weights(source, spec), _only_part(embedding_of(spec))
    rows = [spec.vocab_size * (2 * i + 1) // (2 * SAMPLE_ROWS) for i in range(SAMPLE_ROWS)]
    sample = None
    if name not in stored.coded or stored.by_rows:
        sample = np.concatenate([to_float32(stored.checkpoint.rows(name, row, row + 1)) for row in rows])
    return BaseModel(source.name, spec.vocab_size, spec.hidden_size, sample)


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a model: what becomes of a token, and of a hidden state after the final norm.

    An embedding is `scale * embedding[token]`; logits are `soft_cap(logit_scale * (head @ state + bias))`.
    """

    embedding: NDArray[np.float32]  # [V, H]
    embedding_scale: float
    head: NDArray[np.float32]  # [V, H]
    bias: NDArray[np.float32] | None  # [V]
    logit_scale: float
    soft_cap: float | None


def read_ends(source: ModelSource, spec: ModelSpec) -> Ends:
    """Read the two matrices as floats, decoded where they are stored as codes. The source must have weights.

    Raises as `open_weights` does.
    """
    program = lower(spec, weight_names(spec))
    stored = open_weights(source, spec)

    def read(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        whole = np.empty(shape, dtype=np.float32)
        for rows, values in stored.floats(name):
            whole[rows] = to_float32(values).reshape(-1, *shape[1:])
        return whole

    table, op = embedding_of(spec), program.ops[-1]
    head = op.weights[0]
    embedding = read(_only_part(table), (spec.vocab_size, spec.hidden_size))
    matrix = embedding if head.name == table.name else read(_only_part(head), embedding.shape)
    bias = read(head.biases[0], (spec.vocab_size,)) if head.biases else None
    return Ends(embedding, spec.embedding_scale, matrix, bias, spec.logit_scale, spec.final_soft_cap)


def embedding_of(spec: ModelSpec) -> WeightRef:
    """The weight that holds the token embedding."""
    program = lower(spec, weight_names(spec))
    return next(op.weights[0] for op in program.of_kind("embed") if not op.attributes.positions)


def _only_part(weight: WeightRef) -> str:
    ((name, _),) = weight.parts
    return name
