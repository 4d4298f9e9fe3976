"""Every format of weight codes in every instruction set: dequantised bit for bit, and dequantise-then-multiply.

Codes, scales, zeros and minima are random here, and their meaning is computed by numpy alone. Blocks of GGUF files are
held against the `gguf` package in test_blocks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import needs
from tests.instruction_sets import SETS, parameters

native = needs.native()

Array = NDArray[Any]

IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 31, 64, 107)
BITS = {"int8": 8, "int6": 6, "int5": 5, "int4": 4, "int3": 3, "int2": 2, "table4": 4, "e4m3": 8, "e5m2": 8}


@dataclass(frozen=True)
class Case:
    format: str
    group: int
    scale: str = "f16"
    beside: str = "none"  # zeros | minima
    input: str = "i8"
    span: int = 0
    middle: int | None = None

    def __str__(self) -> str:
        parts = (self.format, self.group, self.scale, self.beside, self.input, self.span, self.middle)
        return "-".join(str(part) for part in parts)


CASES = [
    Case("int8", 128, "bf16"),
    Case("int8", 0, "f32", span=128),  # one scale an output feature, activations in groups
    Case("int8", 32, "f16", "minima"),
    Case("int8", 512, "f32", "zeros", span=64),
    Case("int4", 16, "f32", middle=4),
    Case("int4", 48, "f16", "zeros"),
    Case("int4", 32, "bf16", "minima"),
    Case("int4", 0, "f32", "zeros", "bf16"),
    Case("int5", 32),
    Case("int5", 64, "f32", "minima", span=32),
    Case("int5", 96, "f16", "zeros", "bf16"),
    Case("int5", 16, "bf16", "minima"),
    Case("int3", 16),
    Case("int3", 128, "f16", "zeros", span=16),
    Case("int3", 64, "f32", "zeros", "bf16"),
    Case("int2", 16, "f32", "minima"),
    Case("int2", 128, "bf16", "none", "bf16"),
    Case("int6", 16, "f16"),
    Case("int6", 128, "bf16", "zeros", span=16),
    Case("int6", 64, "f32", "none", "bf16"),
    Case("int6", 272),  # two spans are a whole number of vectors, one is not
    Case("int4", 496, "f32", "zeros"),
    Case("int2", 304, "f16", "minima"),
    Case("table4", 32, "f16"),
    Case("table4", 32, "e8m0"),
    Case("table4", 64, "f32", "none", "bf16"),
    Case("e4m3", 128, "f32", "none", "bf16"),
    Case("e4m3", 0, "bf16", "none", "bf16"),
    Case("e5m2", 32, "e8m0", "none", "bf16"),
]
sets = pytest.mark.parametrize("name", parameters())
cases = pytest.mark.parametrize("case", CASES, ids=str)


@pytest.fixture(scope="module")
def team() -> Any:
    return native.Team(2)


def rounded(x: Array) -> Array:
    """To bfloat16, nearest even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def float8(codes: Array, format: str) -> Array:
    """The numbers of E4M3 (finite, NaN at the top) and E5M2, from their definition."""
    mantissa_bits, bias = (3, 7) if format == "e4m3" else (2, 15)
    sign = np.where(codes & 0x80, -1.0, 1.0)
    exponent = (codes & 0x7F) >> mantissa_bits
    mantissa = (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    normal = np.ldexp(1 + mantissa, exponent.astype(np.int32) - bias)
    return (sign * np.where(exponent == 0, np.ldexp(mantissa, 1 - bias), normal)).astype(np.float32)


def finite(format: str) -> Array:
    top = {"e4m3": 0x7F, "e5m2": 0x7C}.get(format)
    codes = np.arange(1 << BITS[format])
    return codes if top is None else codes[(codes & 0x7F) < top]


def scales_of(case: Case, random: np.random.Generator, shape: tuple[int, int]) -> tuple[Array, Array]:
    """(as stored, float32)"""
    if case.scale == "e8m0":
        powers = random.integers(118, 125, shape).astype(np.uint8)
        return powers, np.ldexp(np.float32(1), powers.astype(np.int32) - 127)
    values = (random.standard_normal(shape) * 0.02).astype(np.float32)
    if case.scale == "bf16":
        return rounded(values), widened(rounded(values))
    if case.scale == "f16":
        return values.astype(np.float16), values.astype(np.float16).astype(np.float32)
    return values, values


@dataclass(frozen=True)
class Made:
    matrix: Any
    weights: Array  # float32 [rows, cols], dequantised
    span: int


def make(name: str, team: Any, case: Case, rows: int = 83, cols: int = 832, **options: Any) -> Made:
    random = np.random.default_rng(rows + cols + case.group)
    group = case.group or cols
    groups = -(-cols // group)
    codes = random.choice(finite(case.format), (rows, cols)).astype(np.uint8)
    stored, scales = scales_of(case, random, (rows, groups))
    third = None
    numbers = codes.astype(np.float32)
    zeros = np.zeros((rows, groups), np.float32)
    minima = None
    table: Array | None = None
    if case.format == "table4":
        table = IQ4 if case.input == "i8" else rounded(E2M1)
        numbers = (IQ4.astype(np.float32) if case.input == "i8" else E2M1)[codes]
    elif case.format in ("e4m3", "e5m2"):
        numbers = float8(codes, case.format)
    elif case.beside == "zeros":
        third = random.integers(0, 1 << BITS[case.format], (rows, groups)).astype(np.uint8)
        zeros = third.astype(np.float32)
    elif case.beside == "minima":
        third, minima = scales_of(case, random, (rows, groups))
    else:
        zeros += case.middle if case.middle is not None else 1 << (BITS[case.format] - 1)
    cut = rows // 3
    parts = [(a, b, c) for a, b, c in (
        (codes[:cut], stored[:cut], None if third is None else third[:cut]),
        (codes[cut:], stored[cut:], None if third is None else third[cut:]),
    )]  # fmt: skip
    matrix = native.PackedMatrix.from_codes(
        native.Kernels(name), team, case.format, parts, input=case.input, group=case.group, span=case.span,
        middle=case.middle, table=table, **options,
    )  # fmt: skip

    def spread(x: Array) -> Array:
        return x.repeat(group, axis=1)[:, :cols]

    weights = spread(scales) * (numbers - spread(zeros))
    if minima is not None:
        weights = spread(scales) * numbers + spread(minima)
    return Made(matrix, weights.astype(np.float32), case.span or group)


def seen(x: Array, input: str, span: int) -> Array:
    """Activations as the kernels encode them, float64."""
    if input == "bf16":
        return widened(rounded(x)).astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % span))).reshape(len(x), -1, span)
    top = np.abs(padded).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    codes = np.rint(padded * inverse).astype(np.float64)
    return (codes * (top / np.float32(127))).reshape(len(x), -1)[:, : x.shape[1]]


