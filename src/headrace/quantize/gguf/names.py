"""The tensors of a GGUF file for a model's program: the converse of `models.gguf.names`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnsupportedModel
from headrace.models.gguf.architectures import ARCHITECTURES
from headrace.models.gguf.names import GGUF_NAMES, IN_FLOAT32, layer_part
from headrace.models.names import WHOLE, WeightNames
from headrace.models.spec import AttentionSpec, ModelSpec
from headrace.program.records import Program, WeightRef

_LAYER = re.compile(r"(.*?)\.(\d+)\.(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the file. tensors: those of the checkpoint, one for each expert in order, else one.

    weight: of the program that it is a part of. shape: rows last but one, with the number of experts before them.
    offset: what is added to it. heads: whose rows stand in pairs of the two halves, or None.
    """

    name: str
    tensors: tuple[str, ...]
    weight: WeightRef
    shape: tuple[int, ...]
    offset: float = 0.0
    heads: int | None = None
    bias: bool = False

    @property
    def matrix(self) -> bool:
        """Whether it may be quantised."""
        return len(self.shape) > 1 and layer_part(self.name) not in IN_FLOAT32 and not self.weight.exact

    def ordered(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        """Rows of one matrix, or the elements of a vector, in the file's order."""
        if self.heads is None:
            return rows
        halves = rows.reshape(self.heads, 2, len(rows) // self.heads // 2, *rows.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def sources_of(program: Program, spec: ModelSpec, names: WeightNames, arch: str) -> list[Source]:
    """The tensors of a file, in the program's order. Raises UnsupportedModel for a weight without a name in GGUF."""
    architecture = ARCHITECTURES[arch]
    table = _table(names, {other: part for part, other in architecture.renamed.items()})
    mixer = spec.layers[0].mixer
    heads: Mapping[str, int] = {}
    if architecture.permuted and isinstance(mixer, AttentionSpec):
        heads = {"attn_q": mixer.num_heads, "attn_k": mixer.num_kv_heads}
    found: dict[str, Source] = {}
    for weight in program.weights:
        if weight.in_heads is not None or weight.factor != 1.0:
            raise UnsupportedModel(
                f"{weight.name} has no tensor of its own in GGUF files that are written here"
            )
        rows = [
            *weight.parts,
            *((bias, part[1]) for bias, part in zip(weight.biases, weight.parts, strict=False)),
        ]
        for number, (tensor, count) in enumerate(rows):
            bias = number >= len(weight.parts)
            name = _gguf_name(table, tensor)
            shape: tuple[int, ...] = (count,) if weight.kind == "vector" or bias else (count, weight.columns)
            each: tuple[str, ...] = (tensor,)
            if weight.experts is not None:
                shape = (weight.experts, *shape)
                each = tuple(tensor.replace("{e}", str(expert)) for expert in range(weight.experts))
            if layer_part(name) == "ffn_gate_inp_shexp":
                shape = shape[-1:]
            found[name] = Source(
                name, each, weight, shape, weight.offset, heads.get(layer_part(name) or ""), bias
            )
    return list(found.values())


def _table(names: WeightNames, renamed: Mapping[str, str]) -> dict[str, str]:
    """From names in the checkpoint, with {i} and {e}, to those in the file."""
    found: dict[str, str] = {}
    for field in fields(WeightNames):
        gguf, other = getattr(GGUF_NAMES, field.name), getattr(names, field.name)
        if field.name.startswith("ignored") or not isinstance(other, str) or not gguf or not other:
            continue
        head, _, part = gguf.rpartition("{i}.")
        gguf = f"{head}{{i}}.{renamed.get(part, part)}" if head else renamed.get(gguf, gguf)
        for end in ("",) if field.name in WHOLE else (".weight", ".bias"):
            found.setdefault(f"{other}{end}", f"{gguf}{end}")
    if names.gate_up:
        found[f"{names.gate_up}.weight"] = f"{GGUF_NAMES.up}.weight"
    return found


def _gguf_name(table: Mapping[str, str], tensor: str) -> str:
    if tensor in table:
        return table[tensor]
    match = _LAYER.fullmatch(tensor)
    found = None if match is None else table.get(f"{match[1]}.{{i}}.{match[3]}")
    if found is None or match is None:
        raise UnsupportedModel(f"tensor {tensor!r:.200} has no name in GGUF files")
    return found.replace("{i}", match[2])
