"""Teams larger than the machine and than the work: every product and attention, the same bits as on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tests import needs
from tests.instruction_sets import parameters

_native = needs.native()

from tests.native.paged import Problem, Shape  # noqa: E402

pytestmark = pytest.mark.alone

SIZES = (3, 5, 16, 64)
FORMATS = (
    *(("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("f16", "f32")),
    *(("int8", "i8"), ("int8", "bf16"), ("int4", "i8"), ("int4", "bf16")),
)
SHAPES = (
    # features, cols, rows
    (16, 64, 1),  # one block: more threads than work
    (333, 100, 1),
    (333, 100, 6),
    (333, 100, 19),
    (333, 100, 40),
    (40, 70, 300),  # few columns: rows are shared out too
    (96, 4200, 20),  # more input features than a block of them, and more rows than pass them once
    (48, 4200, 40),
)

sets = pytest.mark.parametrize("name", parameters())


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, _native.Team]]:
    yield {size: _native.Team(size) for size in (1, *SIZES)}


@sets
@pytest.mark.parametrize(("format", "input"), FORMATS)
def test_products_have_the_same_bits(
    name: str, format: str, input: str, teams: dict[int, _native.Team]
) -> None:
    kernels, rng = _native.Kernels(name), np.random.default_rng(0)
    for features, cols, rows in SHAPES:
        w, x = (rng.standard_normal((n, cols)).astype(np.float32) for n in (features, rows))
        packed = _native.PackedMatrix(
            kernels, teams[3], format, [w], input=input, group=32 if format.startswith("int") else 0
        )
        expected = _native.linear(kernels, teams[1], x, packed)
        if (format, input) == ("f32", "f32"):
            np.testing.assert_allclose(expected, x @ w.T, rtol=1e-3, atol=1e-3)
        for row in {0, rows // 2, rows - 1}:  # and as each row alone
            alone = _native.linear(kernels, teams[1], x[row : row + 1].copy(), packed)
            np.testing.assert_array_equal(alone[0], expected[row])
        for size in SIZES:
            found = _native.linear(kernels, teams[size], x, packed)
            np.testing.assert_array_equal(found, expected, err_msg=f"{features, cols, rows} on {size}")


@sets
@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
def test_attention_has_the_same_bits(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(name)
    for shape in (
        Shape(slices=((1, 1),)),  # more threads than work
        Shape(slices=((5, 17), (1, 1), (1, 300), (60, 530), (9, 9))),
        Shape(slices=((1, 2000),), heads=6),  # one long sequence, whose spans are shared out
        Shape(slices=((60, 530), (1, 700)), window=45, sinks=5, block_size=20),
    ):
        problem = Problem.make(shape)
        expected = problem.solve(kernels, teams[1], kind)
        for size in SIZES:
            assert torch.equal(problem.solve(kernels, teams[size], kind), expected), (size, shape)


@pytest.mark.parametrize("size", SIZES)
def test_a_team_larger_than_the_machine_runs_every_share_each_time(
    size: int, teams: dict[int, _native.Team]
) -> None:
    teams[size].run_empty(300)
    ids = teams[size].thread_ids()
    assert len(set(ids)) == size and teams[size].thread_ids() == ids
