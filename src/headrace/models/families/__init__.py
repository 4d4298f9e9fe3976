"""The supported model families: each reads a config.json into a ModelSpec. No torch here.

A family holds its differences from the common Llama shape; the decoder does not depend on families. Reading order:
reading (what families share), llama, then any other, registry.
"""

from headrace.models.families.limits import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_VOCAB,
)
from headrace.models.families.reading import Family
from headrace.models.families.registry import FAMILIES, add_family, find_family, read_spec, weight_names

__all__ = [
    "FAMILIES",
    "MAX_HEADS",
    "MAX_HEAD_DIM",
    "MAX_HIDDEN",
    "MAX_INTERMEDIATE",
    "MAX_LAYERS",
    "MAX_VOCAB",
    "Family",
    "add_family",
    "find_family",
    "read_spec",
    "weight_names",
]
