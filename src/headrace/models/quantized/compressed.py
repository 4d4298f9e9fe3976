"""compressed-tensors, the format of llm-compressor: https://github.com/vllm-project/compressed-tensors

`config_groups` name modules by targets ("Linear", a name, or "re:" and a pattern), and say for each group the bits,
the type, and which weights share a scale. The format of a group says how its codes are stored:

int-quantized, naive-quantized: `weight` int8 [R, C], signed. float-quantized, naive-quantized: `weight` e4m3 [R, C].
pack-quantized: `weight_packed` int32 [R, words] of unsigned codes, and `weight_shape`. Words are one run of bits; older
versions put 32 // bits codes into each, so that 3, 5, 6 and 7 bits take more words.
mxfp4-pack-quantized: `weight_packed` uint8 [R, C / 2] of e2m1, lower half first, and e8m0 scales of 32 features.

`weight_scale` is [1], [R, 1], [R, groups] or [row blocks, column blocks]. `weight_zero_point` has its shape, and is
packed along the rows in pack-quantized. `weight_g_idx` is the group of each input feature.
weight = scale * (code - zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.layout import (
    FLOATS,
    Layout,
    Matrix,
    Method,
    Stored,
    groups_of,
    order_number,
    sort_by_group,
)
from headrace.models.quantized.patterns import ModuleNames, check_patterns
from headrace.quant.code_format import MAX_GROUP, CodeFormat
from headrace.quant.coded import Coded
from headrace.quant.format import Scale, Table
from headrace.quant.unpack import fields_of_words, nibbles, stream_of_words

PLAIN = ("int-quantized", "float-quantized", "naive-quantized")
FORMATS = (*PLAIN, "pack-quantized", "mxfp4-pack-quantized")
MAX_GROUPS = 64
MX_GROUP = 32

IGNORED = (
    ".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point", ".q_scale", ".k_scale", ".v_scale",
    ".k_zero_point", ".v_zero_point",
)  # fmt: skip
"""Tensors of static activations and of a quantised KV cache, which the kernels encode by themselves."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """The weights of one config group. rows, group: weights with a common scale, as in `CodeFormat`."""

    kind: str
    bits: int
    table: Table
    symmetric: bool
    rows: int | None
    group: int | None
    ordered: bool = False  # columns may have been quantised in the order of their activations

    @property
    def codes(self) -> str:
        return ".weight" if self.kind in PLAIN else ".weight_packed"

    def stored(self, rows: int, columns: int) -> tuple[Stored, ...]:
        blocks = self._blocks(rows, columns)
        shapes: tuple[tuple[int, ...], ...] = (blocks,)
        if self.rows is None:
            shapes = ((), (1,), blocks)
        elif self.rows == 1 and self.group is None:
            shapes = ((rows,), blocks)
        order = Stored(".weight_g_idx", ((columns,),), ("I32", "I64"), required=self.ordered)
        if self.kind == "mxfp4-pack-quantized":
            if columns % MX_GROUP:
                raise ValueError(f"rows of {columns} weights are not whole blocks of {MX_GROUP}")
            return (
                Stored(".weight_packed", ((rows, columns // 2),), ("U8",)),
                Stored(".weight_scale", shapes, ("U8", "F8_E8M0")),
            )
        scale = Stored(".weight_scale", shapes, tuple(FLOATS))
        if self.kind in PLAIN:
            types = ("I8",) if self.table == "integer" else ("F8_E4M3",)
            zeros = Stored(".weight_zero_point", shapes, types, required=not self.symmetric)
            return (Stored(".weight", ((rows, columns),), types), scale, zeros, order)
        zero_shapes = tuple((count, blocks[1]) for count in _words(blocks[0], self.bits))
        packed_shapes = tuple((rows, count) for count in _words(columns, self.bits))
        return (
            Stored(".weight_packed", packed_shapes, ("I32",)),
            Stored(".weight_shape", ((2,),), ("I32", "I64"), required=False),
            scale,
            Stored(".weight_zero_point", (*zero_shapes, *shapes), ("I32", "I8"), required=not self.symmetric),
            order,
        )

    def format(self, matrix: Matrix) -> CodeFormat:
        return self._format(matrix, self._scales(matrix)[1])

    def _format(self, matrix: Matrix, scale: Scale) -> CodeFormat:
        return CodeFormat(
            self.bits,
            self.table,
            scale,
            "none" if self._zeros(matrix) is None else "integer",
            self.group,
            self.rows,
            order=order_number(self._order(matrix)),
        )

    def decode(self, matrix: Matrix) -> Coded:
        order, codes, (scales, kind) = self._order(matrix), self._codes(matrix), self._scales(matrix)
        return Coded(
            self._format(matrix, kind),
            codes if order is None else np.ascontiguousarray(codes[:, order]),
            scales.reshape(self._blocks(matrix.rows, matrix.columns)),
            self._zeros(matrix),
            order,
        )

    def _blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """The shape of scales."""
        return 1 if self.rows is None else -(-rows // self.rows), groups_of(columns, self.group)

    def _scales(self, matrix: Matrix) -> tuple[NDArray[Any], Scale]:
        if self.table == "integer":
            return matrix.scales(".weight_scale")
        return matrix.read(".weight_scale"), FLOATS.get(matrix.entries[".weight_scale"].dtype, "e8m0")

    def _codes(self, matrix: Matrix) -> NDArray[np.uint8]:
        stored = matrix.read(self.codes)
        if self.kind == "mxfp4-pack-quantized":
            return nibbles(stored)
        if self.table != "integer":
            return stored
        if self.kind in PLAIN:
            return self._unsigned(matrix, self.codes)
        if ".weight_shape" in matrix.entries:
            shape = matrix.read(".weight_shape").tolist()
            if shape != [matrix.rows, matrix.columns]:
                asked = [matrix.rows, matrix.columns]
                raise matrix.error(".weight_shape", f"is {shape}, but the config asks for {asked}")
        return _unpack(stored, self.bits, matrix.columns)

    def _zeros(self, matrix: Matrix) -> NDArray[np.uint8] | None:
        """Unsigned zeros, or None where there are none or all stand in the middle of the codes."""
        if ".weight_zero_point" not in matrix.entries:
            return None
        blocks = self._blocks(matrix.rows, matrix.columns)
        stored = matrix.read(".weight_zero_point")
        if self.table != "integer":
            if stored.any():
                raise matrix.error(".weight_zero_point", "is not zero, although the codes are floats")
            return None
        packed = matrix.entries[".weight_zero_point"].dtype == "I32"
        words = [(count, blocks[1]) for count in _words(blocks[0], self.bits)]
        if (stored.shape not in words) if packed else (stored.size != blocks[0] * blocks[1]):
            raise matrix.error(".weight_zero_point", f"has no zero for each of {list(blocks)} scales")
        if packed:
            zeros = np.ascontiguousarray(_unpack(stored.T, self.bits, blocks[0]).T)
        else:
            zeros = self._unsigned(matrix, ".weight_zero_point").reshape(blocks)
        return None if (zeros == 1 << (self.bits - 1)).all() else zeros

    def _unsigned(self, matrix: Matrix, suffix: str) -> NDArray[np.uint8]:
        """Signed integers of `bits` bits, moved up so that the least is 0."""
        middle = 1 << (self.bits - 1)
        moved: NDArray[np.uint8] = matrix.read(suffix).view(np.uint8) + np.uint8(middle)  # modulo 256
        if self.bits < 8 and moved.size and moved.max() >= 2 * middle:
            raise matrix.error(suffix, f"holds numbers of more than {self.bits} bits")
        return moved

    def _order(self, matrix: Matrix) -> NDArray[np.int64] | None:
        if ".weight_g_idx" not in matrix.entries or self.group is None:
            return None
        stored = matrix.read(".weight_g_idx").astype(np.int64)
        if (stored == -1).all():  # as it is initialised, where the order was not used
            return None
        return sort_by_group(matrix, ".weight_g_idx", stored, self.group)


def _words(count: int, bits: int) -> tuple[int, int]:
    """Words of so many codes: as one run of bits, and as older versions packed them."""
    return -(-count * bits // 32), -(-count // (32 // bits))


def _unpack(words: NDArray[Any], bits: int, count: int) -> NDArray[np.uint8]:
    """The codes of each row; the number of words says how they are packed."""
    unpack = stream_of_words if words.shape[1] == _words(count, bits)[0] else fields_of_words
    return unpack(words, bits, count)


@dataclass(frozen=True, slots=True)
class _Group:
    """Targets of a config group, and how their weights are stored; None: as floats. all: it has any module."""

    targets: ModuleNames
    all: bool
    layout: Compressed | None

    def holds(self, module: str) -> bool:
        return self.all or module in self.targets


def read_compressed(config: ConfigReader) -> Method:
    """The method of a `quantization_config` (or `compression_config`) of compressed-tensors."""
    for name in ("sparsity_config", "transform_config"):
        table = config.table(name)
        if table is not None and table.fields and table.fields.get("format") != "dense":
            raise UnsupportedModel(f"{name} in {config.where} is not supported")
    if config.text("quantization_status", "compressed") not in ("compressed", "frozen"):
        raise UnsupportedModel(
            f"the weights of {config.where} are not compressed; only compressed ones are read"
        )
    table = config.table("config_groups")
    if table is None or not table.fields or len(table.fields) > MAX_GROUPS:
        raise CheckpointError(
            f"config_groups in {config.where} must be an object of 1 to {MAX_GROUPS} groups"
        )
    usual = config.text("format", "")
    groups = [_read_group(table, name, usual) for name in table.fields]
    ignored = ModuleNames(config.names("ignore"))
    check_patterns(
        one for names in (ignored, *(group.targets for group, _ in groups)) for one in names.patterns
    )

    def of_module(module: str) -> Layout | None:
        if module in ignored:
            return None
        named = [group for group, _ in groups if group.holds(module)]
        exact = [group for group in named if not group.all]
        return (exact or named)[0].layout if named else None

    integers = any(eight for _, eight in groups)
    return Method("compressed-tensors", of_module, "int8" if integers else None, IGNORED)


def _read_group(table: ConfigReader, name: str, usual: str) -> tuple[_Group, bool]:
    """A config group, and whether its activations are 8-bit integers."""
    config = table.table(name)
    if config is None:
        raise CheckpointError(f"{name} in {table.where} must be an object, got null")
    inputs, weights = config.table("input_activations"), config.table("weights")
    eight = (
        inputs is not None
        and inputs.text("type", "int") == "int"
        and inputs.integer("num_bits", 1, 16, 8) == 8
    )
    targets = config.names("targets")
    named, every = ModuleNames(targets), "Linear" in targets
    if weights is None:
        return _Group(named, every, None), eight
    kind = config.text("format", usual)
    if kind not in FORMATS:
        raise UnsupportedModel(
            f"format {kind!r:.80} in {config.where} is not supported, only {', '.join(FORMATS)}"
        )
    return _Group(named, every, _read_weights(weights, kind)), eight


def _read_weights(config: ConfigReader, kind: str) -> Compressed:
    type = config.text("type", "int")
    bits = config.integer("num_bits", 1, 16, 8)
    mx = kind == "mxfp4-pack-quantized"
    tables: dict[tuple[str, int], Table] = {("float", 4): "e2m1"} if mx else {("float", 8): "e4m3"}
    if not mx:
        tables.update({("int", count): "integer" for count in range(2, 9)})
    if (type, bits) not in tables or (kind == "pack-quantized" and type == "float"):
        raise UnsupportedModel(
            f"{type:.40} weights of {bits} bits in {config.where} are not supported with format {kind}"
        )
    config.only("dynamic", (False,), False)
    rows, group = _read_strategy(config)
    if mx and (rows, group) != (1, MX_GROUP):
        raise UnsupportedModel(f"group_size in {config.where} must be {MX_GROUP} with format {kind}")
    ordered = config.fields.get("actorder") in (True, "group", "dynamic")
    return Compressed(
        kind, bits, tables[type, bits], config.flag("symmetric", True), rows, group, ordered and not mx
    )


def _read_strategy(config: ConfigReader) -> tuple[int | None, int | None]:
    """(output features, input features) with a common scale."""
    size = config.integer("group_size", -1, MAX_GROUP, 0)
    strategy = config.text("strategy", "group" if size > 0 else "channel" if size == -1 else "tensor")
    if strategy == "group":
        return 1, config.integer("group_size", 1, MAX_GROUP)
    if strategy == "block":
        return _read_block(config)
    if strategy == "tensor":
        return None, None
    if strategy != "channel":
        raise UnsupportedModel(
            f"strategy {strategy!r:.80} in {config.where} is not supported, only tensor, channel, group, block"
        )
    return 1, None


def _read_block(config: ConfigReader) -> tuple[int, int]:
    """`block_structure`: [128, 128], or "128x128"."""
    value: Any = config.fields.get("block_structure")
    sizes = value.split("x") if isinstance(value, str) and len(value) < 20 else value
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise CheckpointError(f"block_structure in {config.where} must be two sizes, got {value!r:.80}")
    if all(isinstance(size, str) and size.isascii() and size.isdigit() for size in sizes):
        sizes = [int(size) for size in sizes]
    named = ConfigReader({"rows": sizes[0], "columns": sizes[1]}, f"block_structure of {config.where}")
    return named.integer("rows", 1, MAX_GROUP), named.integer("columns", 1, MAX_GROUP)
