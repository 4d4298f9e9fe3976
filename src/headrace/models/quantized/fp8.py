"""Weights as 8-bit floats: DeepSeek's and Qwen's blocks, FBGEMM's rows, ModelOpt's tensors.

`weight` e4m3 or e5m2 [R, C] with `weight_scale_inv` or `weight_scale`: one number, [R], [R, 1], or a number for
each block of `weight_block_size`, [row blocks, column blocks]. weight = scale * code, whichever name the scale has.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.quantized.layout import FLOATS, Layout, Matrix, Method, Stored, groups_of, naming_modules
from headrace.models.quantized.patterns import MAX_LENGTH
from headrace.quant.code_format import MAX_GROUP, CodeFormat
from headrace.quant.coded import Coded
from headrace.quant.format import Scale, Table

_TABLES: dict[str, Table] = {"F8_E4M3": "e4m3", "F8_E5M2": "e5m2"}
_SCALES: dict[str, Scale] = {**FLOATS, "F8_E8M0": "e8m0", "U8": "e8m0"}
_SUFFIXES = (".weight_scale_inv", ".weight_scale")
IGNORED = (
    ".input_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".input_scale_ub",
    ".output_scale",
)
"""Tensors of static activations and of a quantised KV cache, which the kernels encode by themselves."""
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")
"""ModelOpt's names of what is read."""


@dataclass(frozen=True, slots=True)
class FP8:
    """`block`: output and input features with a common scale; None: a row, or the matrix, whichever the file holds."""

    block: tuple[int, int] | None = None
    codes = ".weight"

    def stored(self, rows: int, columns: int) -> tuple[Stored, ...]:
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1), (rows,), (rows, 1))
        if self.block is not None:
            shapes = ((-(-rows // self.block[0]), groups_of(columns, self.block[1])),)
        scales = [Stored(suffix, shapes, tuple(_SCALES), required=False) for suffix in _SUFFIXES]
        return (Stored(".weight", ((rows, columns),), tuple(_TABLES)), *scales)

    def format(self, matrix: Matrix) -> CodeFormat:
        scales = matrix.entries[self._scales(matrix)]
        table = _TABLES[matrix.entries[".weight"].dtype]
        rows, group = self.block or ((1 if max((1, *scales.shape)) > 1 else None), None)
        return CodeFormat(8, table, _SCALES[scales.dtype], group=group, rows=rows)

    def decode(self, matrix: Matrix) -> Coded:
        format, scales = self.format(matrix), matrix.read(self._scales(matrix))
        if self.block is None:
            scales = scales.reshape(-1, 1)
        return Coded(format, matrix.read(".weight"), scales)

    def _scales(self, matrix: Matrix) -> str:
        found = [suffix for suffix in _SUFFIXES if suffix in matrix.entries]
        if not found:
            raise matrix.error(_SUFFIXES[0], "is missing: the scales of a weight of 8-bit floats")
        return found[0]


def read_fp8(config: ConfigReader) -> Method:
    """The method of a `quantization_config` with `quant_method` "fp8" or "fbgemm_fp8"."""
    return _method(config, [*config.names("modules_to_not_convert"), *config.names("ignored_layers")])


def read_modelopt(config: ConfigReader) -> Method:
    """The method of ModelOpt's `quantization_config`, or of its hf_quant_config.json."""
    inner = config.table("quantization") or config
    config.only("quant_method", ("modelopt", "modelopt_fp8"), "modelopt")
    inner.only("quant_algo", ALGORITHMS, None)
    return _method(inner, [*inner.names("exclude_modules"), *inner.names("ignore")])


def _method(config: ConfigReader, excluded: Sequence[str]) -> Method:
    config.only("fmt", ("e4m3", "e5m2", "float8_e4m3fn"), "e4m3")
    layout = FP8(_read_block(config))
    for key in excluded:
        if len(key) > MAX_LENGTH:
            raise UnsupportedModel(f"the pattern {key!r:.80} in {config.where} is longer than {MAX_LENGTH}")

    shells = [key for key in excluded if "*" in key]  # ModelOpt's lists have shell patterns
    means = naming_modules(key for key in excluded if "*" not in key)

    def of_module(module: str) -> Layout | None:
        out = means(module) or any(fnmatch.fnmatchcase(module, key) for key in shells)
        return None if out else layout

    return Method("fp8", of_module, ignored=IGNORED)


def _read_block(config: ConfigReader) -> tuple[int, int] | None:
    sizes = config.fields.get("weight_block_size")
    if sizes is None and config.fields.get("quant_algo") == "FP8_PB_WO":
        return 128, 128
    if sizes is None:
        return None
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise CheckpointError(f"weight_block_size in {config.where} must be two sizes, got {sizes!r:.80}")
    named = ConfigReader({"rows": sizes[0], "columns": sizes[1]}, f"weight_block_size of {config.where}")
    return named.integer("rows", 1, MAX_GROUP), named.integer("columns", 1, MAX_GROUP)
