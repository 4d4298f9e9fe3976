"""Native attention against the reference, and bit for bit the same in any batch, chunks and number of threads."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests import needs
from tests.instruction_sets import BEST, SETS, parameters, with_kinds

_native = needs.native()

from tests.native.paged import Problem, Shape  # noqa: E402

KINDS = {"f32": 1e-5, "bf16": 1e-2, "i8": 2e-3}
"""Cache formats, and the relative error against the reference on the cache as the format rounds it."""

HEADS = {"mha": (3, 3), "gqa": (6, 2), "mqa": (8, 1)}
DIMS = (16, 32, 64, 80, 96, 128)
BLOCK_SIZES = (1, 4, 16, 32, 100)
SLICES = {
    "decode": ((1, 17), (1, 300), (1, 1), (1, 530)),
    "prefill": ((37, 37), (300, 300)),
    "chunk": ((20, 290), (5, 530)),
    "mixed": ((5, 17), (1, 1), (1, 300), (60, 530), (9, 9)),
}
MASKS = {
    "full": {},
    "window": {"window": 45},
    "sinks": {"window": 45, "sinks": 5},
    "many sinks": {"window": 70, "sinks": 37},
    "soft cap": {"soft_cap": 2.0},
    "chunks": {"window": 45, "chunked": True},
    "slopes": {"alibi": 8.0},
}


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, _native.Team]]:
    yield {size: _native.Team(size) for size in (1, 2, 5)}


def shapes() -> list[Shape]:
    """Every head dimension with every block size; heads, slices and masks turn, so that all pairs come up."""
    turns = zip(
        itertools.product(DIMS, BLOCK_SIZES),
        itertools.cycle(HEADS.values()),
        itertools.cycle(SLICES.values()),
        itertools.cycle(tuple(MASKS.values())[i] for i in (0, 1, 2, 3, 4, 5, 6)),
        strict=False,
    )
    return [
        Shape(heads, num_kv, dim, size, slices=slices, seed=seed, **mask)
        for seed, ((dim, size), (heads, num_kv), slices, mask) in enumerate(turns)
    ]


def with_step(every: int) -> list[object]:
    """Parameters: a set, a kind, and the step through the shapes. In the usual run the slow portable set takes one kind
    and some of the shapes."""
    found: list[object] = []
    for name in SETS:
        for kind in KINDS:
            step = every if name == "portable" else 1
            usual = name == BEST or (name == "portable" and kind == [*KINDS][-1])
            marks = () if usual else pytest.mark.long
            found.append(pytest.param(name, kind, step, marks=marks, id=f"{name}-every{step}-{kind}"))
            if step > 1:
                found.append(pytest.param(name, kind, 1, marks=pytest.mark.long, id=f"{name}-every1-{kind}"))
    return found


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out - expected).norm() / expected.norm())


@pytest.mark.parametrize(("name", "kind", "step"), with_step(4))
def test_matches_the_reference(name: str, step: int, kind: str, teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(name)
    for shape in shapes()[::step]:
        problem = Problem.make(shape)
        out = problem.solve(kernels, teams[2], kind)
        assert error(out, problem.expected(kind)) < KINDS[kind], shape


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("slices", SLICES)
def test_matches_the_reference_everywhere(
    slices: str, mask: str, kind: str, teams: dict[int, _native.Team]
) -> None:
    kernels = _native.Kernels(SETS[0])
    for dim, size, (heads, num_kv) in itertools.product(DIMS, BLOCK_SIZES, HEADS.values()):
        problem = Problem.make(Shape(heads, num_kv, dim, size, slices=SLICES[slices], **MASKS[mask]))
        out = problem.solve(kernels, teams[2], kind)
        assert error(out, problem.expected(kind)) < KINDS[kind], problem.shape


@pytest.mark.parametrize("name", parameters())
def test_int8_keeps_small_probabilities_beside_a_large_one(name: str, teams: dict[int, _native.Team]) -> None:
    """Probabilities of a span share a step. Together the many small ones weigh as much as the large one, whose value
    may be small, as that of a first token is. Queries of 8 heads and of a chunk take different paths."""
    shape = Shape(8, 1, 64, 32, slices=((1, 256), (20, 300)))
    problem = Problem.make(shape)
    q = problem.q.clone()
    q[:] = q.mean((0, 1))  # one query, so that one key can be made like it
    first = problem.block_tables[:, 0].long()
    key = problem.key.clone()
    key[first, :, 0] = q[0, 0] * (8 * np.log(250) / q[0, 0].square().sum())
    for size in (1.0, 0.01):
        value = problem.value.clone()
        value[first, :, 0] *= size
        found = replace(problem, q=q, key=key, value=value)
        out, expected = found.solve(_native.Kernels(name), teams[2], "i8"), found.expected("i8")
        assert error(out, expected) < 1e-3
        alone = value[first[0], :, 0].tile(8)  # [1, 8 * D]
        assert error(expected[:1], alone) > 0.3  # the others count


def test_queries_of_an_int8_cache_are_rounded_once(teams: dict[int, _native.Team]) -> None:
    """What the rounding of queries costs: about as much as that of keys."""
    for shape in shapes()[::5]:
        problem = Problem.make(shape)
        rounded, exact = problem.expected("i8"), problem.expected("i8", round_queries=False)
        assert 0 < error(rounded, exact) < 2e-2, shape


@pytest.mark.parametrize("name", parameters())
def test_one_block_a_sequence(name: str, teams: dict[int, _native.Team]) -> None:
    """The contiguous layout: a block longer than a span, its length no multiple of 16."""
    for window, sinks in ((None, 0), (300, 0), (45, 5)):
        problem = Problem.make(Shape(block_size=551, window=window, sinks=sinks))
        for kind, limit in KINDS.items():
            assert error(problem.solve(_native.Kernels(name), teams[2], kind), problem.expected(kind)) < limit


@pytest.mark.parametrize("name", parameters())
def test_wide_heads(name: str, teams: dict[int, _native.Team]) -> None:
    problem = Problem.make(Shape(dim=1024, slices=((1, 300), (20, 20))))
    for kind, limit in KINDS.items():
        assert error(problem.solve(_native.Kernels(name), teams[2], kind), problem.expected(kind)) < limit


def test_writes_bfloat16(teams: dict[int, _native.Team]) -> None:
    problem = Problem.make(Shape())
    kernels = _native.Kernels(SETS[0])
    wide = problem.solve(kernels, teams[1], "bf16")
    assert torch.equal(problem.solve(kernels, teams[1], "bf16", "bf16"), wide.bfloat16().float())


def invariant_shapes() -> list[Shape]:
    slices = ((5, 17), (1, 1), (1, 300), (60, 1030), (9, 9), (1, 1030))
    common = {"heads": 6, "slices": slices}
    return [
        *(Shape(block_size=size, **common) for size in (1, 16, 32, 100, 1030)),
        Shape(window=45, sinks=5, **common),
        Shape(window=300, dim=80, **common),
        Shape(soft_cap=2.0, num_kv=1, **common),
        Shape(window=300, chunked=True, alibi=6.0, **common),
    ]


@pytest.mark.parametrize(("name", "kind", "step"), with_step(8))
def test_batch_and_threads_change_no_bit(
    name: str, step: int, kind: str, teams: dict[int, _native.Team]
) -> None:
    kernels = _native.Kernels(name)
    for shape in invariant_shapes()[::step]:
        problem = Problem.make(shape)
        together = problem.solve(kernels, teams[1], kind)
        for size in (2, 5):
            assert torch.equal(problem.solve(kernels, teams[size], kind), together), (size, shape)
        for s in range(len(shape.slices)):
            for size in (1, 2):  # two threads and one sequence: its spans are shared out
                alone = problem.only(s).solve(kernels, teams[size], kind)
                assert torch.equal(alone, together[problem.rows(s)]), (s, size, shape)


@with_kinds(KINDS)
def test_chunks_change_no_bit(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(name)
    for mask in MASKS.values():
        problem = Problem.make(Shape(heads=6, slices=((530, 530),), **mask))
        whole = problem.solve(kernels, teams[2], kind)
        cuts = (0, 1, 7, 100, 256, 257, 500, 529, 530)
        for first, last in itertools.pairwise(cuts):
            chunk = problem.only(0, first, last).solve(kernels, teams[1 + first % 2], kind)
            assert torch.equal(chunk, whole[first:last]), (first, last, mask)


@with_kinds(KINDS)
def test_hidden_values_change_no_bit(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(name)
    for shape in invariant_shapes():
        problem = Problem.make(shape)
        other = problem.with_garbage(seed=99)
        assert not torch.equal(problem.key, other.key) or not problem.garbage.any()
        out = problem.solve(kernels, teams[2], kind)
        assert torch.equal(other.solve(kernels, teams[2], kind), out), shape


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_that_left_the_window_change_no_bit(kind: str, teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(SETS[0])
    for size, sinks in itertools.product((1, 4, 16, 100), (0, 5, 37)):
        shape = Shape(block_size=size, window=45, sinks=sinks, slices=((5, 700), (60, 530)))
        dropped, kept = Problem.make(shape), Problem.make(replace(shape, keep=True))
        assert int(dropped.dropped.min()) > 0
        assert int(kept.dropped.max()) == 0
        kept = replace(kept, q=dropped.q, q_sink=dropped.q_sink, key=dropped.key, value=dropped.value)
        assert torch.equal(kept.solve(kernels, teams[2], kind), dropped.solve(kernels, teams[2], kind)), shape


def test_a_split_in_waves_changes_no_bit(teams: dict[int, _native.Team]) -> None:
    """More spans than partial results have room: 256 spans of 16 positions, 48 rows of 128 features."""
    problem = Problem.make(Shape(heads=48, num_kv=1, dim=128, block_size=1, slices=((1, 4096),)))
    kernels = _native.Kernels(SETS[0])
    whole = problem.solve(kernels, teams[1], "bf16")
    for size in (2, 5):
        assert torch.equal(problem.solve(kernels, teams[size], "bf16"), whole)


@with_kinds(KINDS)
def test_spans_with_another_origin_are_noticed(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    """What the tests above would see of a kernel that counted spans from the window's start, not from position 0.

    Positions moved by 7 blocks with the keys leave every distance as it was, so the result is the same but for
    rounding; spans lie elsewhere, and bits must differ.
    """
    shape = Shape(window=400, slices=((60, 1030),), keep=True)
    problem = Problem.make(shape)
    shift, size = 7, shape.block_size
    moved = replace(
        problem,
        positions=problem.positions - shift * size,
        kv_lens=problem.kv_lens - shift * size,
        block_tables=problem.block_tables[:, shift:].contiguous(),
    )
    kernels = _native.Kernels(name)
    out, other = problem.solve(kernels, teams[1], kind), moved.solve(kernels, teams[1], kind)
    assert error(other, out) < KINDS[kind]
    assert not torch.equal(out, other)


def test_tables_that_would_be_read_past_their_end_are_refused(teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(SETS[0])
    problem = Problem.make(Shape(window=45, sinks=37, slices=((1, 17),)))
    assert problem.sink_blocks == 3  # and two blocks in all
    with pytest.raises(ValueError, match="hold sinks"):
        replace(problem, dropped=problem.dropped + 1).solve(kernels, teams[1], "f32")
    with pytest.raises(ValueError, match="too short"):
        replace(problem, dropped=problem.dropped - 1).solve(kernels, teams[1], "f32")
    with pytest.raises(ValueError, match="cu_q must not fall"):
        cu_q = torch.tensor([0, 2, 1]).int()
        pair = Problem.make(Shape(slices=((1, 17),)))
        both = {"kv_lens": pair.kv_lens.repeat(2), "dropped": pair.dropped.repeat(2)}
        replace(pair, cu_q=cu_q, block_tables=pair.block_tables.repeat(2, 1), **both).solve(
            kernels, teams[1], "f32"
        )
