"""The linear op of every instruction set: against float64, and bit for bit the same in any batch."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests import needs
from tests.instruction_sets import parameters

native = needs.native()


ROWS = [1, 2, 5, 6, 7, 16, 17, 33, 100]
FORMATS = {  # what activations become, and how far a product may be from float64, relative to its largest value
    ("f32", "f32"): 1e-5,
    ("bf16", "bf16"): 1e-5,
    ("bf16", "f32"): 1e-5,
    ("f16", "f32"): 1e-5,
    ("int8", "i8"): 2e-5,
    ("int8", "bf16"): 2e-5,
    ("int4", "i8"): 2e-5,
    ("int4", "bf16"): 2e-5,
}
sets = pytest.mark.parametrize("name", parameters())
formats = pytest.mark.parametrize(("format", "input"), FORMATS)


@pytest.fixture(scope="module")
def team():
    return native.Team(2)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bf16(x: np.ndarray) -> np.ndarray:
    """Rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def grouped(x: np.ndarray, group: int) -> np.ndarray:
    """[rows, groups, group], padded with zeros to a multiple of 64 features as the packed form is."""
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % 64)))
    padded = np.pad(padded, ((0, 0), (0, -padded.shape[1] % group)))
    return padded.reshape(len(x), -1, group)


def dequantised(w: np.ndarray, format: str, group: int) -> np.ndarray:
    """Symmetric rounding to nearest as csrc/isa/pack_codes.h describes it."""
    if format == "f32":
        return w
    if format == "bf16":
        return widened(bf16(w))
    if format == "f16":
        return w.astype(np.float16).astype(np.float32)
    parts = grouped(w, group)
    if format == "int8":
        scale = (np.abs(parts).max(-1, keepdims=True) / np.float32(127)).astype(np.float16).astype(np.float32)
        low, high = -127, 127
    else:
        index = np.abs(parts).argmax(-1)[..., None]
        scale = (np.take_along_axis(parts, index, -1) / np.float32(-8)).astype(np.float16).astype(np.float32)
        low, high = -8, 7
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return (np.clip(np.rint(parts * inverse), low, high) * scale).reshape(len(w), -1)[:, : w.shape[1]]


def encoded(x: np.ndarray, input: str, group: int) -> np.ndarray:
    if input == "f32":
        return x
    if input == "bf16":
        return widened(bf16(x))
    parts = grouped(x, group)
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return (np.rint(parts * inverse) * scale).reshape(len(x), -1)[:, : x.shape[1]]


def pack(name: str, team, w: np.ndarray | list[np.ndarray], format: str, input: str, **options):
    parts = w if isinstance(w, list) else [w]
    group = 64 if format.startswith("int") else 0
    return native.PackedMatrix(native.Kernels(name), team, format, parts, input=input, group=group, **options)


