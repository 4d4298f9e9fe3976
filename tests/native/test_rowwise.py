"""The row-wise kernels of every instruction set against numpy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import needs
from tests.instruction_sets import parameters

_native = needs.native()


SHAPES = [(1, 1), (1, 16), (3, 17), (7, 64), (33, 100), (5, 576), (40, 2048), (300, 130)]

Array = NDArray[Any]


@pytest.fixture(params=parameters())
def kernels(request: pytest.FixtureRequest) -> Any:
    return _native.Kernels(request.param)


@pytest.fixture(params=[1, 2, 3])
def team(request: pytest.FixtureRequest) -> Any:
    return _native.Team(request.param)


def rounded_bf16(x: Array) -> NDArray[np.uint16]:
    """Bit patterns of bfloat16, to nearest even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def padded(cols: int) -> int:
    return -(-cols // 64) * 64


def normed(x: Array, norm: Array, eps: float) -> Array:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps) * norm


def encode(
    kernels: Any, team: Any, x: Array, type: str, gather: Array | None = None, **options: Any
) -> Array:
    rows = len(x) if gather is None else len(gather)
    size = {"f32": 4, "bf16": 2, "i8": 1}[type]
    out = np.full(
        (rows, padded(x.shape[1]) * size), 0xAA, dtype=np.uint8
    )  # stale bytes must all be overwritten
    _native.encode(kernels, team, x, type, out, gather=gather, **options)
    return out


