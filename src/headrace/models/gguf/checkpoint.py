"""A GGUF model's tensors as loaders read those of any checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError
from headrace.gguf.files import GGUFModel
from headrace.gguf.reader import TensorInfo
from headrace.gguf.types import TYPES, BlockType
from headrace.models.families import FAMILIES
from headrace.models.gguf.blocks import Bytes, coded, dequantize, floats
from headrace.models.gguf.config import architecture, matrix_dtype, read_config
from headrace.models.gguf.facts import Fields
from headrace.models.gguf.heads import join_heads
from headrace.models.gguf.names import CONVOLUTIONS, RATES, NameTable, layer_part
from headrace.models.names import WeightNames
from headrace.models.weight_files import TensorEntry
from headrace.quant.block_formats import BLOCK_CODES
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import Coded

_CONVOLUTION_ENDS = tuple(f".{part}.weight" for part in CONVOLUTIONS)


class GGUFCheckpoint:
    """Tensors by the names that checkpoints of the family use, q and k with their rows in the checkpoints' order.

    A `weight_files.SelfDescribedFiles`. `config` and `generation_config` are what a folder's JSON files hold.
    """

    dtypes = tuple(TYPES)

    def __init__(self, path: Path) -> None:
        """Opens the file, or all parts of a split one. Raises CheckpointError and UnsupportedModel in one sentence."""
        self.model = GGUFModel(path)
        self.config, self.generation_config = self._read_config()
        _, arch = architecture(self.model)
        family = FAMILIES[self.config["architectures"][0]]
        layers, more = self.config["num_hidden_layers"], self.config["num_nextn_predict_layers"]
        names = NameTable(family.names, arch.renamed, layers, more)
        self._further = tuple(f"blk.{index}." for index in range(layers, layers + more))
        self._shared = ""  # the name under which such a layer reads the model's last norm
        # of each matrix that is one of several in its tensor: which one, and how many equal parts there are
        self._parts: dict[str, tuple[int, int]] = {}
        self._joined = join_heads(self.model, f"{family.names.latent_up}.weight")
        self._stored = dict(self._named(names))
        self._share_final_norm(family.names, layers)
        self._check_vectors()
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self._heads = {"attn_q": heads, "attn_k": kv_heads} if arch.permuted else {}

    def _read_config(self) -> tuple[Fields, Fields]:
        return read_config(self.model, lambda name: [float(number) for number in self._decoded(name)])

    def _named(self, names: NameTable) -> Iterator[tuple[str, str]]:
        """(name, tensor in the file), of a tensor with a matrix for each expert so many."""
        joined = {info.name for one in self._joined.values() for info in (one.keys, one.values)}
        for stored in self.model.names():
            found = () if stored in joined else names.names(stored)
            if not found or "{e}" not in found[0]:
                yield from ((name, stored) for name in found)
                continue
            experts = self.config.get("num_experts", 0)
            shape = self._tensor(stored).shape
            axes = 3 if found[0].endswith(".weight") else 2
            if len(shape) != axes or shape[0] != experts or shape[1] % len(found):
                raise CheckpointError(
                    f"tensor {stored!r:.200} in {self.model.name} has shape {list(shape)}, and the model has {experts} "
                    "experts"
                )
            for part in range(experts * len(found)):
                expert, which = divmod(part, len(found))
                one = found[which].replace("{e}", str(expert))
                self._parts[one] = part, experts * len(found)
                yield one, stored

    def _check_vectors(self) -> None:
        for name, stored in self._stored.items():
            info = self._info(name)
            if len(info.shape) == 1 and info.type.quantized:
                raise CheckpointError(
                    f"tensor {stored!r:.200} in {self.model.name} is a vector, and stored as {info.type.name}: "
                    "vectors are stored as floats"
                )

    def _decoded(self, stored: str) -> NDArray[Any]:
        """A small tensor of floats, by its name in the file."""
        info = self._tensor(stored)
        return floats(np.frombuffer(self.model.view(stored), dtype=np.uint8), info.type)

    @property
    def where(self) -> str:
        return str(self.model.path)

    def _share_final_norm(self, names: WeightNames, layers: int) -> None:
        """A layer that predicts further tokens and has no last norm of its own uses the model's."""
        if names.mtp is None or not any(
            stored.endswith(".nextn.eh_proj.weight") for stored in self._stored.values()
        ):
            return
        own, model = (
            f"{name}.weight".replace("{n}", str(layers)) for name in (names.mtp.final_norm, names.final_norm)
        )
        if model in self._stored:
            self._stored.setdefault(own, self._stored[model])
            self._shared = own

    def _is_further(self, name: str) -> bool:
        """Whether a tensor belongs to a layer that predicts further tokens."""
        if name in self._joined:
            return self._joined[name].keys.name.startswith(self._further)
        return name == self._shared or self._stored[name].startswith(self._further)

    def names(self) -> Iterable[str]:
        return [name for name in (*self._stored, *self._joined) if not self._is_further(name)]

    def stored_name(self, name: str) -> str:
        if name in self._joined:
            return f"{self._joined[name].keys.name}, joined with that of the values,"
        stored = self._stored.get(name, name)
        if name not in self._parts:
            return stored
        part, count = self._parts[name]
        return f"{stored} of expert {part * self._tensor(stored).shape[0] // count}"

    def paths(self) -> list[Path]:
        return self.model.paths()

    def matrix_dtype(self, excluded: Collection[str] = ()) -> str:
        return matrix_dtype(self.model, {self._stored[name] for name in excluded})

    @property
    def method(self) -> str:
        """As in "GGUF Q4_K, Q6_K"."""
        used = {self._tensor(stored).type for stored in self._stored.values()}
        return "GGUF " + ", ".join(one.name for one in TYPES.values() if one in used and one.quantized)

    def coded(self) -> Mapping[str, GGUFMatrix]:
        return self._coded(name for name in self._stored if not self._is_further(name))

    def coded_further(self) -> Mapping[str, GGUFMatrix]:
        return self._coded(name for name in self._stored if self._is_further(name))

    def _coded(self, names: Iterable[str]) -> dict[str, GGUFMatrix]:
        return {
            name: GGUFMatrix(self, name)
            for name in names
            if self._info(name).type.quantized and len(self._info(name).shape) == 2
        }

    def entry(self, name: str) -> TensorEntry | None:
        if name in self._joined:
            return self._joined[name].entry(name)
        if name not in self._stored:
            return None
        info = self._info(name)
        return TensorEntry(name, info.type.name, info.shape, info.begin, info.end)

    def blocks(self, name: str, first: int = 0, last: int | None = None) -> tuple[BlockType, Bytes]:
        """(type, uint8 [rows, bytes a row]) of rows `first` to `last`, as stored: for kernels that read this type.

        A view of the file where its rows are in the same order, else a copy. A vector of floats has a row an element.
        """
        stored, info = self._stored[name], self._info(name)
        row_bytes = info.row_bytes if len(info.shape) > 1 else info.type.bytes
        view = self.model.view(stored)[slice(*self._part(name))]
        raw = np.frombuffer(view, dtype=np.uint8).reshape(-1, row_bytes)
        heads = self._heads.get(layer_part(stored) or "")
        if heads is None:
            return info.type, raw[first:last]
        return info.type, raw[_halves(len(raw), heads, stored)[first:last]]

    def rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        if name in self._joined:
            return self._joined[name].array()[first:last]
        info = self._info(name)
        inner = prod(info.shape[1:-1])
        type, raw = self.blocks(name, first * inner, last * inner)
        decoded = dequantize(raw, type) if type.quantized else _floats_as_stored(raw, type)
        if self._stored[name].endswith(f".{RATES}"):
            decoded = self._logarithms(self._stored[name], floats(raw, type))
        return decoded.reshape(-1, *info.shape[1:])

    def _logarithms(self, stored: str, rates: NDArray[Any]) -> NDArray[np.float32]:
        """The converter has replaced the logarithm of a rate by the rate, less than zero."""
        if not (np.isfinite(rates).all() and (rates <= 0).all()):
            raise CheckpointError(
                f"tensor {stored!r:.200} in {self.model.name} must hold finite numbers of at most zero"
            )
        with np.errstate(divide="ignore"):
            return np.log(-rates.astype(np.float64)).astype(np.float32)

    def array(self, name: str) -> NDArray[Any]:
        if name in self._joined:
            return self._joined[name].array()
        return self.rows(name, 0, self._info(name).shape[0])

    def excerpt(self, name: str, offset: int, size: int) -> bytes:
        if name in self._joined:
            return bytes(self.model.view(self._joined[name].keys.name)[offset : offset + size])
        first, last = self._part(name)
        return bytes(self.model.view(self._stored[name])[first:last][offset : offset + size])

    def prefetch(self, name: str) -> None:
        for stored, first, last in self._places(name):
            self.model.prefetch(stored, first, last)

    def drop(self, name: str) -> None:
        for stored, first, last in self._places(name):
            self.model.drop(stored, first, last)

    def _places(self, name: str) -> list[tuple[str, int, int]]:
        """Tensors of the file, and which of their bytes."""
        if name in self._joined:
            return [
                (info.name, 0, info.end - info.begin)
                for info in (self._joined[name].keys, self._joined[name].values)
            ]
        return [(self._stored[name], *self._part(name))]

    def _info(self, name: str) -> TensorInfo:
        """The tensor, or the matrix in it. The gate of a shared expert is a row, which files have without its axis, and
        a convolution is a vector."""
        stored = self._stored[name]
        info = self._tensor(stored)
        if layer_part(stored) == "ffn_gate_inp_shexp" and len(info.shape) == 1:
            return replace(info, shape=(1, *info.shape))
        if stored.endswith(_CONVOLUTION_ENDS):
            return replace(info, shape=(prod(info.shape),))
        if name not in self._parts:
            return info
        first, last = self._part(name)
        rows = prod(info.shape[:2]) // self._parts[name][1]
        return replace(info, shape=(rows, *info.shape[2:]), begin=info.begin + first, end=info.begin + last)

    def _part(self, name: str) -> tuple[int, int]:
        """The first and the last byte of a matrix in its tensor."""
        info = self._tensor(self._stored[name])
        size = info.end - info.begin
        if name not in self._parts:
            return 0, size
        part, count = self._parts[name]
        return part * (size // count), (part + 1) * (size // count)

    def _tensor(self, stored: str) -> TensorInfo:
        info = self.model.tensor(stored)
        assert info is not None  # names come from the model
        return info


@dataclass(frozen=True, slots=True)
class GGUFMatrix:
    """A `weight_files.CodedMatrix`: one tensor of blocks."""

    files: GGUFCheckpoint
    name: str

    @property
    def format(self) -> CodeFormat:
        return BLOCK_CODES[self.tensors[0].dtype.lower()]

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        entry = self.files.entry(self.name)
        assert entry is not None  # names come from the files
        return (entry,)

    def decode(self) -> Coded:
        type, raw = self.files.blocks(self.name)
        return coded(raw, type)

    def floats(self) -> NDArray[np.float32]:
        type, raw = self.files.blocks(self.name)
        return dequantize(raw, type)

    def blocks(self) -> tuple[str, Bytes]:
        return self.format.blocks, self.files.blocks(self.name)[1]


def _floats_as_stored(raw: Bytes, type: BlockType) -> NDArray[Any]:
    """Floats without a conversion; bfloat16 as its bits."""
    raw = np.ascontiguousarray(raw)
    return raw.view("<u2") if type.name == "BF16" else floats(raw, type)


def _halves(rows: int, heads: int, stored: str) -> NDArray[np.intp]:
    """Where each row of q or k lies in a file that has rows i and i + D/2 of every head beside each other.

    Its rope turns neighbouring features; the one here, as in checkpoints, turns features half a head apart.
    """
    if rows % (2 * heads):
        raise CheckpointError(f"tensor {stored!r:.200} has {rows} rows, which {heads} heads cannot share")
    order = np.arange(rows).reshape(heads, rows // heads // 2, 2)  # in the file: [head, pair, half]
    return order.swapaxes(1, 2).reshape(-1)
