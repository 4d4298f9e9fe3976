"""int8 and int4 weights in every instruction set, held against the reference in headrace.quant."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from headrace.quant import grouped, int4, int8
from headrace.quant.grouped import Quantized
from tests import needs
from tests.instruction_sets import SETS, parameters

native = needs.native()


QUANTIZE = {"int8": int8.quantize, "int4": int4.quantize}
GROUPS = (0, 32, 64, 128)
CASES = list(itertools.product(QUANTIZE, GROUPS, (True, False)))
sets = pytest.mark.parametrize("name", parameters())
cases = pytest.mark.parametrize(("format", "group", "symmetric"), CASES)


@pytest.fixture(scope="module")
def team() -> native.Team:
    return native.Team(2)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(rows: int, cols: int) -> torch.Tensor:
    """With a column far off the others, a row of zeros, and values below what an f16 scale can hold."""
    w = random(rows, cols, seed=rows + cols) * 0.05
    w[:, 0] *= 20
    w[rows // 2] = 0
    w[rows // 3] *= 1e-8
    return w


def source(w: torch.Tensor, kind: str) -> tuple[np.ndarray, torch.Tensor]:
    """(what is packed, the float32 values of that)"""
    if kind == "f32":
        return w.numpy(), w
    stored = w.to(torch.float16 if kind == "f16" else torch.bfloat16)
    array = stored.numpy() if kind == "f16" else stored.view(torch.uint16).numpy()
    return array, stored.to(torch.float32)


def reference(w: torch.Tensor, format: str, group: int, symmetric: bool) -> Quantized:
    return QUANTIZE[format](w, group or None, symmetric)


def unpacked(matrix: native.PackedMatrix) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """(codes [rows, cols], scales [rows, groups] as bits, zeros) of panels laid out as csrc/tensors.h says."""
    panels = matrix.panels
    if matrix.format == "int8":
        codes = panels.reshape(len(panels), -1, 16, 4)
    else:
        packed = panels.reshape(len(panels), -1, 16, 4)
        codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(panels), -1, 16, 4)
    codes = codes.transpose(0, 2, 1, 3).reshape(len(panels) * 16, -1)
    sides = [
        None if side is None else side.transpose(0, 2, 1).reshape(len(panels) * 16, -1)
        for side in (matrix.scales, matrix.zeros)
    ]
    assert sides[0] is not None
    return codes, sides[0], sides[1]


def check_packed(matrix: native.PackedMatrix, expected: Quantized) -> None:
    rows, cols = expected.codes.shape
    codes, scales, zeros = unpacked(matrix)
    groups = expected.scales.shape[1]
    np.testing.assert_array_equal(scales[:rows, :groups], expected.scales.view(torch.uint16).numpy())
    np.testing.assert_array_equal(codes[:rows, :cols], expected.codes.numpy())
    if expected.zeros is None:
        assert zeros is None
        assert (codes[:rows, cols:] == expected.middle).all()  # padding stands for 0, whatever its scale
    else:
        assert zeros is not None
        np.testing.assert_array_equal(zeros[:rows, :groups], expected.zeros.numpy())
    assert not scales[rows:].any() and not scales[:, groups:].any()


@sets
@cases
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_packed_codes_equal_the_reference(team, name, format, group, symmetric, kind):
    for rows, cols in ((40, 200), (3, 64), (16, 577)):
        stored, values = source(weights(rows, cols), kind)
        matrix = native.PackedMatrix(
            native.Kernels(name), team, format, [stored], input="i8", group=group, symmetric=symmetric
        )
        check_packed(matrix, reference(values, format, group, symmetric))


@sets
@pytest.mark.parametrize(("format", "symmetric"), list(itertools.product(QUANTIZE, (True, False))))
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_a_weight_that_is_not_finite_spoils_its_output_feature(team, name, format, symmetric, kind):
    """As it does in floats, and no other one."""
    kernels, x = native.Kernels(name), random(3, 200, seed=5).numpy()
    for number in (float("nan"), float("inf"), -float("inf")):
        w = weights(40, 200)
        w[20, 70] = 0
        spoilt = w.clone()
        spoilt[20, 70] = number
        packed = [
            native.PackedMatrix(
                kernels, team, format, [source(one, kind)[0]], input="i8", group=64, symmetric=symmetric
            )
            for one in (w, spoilt)
        ]
        good, bad = (native.linear(kernels, team, x, one) for one in packed)
        assert np.isnan(bad[:, 20]).all() and not np.isnan(good).any()
        np.testing.assert_array_equal(np.delete(bad, 20, axis=1), np.delete(good, 20, axis=1))
        scales = reference(source(spoilt, kind)[1], format, 64, symmetric).scales
        assert torch.equal(scales.isnan().nonzero(), torch.tensor([[20, 1]]))
        np.testing.assert_array_equal(
            unpacked(packed[1])[1][:40, :4] & 0x7E00 == 0x7E00, scales.isnan().numpy()
        )


@sets
@cases
def test_existing_codes_are_packed_unchanged(team, name, format, group, symmetric):
    q = reference(weights(40, 200), format, group, symmetric)
    half = [
        (
            q.codes[rows].numpy(),
            q.scales[rows].numpy(),
            None if q.zeros is None else q.zeros[rows].numpy(),
        )
        for rows in (slice(0, 24), slice(24, 40))
    ]
    matrix = native.PackedMatrix.from_codes(native.Kernels(name), team, format, half, input="i8", group=group)
    check_packed(matrix, q)
    x = random(3, 200, seed=5).numpy()
    direct = native.PackedMatrix(
        native.Kernels(name),
        team,
        format,
        [weights(40, 200).numpy()],
        input="i8",
        group=group,
        symmetric=symmetric,
    )
    np.testing.assert_array_equal(
        native.linear(native.Kernels(name), team, x, matrix),
        native.linear(native.Kernels(name), team, x, direct),
    )


def test_codes_that_do_not_fit_are_refused(team):
    kernels, scales = native.Kernels("portable"), np.ones((4, 2), np.float16)
    codes = np.full((4, 64), 15, np.uint8)

    def pack(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None = None) -> None:
        native.PackedMatrix.from_codes(kernels, team, "int4", [(codes, scales, zeros)], input="i8", group=32)

    pack(codes, scales, np.full((4, 2), 16, np.uint8))  # a zero of 16 occurs in checkpoints of GPTQ
    for wrong in (
        (codes + 1, scales),
        (codes, scales[:, :1].copy()),
        (codes, scales, np.full((4, 2), 17, np.uint8)),
        (codes, scales, np.zeros((3, 2), np.uint8)),
    ):
        with pytest.raises(ValueError):
            pack(*wrong)
    with pytest.raises(TypeError):
        pack(codes, scales.astype(np.float64))
    with pytest.raises(ValueError, match="65536"):
        native.PackedMatrix(kernels, team, "int8", [np.zeros((1, 65537), np.float32)], input="i8")


def relative(got: np.ndarray, expected: torch.Tensor) -> float:
    return float((torch.from_numpy(got).double() - expected).norm() / expected.norm())


@sets
@cases
@pytest.mark.parametrize("input", ["i8", "bf16"])
def test_products_against_dequantise_then_multiply(team, name, format, group, symmetric, input):
    """Exact activations: within what 8 bits of them cost. The same encoded activations: within rounding of sums."""
    kernels = native.Kernels(name)
    for rows, cols in ((21, 320), (9, 577)):
        w = weights(70, cols)
        x = random(rows, cols, seed=cols)
        q = reference(w, format, group, symmetric)
        matrix = native.PackedMatrix(
            kernels, team, format, [w.numpy()], input=input, group=group, symmetric=symmetric
        )
        got = native.linear(kernels, team, x.numpy(), matrix)
        dense = grouped.dequantize(q).double().T
        assert relative(got, x.double() @ dense) < 1e-2
        if input == "i8":
            size = group or cols
            seen = grouped.decode_activations(*grouped.encode_activations(x, size), size)
        else:
            seen = x.to(torch.bfloat16).to(torch.float32)
        assert relative(got, seen.double() @ dense) < 1e-5


@sets
@cases
@pytest.mark.parametrize("input", ["i8", "bf16"])
def test_a_row_keeps_every_bit_in_any_batch(name, format, group, symmetric, input):
    kernels, one, two = native.Kernels(name), native.Team(1), native.Team(2)
    w, x = weights(83, 416), random(107, 416).numpy()
    matrix = native.PackedMatrix(
        kernels, two, format, [w.numpy()], input=input, group=group, symmetric=symmetric
    )
    together = native.linear(kernels, two, x, matrix)
    np.testing.assert_array_equal(native.linear(kernels, one, x, matrix), together)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 13, 31, 64):
        first = 107 - rows
        alone = native.linear(kernels, two, x[first:].copy(), matrix)
        np.testing.assert_array_equal(alone, together[first:], err_msg=f"{rows} rows")


@sets
@cases
def test_few_rows_by_many_panels_keep_every_bit(name, format, group, symmetric):
    """29 panels: so many that one thread takes several at a time, and one is left."""
    kernels, team = native.Kernels(name), native.Team(1)
    w, x = weights(451, 416), random(9, 416).numpy()
    matrix = native.PackedMatrix(
        kernels, team, format, [w.numpy()], input="bf16", group=group, symmetric=symmetric
    )
    together = native.linear(kernels, team, x, matrix)
    for rows in (1, 2, 3):
        alone = native.linear(kernels, team, x[9 - rows :].copy(), matrix)
        np.testing.assert_array_equal(alone, together[9 - rows :], err_msg=f"{rows} rows")


@pytest.mark.parametrize(("format", "group", "symmetric"), CASES)
def test_whole_number_products_agree_between_sets(team, format, group, symmetric):
    """With int8 activations only scaling is in floats, in one order: sets with a fused product agree in every bit."""
    fused = [name for name in SETS if name not in ("portable", "amx-emulated")]
    results = []
    for name in fused:
        kernels = native.Kernels(name)
        matrix = native.PackedMatrix(
            kernels, team, format, [weights(50, 320).numpy()], input="i8", group=group, symmetric=symmetric
        )
        results.append(native.linear(kernels, team, random(11, 320).numpy(), matrix))
    for name, other in zip(fused, results, strict=True):
        np.testing.assert_array_equal(other, results[0], err_msg=name)


@sets
@pytest.mark.parametrize("format", QUANTIZE)
def test_the_largest_sums_do_not_overflow(team, name, format):
    """The widest row that may share one scale, with every product at its largest."""
    cols = 1 << 16
    kernels = native.Kernels(name)
    w = np.where(np.arange(16)[:, None] % 2 == 0, 1.0, -1.0).astype(np.float32) * np.ones(
        (1, cols), np.float32
    )
    matrix = native.PackedMatrix(kernels, team, format, [w], input="i8")
    got = native.linear(kernels, team, np.ones((2, cols), np.float32), matrix)
    top = cols * (7 / 8 if format == "int4" else 1.0)
    np.testing.assert_allclose(np.abs(got), np.full((2, 16), cols), rtol=1 - top / cols + 1e-3)
    assert (np.sign(got[0]) == w[:, 0]).all()