def encode_i8(
    kernels: Any, team: Any, x: Array, group: int, gather: Array | None = None, **options: Any
) -> tuple[Array, Array, Array]:
    """Codes [R, K], scales and sums [R, groups]."""
    rows, groups = len(x) if gather is None else len(gather), -(-padded(x.shape[1]) // group)
    scales = np.full((rows, groups), np.nan, dtype=np.float32)
    sums = np.full((rows, groups), -1, dtype=np.int32)
    out = encode(kernels, team, x, "i8", gather, group=group, scales=scales, sums=sums, **options)
    return out.view(np.int8), scales, sums


def sample(rows: int, cols: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_encode_f32_and_bf16_with_norm(kernels: Any, team: Any, rows: int, cols: int) -> None:
    x, norm = sample(rows, cols), sample(1, cols, seed=1)[0]
    expected = normed(x, norm, 1e-5)
    wide = encode(kernels, team, x, "f32", norm=norm, eps=1e-5).view(np.float32)
    assert np.abs(wide[:, :cols] - expected).max() < 2e-6 * np.abs(expected).max()
    assert not wide[:, cols:].any()
    half = encode(kernels, team, x, "bf16", norm=norm, eps=1e-5).view(np.uint16)
    assert np.array_equal(half, rounded_bf16(wide))


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_encode_without_norm_keeps_the_values(kernels: Any, team: Any, rows: int, cols: int) -> None:
    x = sample(rows, cols)
    wide = encode(kernels, team, x, "f32").view(np.float32)
    assert np.array_equal(wide[:, :cols], x)
    half = encode(kernels, team, x, "bf16").view(np.uint16)
    assert np.array_equal(half[:, :cols], rounded_bf16(x))
    assert not half[:, cols:].any()


@pytest.mark.parametrize("group", [32, 64, 128, 1 << 20])
@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_encode_i8(kernels: Any, team: Any, rows: int, cols: int, group: int) -> None:
    group = min(group, padded(cols))
    x, norm = sample(rows, cols), sample(1, cols, seed=1)[0]
    wide = encode(kernels, team, x, "f32", norm=norm, eps=1e-5).view(np.float32)
    codes, scales, sums = encode_i8(kernels, team, x, group, norm=norm, eps=1e-5)
    for index, start in enumerate(range(0, padded(cols), group)):
        part = wide[:, start : start + group]
        most = np.abs(part).max(axis=1)
        assert np.allclose(scales[:, index], most / 127, rtol=1e-6, atol=0)
        exact = part / np.where(most > 0, most / 127, 1)[:, None]
        assert np.abs(codes[:, start : start + group] - exact).max() < 0.5 + 1e-4
        assert np.array_equal(sums[:, index], codes[:, start : start + group].astype(np.int32).sum(axis=1))
    assert not codes[:, cols:].any()


def test_codes_round_to_the_nearest_even(kernels: Any, team: Any) -> None:
    x = np.zeros((1, 64), dtype=np.float32)
    x[0, :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    codes, scales, _ = encode_i8(kernels, team, x, 64)
    assert scales[0, 0] == 1.0
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_tiny_rows_become_small_codes_and_no_nan(kernels: Any, team: Any) -> None:
    for size in (1e-37, 1e-38, 1e-40, 1e-45):
        x = np.full((2, 64), size, dtype=np.float32)
        x[:, 3] = 0
        codes, scales, sums = encode_i8(kernels, team, x, 64)
        assert np.isfinite(scales).all() and (scales >= 0).all()
        assert not codes[:, 3].any() and (codes >= 0).all()
        assert np.array_equal(sums[:, 0], codes.astype(np.int32).sum(axis=1))


def test_non_finite_values_are_not_hidden(kernels: Any, team: Any) -> None:
    for strange in (np.nan, np.inf, -np.inf):
        x = sample(3, 128)
        x[1, 70] = strange
        _, scales, _ = encode_i8(kernels, team, x, 64)
        assert np.isfinite(scales).tolist() == [[True, True], [True, False], [True, True]]
        wide = encode(kernels, team, x, "f32", norm=np.ones(128, dtype=np.float32)).view(np.float32)
        assert not np.isfinite(wide[1]).all()
        assert np.isfinite(wide[[0, 2]]).all()


@pytest.mark.parametrize("cols", [48, 576, 2048])
def test_a_row_is_encoded_the_same_in_any_batch(kernels: Any, cols: int) -> None:
    x, norm = sample(97, cols), sample(1, cols, seed=1)[0]
    one, many = _native.Team(1), _native.Team(2)
    whole = encode_i8(kernels, many, x, 64, norm=norm, eps=1e-6)
    for row in (0, 1, 41, 96):
        alone = encode_i8(kernels, one, x[row : row + 1].copy(), 64, norm=norm, eps=1e-6)
        assert all(np.array_equal(a[0], b[row]) for a, b in zip(alone, whole, strict=True))
    rows = np.array([96, 3, 3, 0], dtype=np.int64)
    gathered = encode_i8(kernels, many, x, 64, rows, norm=norm, eps=1e-6)
    assert all(np.array_equal(a, b[rows]) for a, b in zip(gathered, whole, strict=True))


@pytest.mark.parametrize("type", ["f32", "bf16"])
def test_embed(kernels: Any, team: Any, type: str) -> None:
    for rows, cols in SHAPES:
        values = sample(50, cols)
        table = values if type == "f32" else rounded_bf16(values)
        ids = np.random.default_rng(3).integers(0, 50, rows)
        out = np.zeros((rows, cols), dtype=np.float32)
        _native.embed(kernels, team, ids, table, out)
        assert np.array_equal(out, (values if type == "f32" else from_bf16(rounded_bf16(values)))[ids])


@pytest.mark.parametrize("format", ["f32", "bf16", "f16"])
def test_embeddings_from_a_packed_head(kernels: Any, team: Any, format: str) -> None:
    for rows, cols in SHAPES:
        values = sample(50, cols)
        stored = {"f32": values, "bf16": rounded_bf16(values), "f16": values.astype(np.float16)}[format]
        packed = _native.PackedMatrix(kernels, team, format, [stored], input="f32")
        ids = np.random.default_rng(3).integers(0, 50, rows)
        out, expected = np.zeros((rows, cols), dtype=np.float32), np.zeros((rows, cols), dtype=np.float32)
        _native.embed(kernels, team, ids, packed, out)
        _native.embed(kernels, team, ids, stored, expected)
        assert np.array_equal(out, expected) and out.any()


def test_a_gated_matrix_holds_no_embeddings(kernels: Any, team: Any) -> None:
    ids, out = np.zeros(1, dtype=np.int64), np.zeros((1, 64), dtype=np.float32)
    matrix = _native.PackedMatrix(kernels, team, "f32", [sample(64, 64)], input="f32", gate=True)
    with pytest.raises(ValueError, match="without a gate"):
        _native.embed(kernels, team, ids, matrix, out)


@pytest.mark.parametrize("cols", [1, 15, 16, 17, 131, 32000])
def test_argmax_takes_the_first_of_equals(kernels: Any, team: Any, cols: int) -> None:
    logits = sample(9, cols).round(1)  # many equal values
    out = np.full(9, -1, dtype=np.int64)
    _native.argmax(kernels, team, logits, out)
    assert np.array_equal(out, logits.argmax(axis=1))


def test_argmax_of_nan_and_infinite_rows(kernels: Any, team: Any) -> None:
    inf, nan = np.inf, np.nan
    cases = {
        (nan, -inf, nan): 1,
        (nan, nan): 0,
        (-inf, -inf): 0,
        (nan, 3.0, nan, 3.0): 1,
        (inf, 2.0, inf): 0,
        (-0.0, 0.0): 0,
    }
    for values, expected in cases.items():
        for length in (len(values), 64):
            logits = np.full((1, length), np.nan, dtype=np.float32)
            logits[0, length - len(values) :] = values
            out = np.full(1, -1, dtype=np.int64)
            _native.argmax(kernels, team, logits, out)
            first = length - len(values)
            assert out[0] == (0 if np.isnan(logits).all() else first + expected)


@pytest.mark.parametrize("cols", [1, 17, 300])
def test_soft_cap(kernels: Any, team: Any, cols: int) -> None:
    logits = sample(11, cols) * 60
    expected = 30.0 * np.tanh(logits.astype(np.float64) / 30.0)
    _native.soft_cap(kernels, team, logits, 30.0)
    assert np.abs(logits - expected).max() < 3e-5
