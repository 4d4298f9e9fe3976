"""Which type each tensor gets: one for all matrices of the layers, or one of llama.cpp's mixes of two or three.

The mixes follow `llama_tensor_get_type` of llama.cpp (src/llama-quant.cpp): the tensors that hurt most get more bits.
Its exceptions for Falcon, 70B, 8 experts, 4 query heads a KV head (Q2_K, IQ4) and importance matrices are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.errors import ConfigError
from headrace.gguf.types import TYPES, BlockType
from headrace.models.gguf.names import layer_part

Rule = Callable[[int, int], str | None]
"""From a layer's number and the number of layers to a type's name, or None: the mix's own."""


def _more(name: str) -> Rule:
    """In the first and last eighth of the layers, and in every third one between."""

    def rule(layer: int, layers: int) -> str | None:
        eighth = layers // 8
        wide = layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
        return name if wide else None

    return rule


def _first(name: str, count: Callable[[int], int], other: str | None = None) -> Rule:
    return lambda layer, layers: name if layer < count(layers) else other


def _always(name: str) -> Rule:
    return lambda layer, layers: name


@dataclass(frozen=True, slots=True)
class Mix:
    """number: its `general.file_type`. usual: the type of most matrices. parts: rules for those of a layer by name.

    head: the type of the head, which is the embedding where they are tied.
    """

    number: int
    usual: str
    parts: Mapping[str, Rule] = field(default_factory=dict)
    head: str = "Q6_K"

    def type_of(self, tensor: str, layers: int) -> str:
        """Of a tensor, "output.weight" for tied embeddings."""
        if tensor == "output.weight":
            return self.head
        part = layer_part(tensor)
        rule = self.parts.get((part or "").removesuffix("_exps").removesuffix("_shexp"))
        found = None if rule is None or part is None else rule(int(tensor.split(".")[1]), layers)
        return found or self.usual


def _eighth(layers: int) -> int:
    return layers // 8


_LARGE = "attn_v", "ffn_down"

MIXES: Mapping[str, Mix] = {
    "F16": Mix(1, "F16", head="F16"),
    "BF16": Mix(32, "BF16", head="BF16"),
    "Q4_0": Mix(2, "Q4_0"),
    "Q4_1": Mix(3, "Q4_1"),
    "Q5_0": Mix(8, "Q5_0"),
    "Q5_1": Mix(9, "Q5_1"),
    "Q8_0": Mix(7, "Q8_0", head="Q8_0"),
    "Q2_K": Mix(
        10, "Q2_K", {"attn_v": _always("Q3_K"), "ffn_down": _always("Q3_K"), "attn_output": _always("Q3_K")}
    ),
    "Q3_K_S": Mix(11, "Q3_K"),
    "Q3_K_M": Mix(
        12,
        "Q3_K",
        {
            "attn_v": _first("Q5_K", lambda layers: 2, "Q4_K"),
            "attn_qkv": _always("Q4_K"),
            "ffn_down": _first("Q5_K", lambda layers: layers // 16, "Q4_K"),
            "attn_output": _always("Q4_K"),
        },
    ),
    "Q3_K_L": Mix(
        13, "Q3_K", {**dict.fromkeys((*_LARGE, "attn_output"), _always("Q5_K")), "attn_qkv": _always("Q4_K")}
    ),
    "Q4_K_S": Mix(
        14, "Q4_K", {"attn_v": _first("Q5_K", lambda layers: 4), "ffn_down": _first("Q5_K", _eighth)}
    ),
    "Q4_K_M": Mix(15, "Q4_K", {**dict.fromkeys(_LARGE, _more("Q6_K")), "attn_qkv": _always("Q5_K")}),
    "Q5_K_S": Mix(16, "Q5_K"),
    "Q5_K_M": Mix(17, "Q5_K", {**dict.fromkeys(_LARGE, _more("Q6_K")), "attn_qkv": _always("Q6_K")}),
    "Q6_K": Mix(18, "Q6_K"),
    "IQ4_NL": Mix(25, "IQ4_NL", {"ffn_down": _first("Q5_K", _eighth)}),
    "IQ4_XS": Mix(30, "IQ4_XS", {"ffn_down": _first("Q5_K", _eighth)}),
}
"""By the name that follows `gguf:`."""

_SAME = {"Q3_K": "Q3_K_S", "Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S"}
"""Types of blocks as names of mixes: every matrix of a layer has that type."""

_NARROW: Mapping[str, str] = {
    "Q2_K": "IQ4_NL",
    "Q3_K": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""What takes the place of a type whose blocks do not fill a row, as in llama.cpp."""


AUTO = "AUTO"
"""In place of a mix's name: types are chosen within a budget. Readers show its number as Q4_K_M."""


def find_mix(name: str) -> Mix:
    """By its name in any case. Raises ConfigError, naming all, where there is none."""
    upper = name.upper()
    if upper == AUTO:
        return Mix(MIXES["Q4_K_M"].number, "Q4_K")
    if upper in _SAME:
        return Mix(MIXES[_SAME[upper]].number, upper)
    if upper not in MIXES:
        raise ConfigError(f"there is no GGUF type {name!r:.40}: give one of {', '.join((*MIXES, *_SAME))}")
    return MIXES[upper]


def fitting(name: str, columns: int) -> BlockType:
    """The type, or the one that takes its place where rows are not whole blocks; F16 where none fits."""
    for candidate in (name, _NARROW.get(name, "F16"), "F16"):
        if columns % TYPES[candidate].weights == 0:
            return TYPES[candidate]
    raise AssertionError