def off_by(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@sets
@formats
@pytest.mark.parametrize(("features", "cols"), [(77, 100), (16, 64), (1, 1), (112, 640)])
def test_products_equal_float64(team, name, format, input, features, cols):
    kernels = native.Kernels(name)
    w, bias = random(features, cols), random(features, seed=1)
    packed = pack(name, team, w, format, input, bias=bias)
    assert (packed.rows, packed.cols, packed.format, packed.input) == (features, cols, format, input)
    weights = dequantised(w, format, 64).astype(np.float64)
    for rows in ROWS:
        x = random(rows, cols, seed=rows)
        expected = encoded(x, input, 64).astype(np.float64) @ weights.T + bias
        got = native.linear(kernels, team, x, packed)
        # One code of an activation may round the other way than numpy's.
        tolerance = FORMATS[format, input] + (2e-3 if input == "i8" else 0)
        assert off_by(got, expected) < tolerance, rows


@sets
@formats
def test_a_row_does_not_depend_on_the_batch(name, format, input):
    kernels = native.Kernels(name)
    w, x = random(333, 700), random(100, 700, seed=2)
    one, two = native.Team(1), native.Team(2)
    packed = pack(name, two, w, format, input)
    together = native.linear(kernels, two, x, packed)
    assert np.isfinite(together).all()
    np.testing.assert_array_equal(native.linear(kernels, one, x, packed), together)
    for rows in ROWS:
        for first in (0, 100 - rows):
            alone = native.linear(kernels, two, x[first : first + rows].copy(), packed)
            np.testing.assert_array_equal(
                alone, together[first : first + rows], err_msg=f"{rows} rows from {first}"
            )


@sets
@pytest.mark.parametrize("source", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("format", ["f32", "bf16", "f16"])
def test_packs_every_source_exactly_where_it_can(team, name, source, format):
    """A product with rows of the identity shows the weights themselves."""
    w = random(37, 100)
    stored = {"f32": w, "f16": w.astype(np.float16), "bf16": bf16(w)}[source]
    values = widened(stored) if source == "bf16" else stored.astype(np.float32)
    expected = dequantised(values, format, 0)
    for part in (stored, (stored.ctypes.data, source, *stored.shape)):
        packed = pack(name, team, [part], format, "f32" if format == "f16" else format)
        got = native.linear(native.Kernels(name), team, np.eye(100, dtype=np.float32), packed)
        np.testing.assert_array_equal(got.T, expected)


@sets
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_add_adds_to_the_residual_and_to_nothing_else(team, name, rows):
    w, x, residual = random(77, 100), random(rows, 100, seed=1), random(rows, 77, seed=2)
    packed = pack(name, team, w, "f32", "f32")
    product = native.linear(native.Kernels(name), team, x, packed)
    out = residual.copy()
    assert native.linear(native.Kernels(name), team, x, packed, "add", out=out) is out
    np.testing.assert_array_equal(out, residual + product)


GATES = {
    "none": lambda x: x,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@sets
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("width", [40, 64])
def test_gate(team, name, gate, width):
    g, u, bias = random(width, 100), random(width, 100, seed=1), random(2 * width, seed=2)
    x = random(19, 100, seed=3)
    packed = pack(name, team, [g, u], "f32", "f32", gate=True, bias=bias)
    expected = GATES[gate](x.astype(np.float64) @ g.T + bias[:width]) * (x @ u.T + bias[width:])
    got = native.linear(native.Kernels(name), team, x, packed, "gate", gate)
    assert got.shape == (19, -(-width // 16) * 16)
    assert off_by(got[:, :width], expected) < 1e-5
    assert (got[:, width:] == 0).all()
    np.testing.assert_array_equal(
        native.linear(native.Kernels(name), team, x, packed, "gate", gate, out_dtype="bf16"), bf16(got)
    )


@sets
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("width", [40, 64])
def test_gate_and_up_as_two_products_have_the_bits_of_one(team, name, gate, width):
    kernels, x = native.Kernels(name), random(19, 100, seed=3)
    g, u, bias = random(width, 100), random(width, 100, seed=1), random(2 * width, seed=2)
    both = pack(name, team, [g, u], "f32", "f32", gate=True, bias=bias)
    expected = native.linear(kernels, team, x, both, "gate", gate)[:, :width]
    gates = native.linear(kernels, team, x, pack(name, team, g, "f32", "f32", bias=bias[:width]))
    up = pack(name, team, u, "f32", "f32", bias=bias[width:])
    np.testing.assert_array_equal(
        native.linear(kernels, team, x, up, "multiply", gate, gates=gates), expected
    )
    narrow = native.linear(kernels, team, x, up, "multiply", gate, gates=gates, out_dtype="bf16")
    np.testing.assert_array_equal(narrow, bf16(expected))


@sets
@pytest.mark.parametrize("gate", ["silu", "gelu", "gelu_tanh"])
def test_gates_are_right_far_from_zero_too(team, name, gate):
    """One input feature, so that the gate's argument is the input itself."""
    ones = np.ones((16, 1), np.float32)
    packed = pack(name, team, [ones, ones], "f32", "f32", gate=True)
    x = np.concatenate([np.linspace(-12, 12, 4001), [-300, -88, 88, 300, -1e18, 1e18, 1e-30, 0]])
    x = x.astype(np.float32)[:, None]
    got = native.linear(native.Kernels(name), team, x, packed, "gate", gate)[:, :1]
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = GATES[gate](wide) * wide
    np.testing.assert_allclose(got, expected, rtol=3e-6, atol=1e-5)


@sets
def test_bf16_out_is_the_f32_result_rounded(team, name):
    w, x = random(77, 100), random(19, 100, seed=1)
    packed = pack(name, team, w, "bf16", "bf16")
    kernels = native.Kernels(name)
    exact = native.linear(kernels, team, x, packed)
    np.testing.assert_array_equal(native.linear(kernels, team, x, packed, out_dtype="bf16"), bf16(exact))


def test_refusals(team):
    kernels = native.Kernels("portable")
    packed = pack("portable", team, random(8, 8), "f32", "f32")
    x = random(2, 8)
    for bad in (
        {"x": random(2, 9)},
        {"epilogue": "add"},
        {"epilogue": "gate"},
        {"epilogue": "divide"},
        {"epilogue": "multiply"},
        {"epilogue": "multiply", "gates": random(2, 7)},
        {"out_dtype": "f16"},
        {"out": random(3, 8)},
    ):
        with pytest.raises(ValueError):
            native.linear(kernels, team, **{"x": x, "w": packed, **bad})


@sets
@pytest.mark.parametrize(("format", "bytes_each"), [("bf16", 2), ("f16", 2)])
def test_sixteen_bits_give_the_bits_of_float32(team, name, format, bytes_each):
    """Stored in 16 bits and widened as they are read: half the memory, and not one bit of a product differs."""
    kernels = native.Kernels(name)
    values = dequantised(random(150, 700), format, 0)
    stored = bf16(values) if format == "bf16" else values.astype(np.float16)
    narrow = native.PackedMatrix(kernels, team, format, [stored], input="f32")
    wide = native.PackedMatrix(kernels, team, "f32", [stored], input="f32")
    assert narrow.panels.nbytes * 2 == wide.panels.nbytes == 160 * 704 * 4
    for rows in ROWS:
        x = random(rows, 700, seed=rows)
        expected = native.linear(kernels, team, x, wide)
        np.testing.assert_array_equal(native.linear(kernels, team, x, narrow), expected)


@sets
def test_every_float16_is_read_as_numpy_reads_it(team, name):
    """All 65,536 of them, subnormal ones, infinities and NaNs too, from a table and from a packed matrix."""
    table = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(1 << 10, 64)
    kernels, ids = native.Kernels(name), np.arange(1 << 10)
    for stored in (table, native.PackedMatrix(kernels, team, "f16", [table], input="f32")):
        out = np.zeros(table.shape, dtype=np.float32)
        native.embed(kernels, team, ids, stored, out)
        np.testing.assert_array_equal(out, table.astype(np.float32))


def test_unsupported_type_pairs_are_refused(team):
    kernels, w = native.Kernels("portable"), random(16, 64)
    for format, input in (("f32", "bf16"), ("f16", "bf16"), ("bf16", "i8"), ("f16", "f16"), ("int8", "f32")):
        with pytest.raises(ValueError, match="cannot meet"):
            native.PackedMatrix(kernels, team, format, [w], input=input)
