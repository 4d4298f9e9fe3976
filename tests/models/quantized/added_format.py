"""A weight format from outside of the package: what a new one takes.

A weight [R, C] is stored as `NAME.steps` int8 [R, C] and `NAME.step` float16 [R, C / group]: weight = step * steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.layout import Layout, Matrix, Method, Stored
from headrace.quant.code_format import CodeFormat
from headrace.quant.coded import Coded


@dataclass(frozen=True)
class Steps(Layout):
    group: int
    codes = ".steps"

    def stored(self, rows: int, columns: int) -> Sequence[Stored]:
        if columns % self.group:
            raise ValueError(f"rows of {columns} weights are not whole groups of {self.group}")
        return (
            Stored(".steps", ((rows, columns),), ("I8",)),
            Stored(".step", ((rows, columns // self.group),), ("F16",)),
        )

    def format(self, matrix: Matrix) -> CodeFormat:
        return CodeFormat(8, group=self.group)

    def decode(self, matrix: Matrix) -> Coded:
        codes = (matrix.read(".steps").astype(np.int16) + 128).astype(np.uint8)
        return Coded(self.format(matrix), codes, matrix.read(".step"))


def read_steps(config: ConfigReader) -> Method:
    steps = Steps(config.integer("group_size", 32, 1 << 16))
    return Method("steps", lambda module: steps)
