"""bitsandbytes (Dettmers et al. 2022, 2023): NF4 and FP4 in blocks, and int8 rows.

4 bits: `weight` holds two codes a byte, upper half first, of the weights row by row as one run; each block of them
(64 usually) has a scale in `weight.absmax`. Quantised twice, `absmax` is a byte an entry: its value in
`weight.nested_quant_map`, times `weight.nested_absmax` of 256 entries, plus an offset.
`weight.quant_state.bitsandbytes__nf4` (or fp4) is JSON in bytes with the shape, the block size and the offset.
int8: `weight` int8 [R, C] and `SCB` [R], the largest magnitude of each row.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.layout import Layout, Matrix, Method, Stored, except_modules
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import TABLES, Coded
from headrace.quant.unpack import nibbles

MAX_STATE_BYTES = 4096
_STORAGE = ("U8", "I8", "BF16", "F16", "F32")  # types in which the bytes of the codes may be stored


@dataclass(frozen=True, slots=True)
class _State:
    """What a quant_state says."""

    block: int
    nested_block: int
    offset: float


@dataclass(frozen=True, slots=True)
class FourBits:
    table: Literal["nf4", "fp4"]

    @property
    def codes(self) -> str:
        return f".weight.quant_state.bitsandbytes__{self.table}"

    def stored(self, rows: int, columns: int) -> tuple[Stored, ...]:
        if rows * columns % 2:
            raise ValueError(f"{rows} x {columns} codes of 4 bits do not fill bytes")
        return (
            Stored(".weight", None, _STORAGE),
            Stored(self.codes, None, ("U8",)),
            Stored(".weight.absmax", None, ("U8", "F32")),
            Stored(".weight.quant_map", ((16,),), ("F32",)),
            Stored(".weight.nested_absmax", None, ("F32",), required=False),
            Stored(".weight.nested_quant_map", ((256,),), ("F32",), required=False),
        )

    def format(self, matrix: Matrix) -> CodeFormat:
        return CodeFormat(4, self.table, "f32", group=math.gcd(matrix.columns, self._state(matrix).block))

    def decode(self, matrix: Matrix) -> Coded:
        format, state = self.format(matrix), self._state(matrix)
        count = matrix.rows * matrix.columns
        packed = matrix.read(".weight").reshape(-1).view(np.uint8)
        if packed.size != count // 2:
            raise matrix.error(
                ".weight", f"has {packed.size} bytes, but {count} codes of 4 bits fill {count // 2}"
            )
        if not np.allclose(matrix.read(".weight.quant_map"), TABLES[self.table], atol=1e-6):
            raise matrix.error(".weight.quant_map", f"is not the table of {self.table}")
        codes = nibbles(packed, high_first=True).reshape(matrix.rows, matrix.columns)
        assert format.group is not None
        # A block may end within a row; a group is a part of a block then.
        scales = np.repeat(self._scales(matrix, state, count), state.block // format.group)[
            : count // format.group
        ]
        return Coded(format, codes, scales.reshape(matrix.rows, -1))

    def _scales(self, matrix: Matrix, state: _State, count: int) -> NDArray[np.float32]:
        """One for each block."""
        blocks = -(-count // state.block)
        absmax: NDArray[Any] = matrix.read(".weight.absmax").reshape(-1)
        if absmax.size != blocks:
            raise matrix.error(
                ".weight.absmax", f"has {absmax.size} scales, not {blocks} for blocks of {state.block}"
            )
        if absmax.dtype != np.uint8:
            return absmax
        for suffix in (".weight.nested_absmax", ".weight.nested_quant_map"):
            if suffix not in matrix.entries:
                raise matrix.error(suffix, "is missing: the scales are quantised themselves")
        nested = matrix.read(".weight.nested_absmax").reshape(-1)
        if nested.size != -(-blocks // state.nested_block):
            raise matrix.error(
                ".weight.nested_absmax",
                f"has {nested.size} scales for {blocks} scales by {state.nested_block}",
            )
        spread = np.repeat(nested, state.nested_block)[:blocks]
        values = matrix.read(".weight.nested_quant_map")[absmax]
        scales: NDArray[np.float32] = values * spread + np.float32(state.offset)
        return scales

    def _state(self, matrix: Matrix) -> _State:
        entry = matrix.entries[self.codes]
        if entry.end - entry.begin > MAX_STATE_BYTES:
            raise matrix.error(self.codes, f"is longer than {MAX_STATE_BYTES} bytes")
        try:
            fields = json.loads(matrix.read(self.codes).tobytes())
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise matrix.error(self.codes, "holds no JSON object")
        state = ConfigReader(fields, f"tensor {matrix.module}{self.codes}")
        state.only("quant_type", (self.table,), self.table)
        shape = fields.get("shape")
        if shape != [matrix.rows, matrix.columns]:
            raise matrix.error(
                self.codes,
                f"has shape {shape!r:.80}, but the config asks for {[matrix.rows, matrix.columns]}",
            )
        return _State(
            state.integer("blocksize", 2, 1 << 20, 64),
            state.integer("nested_blocksize", 1, 1 << 20, 256),
            state.number("nested_offset", -1e30, 1e30, 0.0),
        )


@dataclass(frozen=True, slots=True)
class EightBits:
    codes = ".weight"

    def stored(self, rows: int, columns: int) -> tuple[Stored, ...]:
        return (
            Stored(".weight", ((rows, columns),), ("I8",)),
            Stored(".SCB", ((rows,),), ("F32",)),
            Stored(".weight_format", ((), (1,)), ("U8",), required=False),
        )

    def format(self, matrix: Matrix) -> CodeFormat:
        return CodeFormat(8, scale="f32")

    def decode(self, matrix: Matrix) -> Coded:
        if ".weight_format" in matrix.entries and matrix.read(".weight_format").any():
            raise matrix.error(".weight_format", "says that rows are interleaved, which is not supported")
        codes = matrix.read(".weight").view(np.uint8) + np.uint8(128)  # modulo 256
        scales = matrix.read(".SCB").reshape(-1, 1) / np.float32(127)
        return Coded(self.format(matrix), codes, scales)


def read_bitsandbytes(config: ConfigReader) -> Method:
    """The method of a `quantization_config` of bitsandbytes, which says load_in_4bit or load_in_8bit."""
    excluded = config.names("llm_int8_skip_modules")
    layout: Layout
    if config.flag("load_in_8bit", False) or config.flag("_load_in_8bit", False):
        layout = EightBits()
    elif config.flag("load_in_4bit", False) or config.flag("_load_in_4bit", False):
        kind = config.text("bnb_4bit_quant_type", "fp4")
        if kind not in ("nf4", "fp4"):
            raise UnsupportedModel(
                f"bnb_4bit_quant_type {kind!r:.80} in {config.where} is neither nf4 nor fp4"
            )
        layout = FourBits("nf4" if kind == "nf4" else "fp4")
    else:
        raise UnsupportedModel(f"{config.where} says neither load_in_4bit nor load_in_8bit")

    # LLM.int8() rounds activations too
    return Method(
        "bitsandbytes", except_modules(layout, excluded), "int8" if isinstance(layout, EightBits) else None
    )
