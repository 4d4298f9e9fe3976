"""AWQ (Lin et al. 2023) as AutoAWQ writes it, in the layouts of its products GEMM and GEMV. 4 bits.

For a weight [R, C]: GEMM has `qweight` int32 [C, R / 8], `qzeros` int32 [groups, R / 8] and `scales` [groups, R];
the eight codes of a word belong to output features 0, 2, 4, 6, 1, 3, 5, 7 of eight. GEMV has `qweight` int32
[R, C / 8], `qzeros` int32 [R, words] and `scales` [R, 8 * words], with codes in order and room for more groups
than there are. weight = scale * (code - zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.gptq import read_group
from headrace.models.quantized.layout import FLOATS, Matrix, Method, Stored, except_modules, groups_of
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import Coded
from headrace.quant.format import Scale
from headrace.quant.unpack import fields_of_words

EACH = 8
"""Codes of a word."""
_PLACE = (0, 4, 1, 5, 2, 6, 3, 7)  # where the code of each of eight output features lies in GEMM's words

Version = Literal["gemm", "gemv"]
VERSIONS: tuple[Version, ...] = ("gemm", "gemv")


@dataclass(frozen=True, slots=True)
class AWQ:
    """`group` None: the whole row. zeros: whether there are any; else the zero is 8."""

    group: int | None
    zeros: bool = True
    version: Version = "gemm"
    codes = ".qweight"

    def stored(self, rows: int, columns: int) -> tuple[Stored, ...]:
        along = rows if self.version == "gemm" else columns
        if along % EACH:
            raise ValueError(f"{along} codes of 4 bits do not fill words of 32 bits")
        groups = groups_of(columns, self.group)
        if self.version == "gemm":
            shapes = (columns, rows // EACH), (groups, rows // EACH), (groups, rows)
        else:
            words = self._zero_words(groups)
            shapes = (rows, columns // EACH), (rows, words), (rows, words * EACH)
        return (
            Stored(".qweight", (shapes[0],), ("I32",)),
            Stored(".qzeros", (shapes[1],), ("I32",), required=self.zeros),
            Stored(".scales", (shapes[2],), tuple(FLOATS)),
        )

    def format(self, matrix: Matrix) -> CodeFormat:
        return self._format(matrix.scales(".scales")[1])

    def _format(self, scale: Scale) -> CodeFormat:
        return CodeFormat(4, scale=scale, zero="integer" if self.zeros else "none", group=self.group)

    def decode(self, matrix: Matrix) -> Coded:
        groups = groups_of(matrix.columns, self.group)
        codes, (scales, kind) = self._codes(matrix, ".qweight", matrix.columns), matrix.scales(".scales")
        zeros = self._codes(matrix, ".qzeros", groups) if self.zeros else None
        scales = scales.T if self.version == "gemm" else scales[:, :groups]
        return Coded(self._format(kind), codes, np.ascontiguousarray(scales), zeros)

    def _codes(self, matrix: Matrix, suffix: str, count: int) -> NDArray[np.uint8]:
        """[R, count]."""
        words: NDArray[Any] = matrix.read(suffix)
        if self.version == "gemv":
            return fields_of_words(words, 4, count)
        turned = np.ascontiguousarray(words.T).view(
            np.uint32
        )  # [R / 8, count]: to turn words is cheaper than codes
        out = np.empty((len(turned), EACH, count), dtype=np.uint8)
        for feature, place in enumerate(_PLACE):
            out[:, feature] = (turned >> np.uint32(4 * place)) & np.uint32(15)
        return out.reshape(matrix.rows, count)

    def _zero_words(self, groups: int) -> int:
        """Words of a row's zeros in GEMV: whole words, and two or four at a time for small groups."""
        words, multiple = -(-groups // EACH), {64: 2, 32: 4}.get(self.group or 128, 1)
        return -(-words // multiple) * multiple


def read_awq(config: ConfigReader) -> Method:
    """The method of a `quantization_config` with `quant_method` "awq", or of AutoAWQ's older quant_config.json."""
    bits = "bits" if config.has("bits") else "w_bit"
    config.only(bits, (4,), 4)
    group = "group_size" if config.has("group_size") else "q_group_size"
    version = config.text("version", "gemm").lower()
    known = next((one for one in VERSIONS if one == version), None)
    if known is None:
        raise UnsupportedModel(
            f"version {version!r:.80} in {config.where} is not supported, only {', '.join(VERSIONS)}"
        )
    layout = AWQ(read_group(config, group), config.flag("zero_point", True), known)
    return Method("awq", except_modules(layout, config.names("modules_to_not_convert")))