def activations(rows: int, cols: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, cols)).astype(np.float32)


@sets
@cases
def test_rows_are_dequantised_bit_for_bit(team: Any, name: str, case: Case) -> None:
    for cols in (832, 100):
        made = make(name, team, case, cols=cols)
        ids = np.arange(83)[::-1].copy()
        out = np.full((83, cols), 7, np.float32)
        native.embed(native.Kernels(name), team, ids, made.matrix, out)
        np.testing.assert_array_equal(out, made.weights[ids])


@sets
@cases
def test_products_equal_dequantise_then_multiply(team: Any, name: str, case: Case) -> None:
    for cols in (832, 100):
        made = make(name, team, case, cols=cols)
        for rows in (1, 4, 6, 21):
            x = activations(rows, cols)
            got = native.linear(native.Kernels(name), team, x, made.matrix)
            expected = seen(x, case.input, made.span) @ made.weights.T.astype(np.float64)
            scale = np.abs(x) @ np.abs(made.weights.T)  # what rounding of sums is relative to
            assert (np.abs(got - expected) / scale).max() < 2e-6


@sets
@cases
def test_a_row_keeps_every_bit_in_any_batch(name: str, case: Case) -> None:
    kernels, one, two = native.Kernels(name), native.Team(1), native.Team(2)
    made = make(name, two, case, rows=163)
    x = activations(107, 832)
    together = native.linear(kernels, two, x, made.matrix)
    np.testing.assert_array_equal(native.linear(kernels, one, x, made.matrix), together)
    for rows in ROWS:
        alone = native.linear(kernels, two, x[107 - rows :].copy(), made.matrix)
        np.testing.assert_array_equal(alone, together[107 - rows :], err_msg=f"{rows} rows")


@sets
@pytest.mark.parametrize("case", [case for case in CASES if case.input == "bf16"], ids=str)
def test_few_rows_by_many_panels_keep_every_bit(name: str, case: Case) -> None:
    """29 panels: so many that one thread takes several at a time, and one is left. 43: three are left."""
    kernels, team = native.Kernels(name), native.Team(1)
    x = activations(9, 832)
    for features in (451, 680):
        made = make(name, team, case, rows=features)
        together = native.linear(kernels, team, x, made.matrix)
        for rows in (1, 2, 3):
            alone = native.linear(kernels, team, x[9 - rows :].copy(), made.matrix)
            np.testing.assert_array_equal(
                alone, together[9 - rows :], err_msg=f"{rows} rows, {features} features"
            )


@pytest.mark.parametrize("case", [case for case in CASES if case.input == "i8"], ids=str)
def test_sets_with_a_fused_product_agree_in_every_bit(team: Any, case: Case) -> None:
    fused = [name for name in SETS if name not in ("portable", "amx-emulated")]
    x = activations(11, 832)
    results = [native.linear(native.Kernels(name), team, x, make(name, team, case).matrix) for name in fused]
    for name, other in zip(fused, results, strict=True):
        np.testing.assert_array_equal(other, results[0], err_msg=name)


