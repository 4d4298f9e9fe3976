"""How one model is stored, beside what all models of an engine share."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.types import KVGroupSpec
from headrace.quant.format import WeightFormats


@dataclass(frozen=True, slots=True)
class Stored:
    """`dtype` is that of embeddings and of matrices that are not quantised; `formats` None is plain tensors.

    groups: its own KV groups. prefetch: read a packed folder ahead, which takes memory for all of it.
    """

    dtype: str
    formats: WeightFormats | None
    groups: tuple[KVGroupSpec, ...]
    prefetch: bool = True
