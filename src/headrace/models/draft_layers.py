"""Layers that draft for a model: they read its hidden states, and are not models of their own. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.models.names import WeightNames
from headrace.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class DraftLayers:
    """Decoder layers over a matrix [H, 2H] times the state before a token and the token's embedding.

    What they give after their final norm is a prediction of the model's state at that token, which the model's head
    turns into the next token, and stands in for the state in the next prediction. Embedding and head are the model's.

    spec: its layers are these; its hidden size is the model's. names: of their tensors. join: the matrix's name.
    order: which H of its columns meet the state. state_norm, embedding_norm: of norms of the two, or none.
    """

    spec: ModelSpec
    names: WeightNames
    join: str
    order: Literal["state first", "embedding first"] = "state first"
    state_norm: str = ""
    embedding_norm: str = ""

    @property
    def halves(self) -> tuple[slice, slice]:
        """Columns of the matrix that meet the state, and the embedding."""
        size = self.spec.hidden_size
        first, second = slice(0, size), slice(size, 2 * size)
        return (first, second) if self.order == "state first" else (second, first)