@sets
@pytest.mark.parametrize("format", ["e4m3", "e5m2"])
def test_every_float_of_eight_bits(team: Any, name: str, format: str) -> None:
    """Subnormal ones and both zeros too; NaN and infinity make their output feature a NaN, and no other."""
    kernels = native.Kernels(name)
    codes = np.arange(256, dtype=np.uint8).reshape(1, 256).repeat(2, axis=0)
    ordinary = np.isin(np.arange(256), finite(format))
    codes[1, ~ordinary] = 0
    matrix = native.PackedMatrix.from_codes(
        kernels, team, format, [(codes, np.ones((2, 2), np.float32), None)], input="bf16", group=128
    )
    identity = np.eye(256, dtype=np.float32)
    got = native.linear(kernels, team, identity, matrix)
    assert np.isnan(got[:, 0]).all()
    np.testing.assert_array_equal(got[ordinary, 1], float8(codes[1, ordinary], format))
    for row in range(256):  # alone, by another kernel
        alone = native.linear(kernels, team, identity[row : row + 1], matrix)
        np.testing.assert_array_equal(alone, got[row : row + 1], err_msg=f"code {row}")


@sets
def test_gate_and_bias_of_codes(team: Any, name: str) -> None:
    """The rows of gate and up alternate, their scales and minima with them."""
    bias = np.random.default_rng(1).standard_normal(96).astype(np.float32)
    case = Case("int5", 32, "f16", "minima")
    gated = make(name, team, case, rows=96, gate=True, bias=bias)
    plain = make(name, team, case, rows=96, bias=bias)
    for rows in (1, 7, 40):
        x = activations(rows, 832)
        both = native.linear(native.Kernels(name), team, x, plain.matrix)
        got = native.linear(native.Kernels(name), team, x, gated.matrix, "gate", "none")
        np.testing.assert_array_equal(got, both[:, :48] * both[:, 48:])


def test_what_does_not_fit_is_refused(team: Any) -> None:
    codes, scales = np.zeros((16, 128), np.uint8), np.ones((16, 4), np.float16)

    def pack(format: str, third: Array | None = None, scales: Array = scales, **options: Any) -> None:
        options = {"input": "i8", "group": 32, **options}
        native.PackedMatrix.from_codes(
            native.Kernels("portable"), team, format, [(codes, scales, third)], **options
        )

    pack("int5")
    for format, options, why in (
        ("int5", {"group": 48, "scales": np.ones((16, 3), np.float16)}, "multiple of 32"),
        ("int3", {"group": 16, "scales": np.ones((16, 8), np.float16), "input": "bf16"}, "multiple of 32"),
        ("int4", {"span": 24}, "multiple of 16"),
        ("int4", {"span": 64}, "whole groups of activations"),
        ("int4", {"third": scales, "input": "bf16"}, "minima"),
        ("int4", {"third": np.ones((16, 4), np.float32)}, "type of the scales"),
        ("e4m3", {}, "cannot meet"),
        ("e4m3", {"third": np.ones((16, 4), np.uint8), "input": "bf16"}, "no zeros"),
        ("table4", {}, "have a table"),
        ("int4", {"table": IQ4}, "have a table"),
        ("table4", {"table": IQ4, "input": "bf16"}, "holds int8 for i8"),
        ("int4", {"unit": 3.0}, "power of two"),
        ("int4", {"middle": 256}, "below 256"),
        ("f32", {}, "no codes"),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=why):
            pack(format, **options)


@sets
@pytest.mark.parametrize("input", ["i8", "bf16"])
def test_columns_in_an_order_of_their_own(team: Any, name: str, input: str) -> None:
    """Codes whose columns are sorted by group, as GPTQ's activation order leaves them, mean the same weights."""
    kernels, random = native.Kernels(name), np.random.default_rng(4)
    order = random.permutation(200).astype(np.int32)
    codes = random.integers(0, 16, (40, 200)).astype(np.uint8)
    scales = random.standard_normal((40, 7)).astype(np.float16)
    parts = [(codes, scales, None)]
    options: dict[str, Any] = {"input": input, "group": 32}
    plain = native.PackedMatrix.from_codes(kernels, team, "int4", parts, **options)
    ordered = native.PackedMatrix.from_codes(kernels, team, "int4", parts, order=order, **options)
    assert ordered.ordered and not plain.ordered
    x = activations(9, 200)
    np.testing.assert_array_equal(
        native.linear(kernels, team, x, ordered),
        native.linear(kernels, team, x[:, order].copy(), plain),
    )
    ids, rows, expected = np.arange(40), np.zeros((40, 200), np.float32), np.zeros((40, 200), np.float32)
    native.embed(kernels, team, ids, ordered, rows)
    native.embed(kernels, team, ids, plain, expected)
    np.testing.assert_array_equal(rows[:, order], expected)
    for wrong in (order[:-1].copy(), np.zeros(200, np.int32), order + 1, order - 1):
        with pytest.raises(ValueError, match="an order of columns"):
            native.PackedMatrix.from_codes(kernels, team, "int4", parts, order=wrong, **options)
