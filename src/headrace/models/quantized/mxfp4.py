"""MXFP4 as gpt-oss stores its experts (OCP Microscaling 1.0).

For a weight [R, C]: `NAME_blocks` uint8 [..., R, C / 32, 16] of e2m1, lower half first, and `NAME_scales` uint8
[..., R, C / 32] of e8m0. Experts are a dimension before the rows. weight = 2 ** (scale - 127) * code.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.layout import Matrix, Method, Stored, except_modules
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import Coded
from headrace.quant.unpack import nibbles

GROUP = 32


@dataclass(frozen=True, slots=True)
class MXFP4:
    """`experts`: matrices below each other in one tensor, or None where there is no such dimension."""

    experts: int | None = None
    codes = "_blocks"

    def stored(self, rows: int, columns: int) -> tuple[Stored, ...]:
        if columns % GROUP or rows % (self.experts or 1):
            raise ValueError(f"rows of {columns} weights are not whole blocks of {GROUP}")
        lead = (rows,) if self.experts is None else (self.experts, rows // self.experts)
        return (
            Stored("_blocks", ((*lead, columns // GROUP, GROUP // 2),), ("U8",)),
            Stored("_scales", ((*lead, columns // GROUP),), ("U8", "F8_E8M0")),
        )

    def format(self, matrix: Matrix) -> CodeFormat:
        return CodeFormat(4, "e2m1", "e8m0", group=GROUP)

    def decode(self, matrix: Matrix) -> Coded:
        packed = matrix.read("_blocks").reshape(matrix.rows, -1)
        return Coded(self.format(matrix), nibbles(packed), matrix.read("_scales").reshape(matrix.rows, -1))


def read_mxfp4(config: ConfigReader) -> Method:
    """The method of a `quantization_config` with `quant_method` "mxfp4"."""
    return Method("mxfp4", except_modules(MXFP4(), config.names("modules_to_not_convert")))
