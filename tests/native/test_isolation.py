"""What is not a finite number stays in its own sequence, and there in the rows that see it.

A KV block passes from one request to the next without being cleared, and attention multiplies whole blocks. So every
element that a row does not see may be NaN or infinite, and must change no bit of the row; every one that it does see
must make the row NaN, so that the request ends with an error.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest
from tests import needs
from tests.instruction_sets import SETS, parameters, with_kinds

_native = needs.native()

from tests.native.paged import Problem, Shape  # noqa: E402

KINDS = ("f32", "bf16", "i8")
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))
SLICES = ((5, 17), (1, 1), (1, 300), (60, 530), (9, 9), (1, 530))
SHAPES = [
    *(Shape(block_size=size, heads=6, slices=SLICES) for size in (1, 4, 16, 32, 100, 551)),
    Shape(window=45, sinks=5, slices=SLICES),
    Shape(window=70, sinks=37, block_size=20, slices=SLICES),
    Shape(window=300, dim=80, slices=SLICES),
    Shape(soft_cap=2.0, num_kv=1, slices=SLICES),
]

FORMATS = (
    *(("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("f16", "f32")),
    *(("int8", "i8"), ("int8", "bf16"), ("int4", "i8"), ("int4", "bf16")),
)

sets = pytest.mark.parametrize("name", parameters())


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, _native.Team]]:
    yield {size: _native.Team(size) for size in (1, 2)}


BROKEN = 7  # a token whose embedding is NaN


@pytest.fixture(scope="module")
def broken_model(tiny_models: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("broken") / "model"
    shutil.copytree(tiny_models["mistral"], folder)
    weights = Path(folder, "model.safetensors")
    tensors = load_file(weights)
    assert "lm_head.weight" in tensors  # else logits of the token would be NaN for all
    table = tensors["model.embed_tokens.weight"].copy()
    table[BROKEN] = np.nan
    save_file(tensors | {"model.embed_tokens.weight": table}, weights, metadata={"format": "pt"})
    return str(folder)


def serve(parts: EngineParts, *requests: NewRequest) -> dict[str, tuple[tuple[int, ...], FinishReason]]:
    """Tokens and end of each request, all of them together."""
    for request in requests:
        parts.engine.add(request, 0.0)
    tokens: dict[str, tuple[int, ...]] = {}
    ends: dict[str, FinishReason] = {}
    while parts.engine.has_work:
        for output in parts.engine.finish(parts.executor.execute(parts.engine.begin(0.0)), 0.0):
            tokens[output.request_id] = tokens.get(output.request_id, ()) + output.tokens
            if output.finish_reason is not None:
                ends[output.request_id] = output.finish_reason
    return {name: (tokens[name], end) for name, end in ends.items()}


def request(name: str, *prompt: int) -> NewRequest:
    return NewRequest(name, prompt, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))


@sets
@pytest.mark.parametrize(
    "kv",
    ["float32", "bfloat16", "int8", *(pytest.param(kv, marks=pytest.mark.long) for kv in ("fp8", "int4"))],
)
def test_a_broken_request_fails_alone(name: str, kv: str, broken_model: str) -> None:
    """Neither one beside it nor one that gets its blocks afterwards."""
    config = EngineConfig.from_kwargs(
        model=broken_model, dtype="float32", kv_cache_dtype=kv, ops_force=name, num_threads=2, block_size=16,
        num_kv_blocks=6, max_model_len=96, enable_prefix_caching=False,
    )  # fmt: skip
    parts = assemble(config)
    good = [request(f"good-{i}", *range(10 + i, 31 + 3 * i)) for i in range(2)]
    expected = serve(parts, *good)
    assert {end for _, end in expected.values()} == {FinishReason.LENGTH}
    for _ in range(3):  # a pool of six blocks: each round reuses blocks of the one before
        assert serve(parts, request("broken", *[BROKEN] * 80))["broken"] == ((), FinishReason.ERROR)
        together = serve(parts, good[0], request("broken", *[BROKEN] * 40))
        assert together.pop("broken") == ((), FinishReason.ERROR)
        assert together == {good[0].request_id: expected[good[0].request_id]}
        assert serve(parts, *good) == expected


@with_kinds(KINDS)
def test_hidden_memory_may_hold_any_value(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(name)
    for shape in SHAPES:
        problem = Problem.make(shape)
        expected = problem.solve(kernels, teams[2], kind)
        assert expected.isfinite().all()
        for poison in NOT_FINITE:
            found = problem.with_poison(poison).solve(kernels, teams[2], kind)
            assert torch.equal(found, expected), (poison, shape)


@with_kinds(KINDS)
@pytest.mark.parametrize("side", ["key", "value"])
def test_only_rows_that_see_a_position_depend_on_it(
    side: str, name: str, kind: str, teams: dict[int, _native.Team]
) -> None:
    """A later token of the same chunk, such as a rejected draft, changes no earlier row and no other sequence."""
    kernels = _native.Kernels(name)
    last, at = 3, 500  # the sequence with queries at 470..529, and the position that is broken
    for shape in (
        Shape(slices=SLICES),
        Shape(slices=SLICES, block_size=100),
        Shape(slices=SLICES, window=10),
    ):
        problem = Problem.make(shape)
        expected = problem.solve(kernels, teams[2], kind)
        entry = at // shape.block_size - int(problem.dropped[last])
        block, offset = int(problem.block_tables[last, entry]), at % shape.block_size
        rows = problem.rows(last)
        seen = torch.zeros(len(expected), dtype=torch.bool)
        positions = problem.positions[rows]
        seen[rows] = (positions >= at) & (positions - at < (shape.window or 10**6))
        assert seen.any() and not seen[rows].all()
        for poison in NOT_FINITE:
            broken = getattr(problem, side).clone()
            broken[block, :, offset, 3] = poison
            found = replace(problem, **{side: broken}).solve(kernels, teams[2], kind)
            assert torch.equal(found[~seen], expected[~seen]), (poison, shape)
            if (
                side == "value" or poison != poison
            ):  # an infinite key may have a score of -infinity: no weight
                assert not found[seen].isfinite().all(1).any(), (poison, shape)


@with_kinds(KINDS)
def test_a_query_that_is_not_a_number_gives_nan(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(name)
    for shape in (
        Shape(slices=SLICES),
        Shape(slices=SLICES, window=45, sinks=5),
        Shape(slices=SLICES, soft_cap=2.0),
    ):
        problem = Problem.make(shape)
        expected = problem.solve(kernels, teams[2], kind)
        for row in range(len(problem.q)):
            q = problem.q.clone()
            q[row, :, 0] = float("nan")
            sink = None if problem.q_sink is None else torch.full_like(problem.q_sink, float("nan"))
            if row % 8 == 0:
                found = replace(problem, q=q).solve(kernels, teams[2], kind)
                assert found[row].isnan().all(), (row, shape)
                others = torch.arange(len(found)) != row
                assert torch.equal(found[others], expected[others]), (row, shape)
        if sink is not None:
            sees_sinks = problem.positions >= 0  # every query sees position 0, a sink
            found = replace(problem, q_sink=sink).solve(kernels, teams[2], kind)
            assert found[sees_sinks].isnan().all(), shape


@sets
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_int8_keeps_nan(name: str, value: float, teams: dict[int, _native.Team]) -> None:
    """Codes are always finite, so the scale of a row that is not finite must not be."""
    tokens, heads, dim, size = 6, 2, 32, 16
    qkv = np.random.default_rng(0).standard_normal((tokens, 3 * heads * dim)).astype(np.float32)
    qkv[2, heads * dim + 7] = value  # key of head 0
    qkv[4, 2 * heads * dim + dim + 9] = value  # value of head 1
    keys, values = (np.zeros((1, heads, size * dim), np.int8) for _ in range(2))
    scales = [np.zeros((1, heads, size), np.float32) for _ in range(2)]
    _native.rope_and_write(
        _native.Kernels(name), teams[1], qkv, keys, values, slots=np.arange(tokens),
        cos=np.ones((tokens, dim // 2), np.float32), sin=np.zeros((tokens, dim // 2), np.float32),
        num_heads=heads, head_dim=dim, block_size=size, key_scales=scales[0], value_scales=scales[1],
    )  # fmt: skip
    broken = [set(map(tuple, np.argwhere(~np.isfinite(part[0])))) for part in scales]
    assert broken == [{(0, 2)}, {(1, 4)}]


@sets
def test_products_keep_rows_apart(name: str, teams: dict[int, _native.Team]) -> None:
    """A row that is not finite, next to others, in every format; the last rows of a tile and padded features too."""
    kernels = _native.Kernels(name)
    rng = np.random.default_rng(0)
    w = rng.standard_normal((77, 100)).astype(np.float32)
    for format, input in FORMATS:
        packed = _native.PackedMatrix(
            kernels, teams[2], format, [w], input=input, group=32 if format.startswith("int") else 0
        )
        for rows in (2, 7, 17, 40):
            x = rng.standard_normal((rows, 100)).astype(np.float32)
            expected = _native.linear(kernels, teams[2], x, packed)
            for value in NOT_FINITE:
                for row in {0, rows // 2, rows - 1}:
                    broken = x.copy()
                    broken[row, 50] = value
                    found = _native.linear(kernels, teams[2], broken, packed)
                    assert not np.isfinite(found[row]).any(), (format, input, rows, row)
                    others = np.arange(rows) != row
                    np.testing.assert_array_equal(found[others], expected[others])


def test_bf16_output_keeps_nan(teams: dict[int, _native.Team]) -> None:
    problem = Problem.make(Shape(slices=SLICES))
    q = problem.q.clone()
    q[0] = float("nan")
    for name in SETS:
        found = replace(problem, q=q).solve(_native.Kernels(name), teams[1], "bf16", "bf16")
        assert found[0].isnan().all()
