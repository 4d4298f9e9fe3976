"""Blocks of GGUF files in every instruction set, against the `gguf` package's own dequantisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import needs
from tests.instruction_sets import parameters
from tests.native.test_code_formats import activations, seen

native = needs.native()
gguf = needs.package("gguf")

# Type -> bytes of a block, where its float16 numbers lie, and the features that share a scale.
TYPES: dict[str, tuple[int, tuple[int, ...], int]] = {
    "q4_0": (18, (0,), 32),
    "q4_1": (20, (0, 2), 32),
    "q5_0": (22, (0,), 32),
    "q5_1": (24, (0, 2), 32),
    "q8_0": (34, (0,), 32),
    "q2_k": (84, (80, 82), 16),
    "q3_k": (110, (108,), 16),
    "q4_k": (144, (0, 2), 32),
    "q5_k": (176, (0, 2), 32),
    "q6_k": (210, (208,), 16),
    "iq4_nl": (18, (0,), 32),
    "iq4_xs": (136, (0,), 32),
    "mxfp4": (17, (), 32),
}
sets = pytest.mark.parametrize("name", parameters())
types = pytest.mark.parametrize("type", TYPES)


@pytest.fixture(scope="module")
def team() -> Any:
    return native.Team(2)


def blocks(type: str, rows: int, cols: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """(random blocks [rows, bytes of a row], what they stand for)"""
    size, numbers, _ = TYPES[type]
    kind = gguf.GGMLQuantizationType[type.upper()]
    features = gguf.GGML_QUANT_SIZES[kind][0]
    random = np.random.default_rng(rows + cols)
    raw = random.integers(0, 256, (rows, cols // features, size)).astype(np.uint8)
    for at in numbers:
        values = (random.standard_normal((*raw.shape[:2], 1)) * 0.01).astype(np.float16)
        values[0, 0], values[-1, -1] = 0, 6e-8  # a subnormal one
        raw[:, :, at : at + 2] = values.view(np.uint8)
    if type == "mxfp4":
        raw[:, :, 0] = random.integers(110, 130, raw.shape[:2])
        raw[0, 0, 0], raw[-1, -1, 0] = 0, 1
    raw = raw.reshape(rows, -1)
    return raw, gguf.quants.dequantize(raw, kind)


@sets
@types
def test_rows_equal_the_package(team: Any, name: str, type: str) -> None:
    raw, weights = blocks(type, 83, 768)
    for parts in ([raw], [raw[:20].copy(), raw[20:].copy()], [(raw.ctypes.data, 83, 768)]):
        matrix = native.PackedMatrix.from_blocks(native.Kernels(name), team, type, parts)
        assert (matrix.rows, matrix.cols, matrix.group, matrix.span) == (
            83,
            768,
            TYPES[type][2],
            TYPES[type][2],
        )
        out = np.zeros((83, 768), np.float32)
        native.embed(native.Kernels(name), team, np.arange(83), matrix, out)
        np.testing.assert_array_equal(out, weights)


@sets
@types
def test_products_equal_dequantise_then_multiply(team: Any, name: str, type: str) -> None:
    raw, weights = blocks(type, 83, 768)
    kernels, group = native.Kernels(name), TYPES[type][2]
    matrix = native.PackedMatrix.from_blocks(kernels, team, type, [raw])
    x = activations(40, 768)
    together = native.linear(kernels, team, x, matrix)
    expected = seen(x, "i8", group) @ weights.T.astype(np.float64)
    assert (np.abs(together - expected) / (np.abs(x) @ np.abs(weights.T) + 1e-30)).max() < 2e-6
    for rows in (1, 2, 3, 4, 5, 8, 9, 17, 33):
        np.testing.assert_array_equal(native.linear(kernels, team, x[:rows].copy(), matrix), together[:rows])


@sets
@pytest.mark.parametrize("type", ["q6_k", "q2_k", "q8_0"])
@pytest.mark.parametrize(("rows", "cols"), [(51, 6144), (3, 18688)])
def test_long_rows_are_multiplied_in_sections(team: Any, name: str, type: str, rows: int, cols: int) -> None:
    """More spans than are made ready at once, in numbers that do not end with a super-block."""
    raw, weights = blocks(type, 33, cols)
    kernels, group = native.Kernels(name), TYPES[type][2]
    matrix = native.PackedMatrix.from_blocks(kernels, team, type, [raw])
    x = activations(rows, cols)
    together = native.linear(kernels, team, x, matrix)
    expected = seen(x, "i8", group) @ weights.T.astype(np.float64)
    assert (np.abs(together - expected) / (np.abs(x) @ np.abs(weights.T) + 1e-30)).max() < 2e-6
    for some in (1, rows // 2):
        np.testing.assert_array_equal(native.linear(kernels, team, x[:some].copy(), matrix), together[:some])


@sets
@pytest.mark.parametrize("type", ["q2_k", "q3_k", "q4_k", "iq4_xs"])
def test_few_rows_in_sections_equal_more_rows(team: Any, name: str, type: str) -> None:
    """Up to four rows have tiles of their own. A section has up to 1,152 groups of a row."""
    cols = 37376
    raw, _ = blocks(type, 17, cols)
    kernels = native.Kernels(name)
    matrix = native.PackedMatrix.from_blocks(kernels, team, type, [raw])
    x = activations(5, cols)
    together = native.linear(kernels, team, x, matrix)
    for rows in (1, 2, 3, 4):
        np.testing.assert_array_equal(native.linear(kernels, team, x[:rows].copy(), matrix), together[:rows])


@sets
@pytest.mark.parametrize("type", ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"])
@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xFF])
def test_the_largest_codes_scales_and_activations_do_not_overflow(
    team: Any, name: str, type: str, byte: int
) -> None:
    """Sums of whole numbers, some of them in 16 bits on the way."""
    size, numbers, _ = TYPES[type]
    raw = np.full((33, 2, size), byte, np.uint8)
    for at in numbers:
        raw[:, :, at : at + 2] = np.float16([1]).view(np.uint8)
    raw = raw.reshape(33, -1)
    weights = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type.upper()]).astype(np.float64)
    kernels = native.Kernels(name)
    matrix = native.PackedMatrix.from_blocks(kernels, team, type, [raw])
    ones = np.ones((33, 512), np.float32)
    signs = np.random.default_rng(0).choice([-1, 1], ones.shape).astype(np.float32)
    for x in (ones, -ones, signs):
        expected = x @ weights.T
        for rows in (1, 7, 33):
            error = np.abs(native.linear(kernels, team, x[:rows].copy(), matrix) - expected[:rows])
            assert (error / np.abs(weights).sum(axis=1)).max() < 1e-6


@types
def test_a_block_of_32_may_end_before_the_padding(team: Any, type: str) -> None:
    """96 features are padded to 128; types with super-blocks refuse the length."""
    size, _, group = TYPES[type]
    kernels = native.Kernels("portable")
    kind = gguf.GGMLQuantizationType[type.upper()]
    if gguf.GGML_QUANT_SIZES[kind][0] == 256:
        memory = np.zeros(size, np.uint8)
        with pytest.raises(ValueError, match="whole blocks"):
            native.PackedMatrix.from_blocks(kernels, team, type, [(memory.ctypes.data, 1, 96)])
        return
    raw, weights = blocks(type, 5, 96)
    x = activations(3, 96)
    got = native.linear(kernels, team, x, native.PackedMatrix.from_blocks(kernels, team, type, [raw]))
    expected = seen(x, "i8", group) @ weights.T.astype(np.float64)
    assert (np.abs(got - expected) / (np.abs(x) @ np.abs(weights.T) + 1e-30)).max() < 2e-6


def test_bytes_that_are_no_blocks_are_refused(team: Any) -> None:
    kernels = native.Kernels("portable")
    with pytest.raises(ValueError, match="whole blocks of 144"):
        native.PackedMatrix.from_blocks(kernels, team, "q4_k", [np.zeros((2, 143), np.uint8)])
    with pytest.raises(ValueError, match="no blocks of type tq1_0"):
        native.PackedMatrix.from_blocks(kernels, team, "tq1_0", [np.zeros((2, 54), np.uint8)])
    for parts in ([], [np.zeros((0, 144), np.uint8)], [(0, -1, 256)], [(0, 4, 0)]):
        with pytest.raises(ValueError):
            native.PackedMatrix.from_blocks(kernels, team, "q4_k", parts)


@types
def test_packed_blocks_in_memory_that_is_kept(team: Any, type: str) -> None:
    raw, _ = blocks(type, 82, 768)
    set_ = native.Kernels(native.available_kernels()[0])
    bias = np.arange(82, dtype=np.float32)
    made = native.PackedMatrix.from_blocks(set_, team, type, [raw], gate=True, bias=bias)
    whole = b"".join(piece.tobytes() for piece in made.pieces)
    room = np.zeros(len(whole) + 4096, np.uint8)
    start = -room.ctypes.data % 4096
    kept = room[start : start + len(whole)]
    kept[:] = np.frombuffer(whole, np.uint8)
    shape: dict[str, Any] = {"rows": 82, "cols": 768, "gate": True, "bias": True}
    again = native.PackedMatrix.mapped_blocks(kept, type, **shape)
    for fact in ("format", "input", "rows", "cols", "group", "span", "nbytes"):
        assert getattr(again, fact) == getattr(made, fact)
    x = np.random.default_rng(0).standard_normal((3, 768)).astype(np.float32)
    products = [native.linear(set_, team, x, one, epilogue="gate", gate="silu") for one in (made, again)]
    assert products[0].tobytes() == products[1].tobytes()
    with pytest.raises(ValueError, match="than its memory"):
        native.PackedMatrix.mapped_blocks(kept, type, **{**shape, "bias": False})
    with pytest.raises(ValueError, match="whole blocks"):
        native.PackedMatrix.mapped_blocks(kept, type, **{**shape, "cols": 16})
    with pytest.raises(ValueError, match="no blocks of type q9"):
        native.PackedMatrix.mapped_blocks(kept, "q9", **shape)
