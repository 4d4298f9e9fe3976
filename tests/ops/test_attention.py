"""Paged attention of ragged batches against one loop over every query, head and key."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from headrace.models.rope import alibi_slopes
from headrace.ops import reference, torch_fast

ATTENTION = {"reference": reference.paged_attention, "torch": torch_fast.paged_attention}


@dataclass(frozen=True)
class Shape:
    groups: int = 2
    num_kv: int = 2
    dim: int = 16
    block_size: int = 4
    window: int | None = None
    sinks: int = 0
    chunked: bool = False
    soft_cap: float | None = None
    alibi: float = 0.0
    slices: tuple[tuple[int, int], ...] = (
        (5, 17),
        (1, 1),
        (1, 30),
        (9, 9),
        (1, 12),
        (1, 55),
    )  # (q_len, kv_len)
    q_sink: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Problem:
    """Random queries, and keys and values both contiguous a sequence and scattered over shuffled blocks."""

    shape: Shape
    q: torch.Tensor  # [T, Hq, D]
    q_sink: torch.Tensor | None
    keys: list[torch.Tensor]  # [kv_len, Hkv, D] for each sequence
    values: list[torch.Tensor]
    call: dict[str, Any]  # all arguments but q and q_sink

    def run(self, name: str) -> torch.Tensor:
        return ATTENTION[name](self.q, q_sink=self.q_sink, **self.call)


def make(shape: Shape, dtype: torch.dtype = torch.float32) -> Problem:
    rng = torch.Generator().manual_seed(shape.seed)
    size, heads = shape.block_size, shape.groups * shape.num_kv

    def normal(*dims: int) -> torch.Tensor:
        return torch.randn(dims, generator=rng).to(dtype)

    needed = sum(-(-kv // size) for _, kv in shape.slices)
    free = torch.randperm(needed + 3, generator=rng).tolist()
    cache = torch.full((2, len(free), shape.num_kv, size, shape.dim), torch.nan, dtype=dtype)
    sink_blocks = -(-shape.sinks // size)
    keys, values, rows, dropped = [], [], [], []
    for q_len, kv_len in shape.slices:
        keys.append(normal(kv_len, shape.num_kv, shape.dim))
        values.append(normal(kv_len, shape.num_kv, shape.dim))
        table = [free.pop() for _ in range(-(-kv_len // size))]
        slots = torch.tensor([table[p // size] * size + p % size for p in range(kv_len)])
        gone = 0
        if shape.window is not None:
            gone = max(0, (kv_len - q_len - shape.window + 1) // size - sink_blocks)
        for block in table[sink_blocks : sink_blocks + gone]:  # reallocated: must not be read
            slots[slots // size == block] = -1
        kept = slots >= 0
        reference.write_kv(keys[-1][kept], values[-1][kept], cache[0], cache[1], slots[kept])
        rows.append(table[:sink_blocks] + table[sink_blocks + gone :])
        dropped.append(gone)
    width = max(map(len, rows)) + 1
    q_lens = [q_len for q_len, _ in shape.slices]
    call = {
        "key_cache": cache[0],
        "value_cache": cache[1],
        "cu_q": torch.tensor([0, *itertools.accumulate(q_lens)], dtype=torch.int32),
        "kv_lens": torch.tensor([kv for _, kv in shape.slices], dtype=torch.int32),
        "positions": torch.cat([torch.arange(kv - q, kv) for q, kv in shape.slices]),
        "block_tables": torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int32),
        "dropped": torch.tensor(dropped, dtype=torch.int32),
        "sink_blocks": sink_blocks,
        "block_size": size,
        "scale": shape.dim**-0.5,
        "window": shape.window,
        "chunked": shape.chunked,
        "slopes": torch.tensor(alibi_slopes(heads, shape.alibi)) if shape.alibi else None,
        "sinks": shape.sinks,
        "soft_cap": shape.soft_cap,
    }
    q = normal(sum(q_lens), heads, shape.dim)
    q_sink = normal(sum(q_lens), heads, shape.dim) if shape.q_sink else None
    return Problem(shape, q, q_sink, keys, values, call)


def naive(problem: Problem) -> torch.Tensor:
    """The definition, in float64, one logit at a time."""
    shape = problem.shape
    out = torch.zeros(problem.q.shape, dtype=torch.float64)
    row = 0
    for s, (q_len, kv_len) in enumerate(shape.slices):
        for i in range(kv_len - q_len, kv_len):
            first = (
                0 if shape.window is None else i - i % shape.window if shape.chunked else i - shape.window + 1
            )
            seen = [j for j in range(i + 1) if j >= first or j < shape.sinks]
            for h in range(shape.groups * shape.num_kv):
                kv_head = h // shape.groups
                logits = []
                for j in seen:
                    use_sink = problem.q_sink is not None and j < shape.sinks
                    q = problem.q_sink[row, h] if use_sink else problem.q[row, h]
                    logit = float(q.double() @ problem.keys[s][j, kv_head].double()) * shape.dim**-0.5
                    if shape.alibi:  # as many heads as a power of two
                        logit += (j - i) * 2 ** (-shape.alibi * (h + 1) / (shape.groups * shape.num_kv))
                    logits.append(
                        shape.soft_cap * math.tanh(logit / shape.soft_cap) if shape.soft_cap else logit
                    )
                weights = torch.tensor(logits, dtype=torch.float64).softmax(0)
                out[row, h] = weights @ problem.values[s][seen, kv_head].double()
            row += 1
    return out


SHAPES = {
    "plain": Shape(),
    "decode only": Shape(slices=tuple((1, n) for n in (1, 2, 3, 4, 5, 16, 33, 40))),
    "prefill only": Shape(slices=((7, 7), (13, 20))),
    "mha": Shape(groups=1, num_kv=4),
    "mqa": Shape(groups=4, num_kv=1),
    "g4 d32": Shape(groups=4, num_kv=1, dim=32),
    "g8 d64": Shape(groups=8, num_kv=1, dim=64),
    "block of one": Shape(block_size=1),
    "one block": Shape(block_size=64),
    "window": Shape(window=6, seed=1),
    "window of one": Shape(window=1),
    "window wider than all": Shape(window=500),
    "chunks": Shape(window=6, chunked=True, seed=1),
    "chunks of one": Shape(window=1, chunked=True),
    "slopes": Shape(alibi=8.0),
    "sinks": Shape(window=6, sinks=3, seed=2),
    "sinks over blocks": Shape(window=9, sinks=6, seed=3),
    "sinks rotated": Shape(window=6, sinks=3, q_sink=True),
    "sinks over blocks rotated": Shape(window=5, sinks=9, q_sink=True, groups=4),
    "soft cap": Shape(soft_cap=1.5),
    "all": Shape(window=7, sinks=5, soft_cap=2.0, q_sink=True, groups=4, dim=32),
}


@pytest.mark.parametrize("candidate", ATTENTION)
@pytest.mark.parametrize("name", SHAPES)
def test_matches_the_definition(name: str, candidate: str) -> None:
    problem = make(SHAPES[name])
    torch.testing.assert_close(problem.run(candidate).double(), naive(problem), atol=2e-5, rtol=1e-4)


def _random_shape(seed: int) -> Shape:
    rng = torch.Generator().manual_seed(seed)

    def pick(*options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=rng))]

    slices = []
    for _ in range(pick(1, 3, 6, 9)):
        kv_len = int(torch.randint(1, 120, (1,), generator=rng))
        slices.append((min(kv_len, pick(1, 1, 1, 2, 17, 120)), kv_len))
    window = pick(None, 1, 5, 16, 40)
    sinks = 0 if window is None else pick(0, 0, 1, 4, 10)
    return Shape(
        groups=pick(1, 2, 4, 8),
        num_kv=pick(1, 2, 3),
        dim=pick(16, 32, 64),
        block_size=pick(1, 4, 8, 16),
        window=window,
        sinks=sinks,
        soft_cap=pick(None, None, 2.0),
        slices=tuple(slices),
        q_sink=sinks > 0 and pick(True, False),
        seed=seed,
    )


@pytest.mark.parametrize("seed", range(60))
def test_batched_equals_reference_on_random_batches(seed: int) -> None:
    problem = make(_random_shape(seed))
    torch.testing.assert_close(problem.run("torch"), problem.run("reference"), atol=1e-5, rtol=1e-5)


def test_random_batches_do_drop_blocks() -> None:
    assert sum(int(make(_random_shape(seed)).call["dropped"].sum()) > 0 for seed in range(60)) > 5


def test_tiles_and_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = replace(SHAPES["all"], slices=((40, 60), *(((1, 33),) * 5), (23, 23)))
    whole = make(shape).run("torch")
    monkeypatch.setattr(torch_fast, "MAX_TILE_ROWS", 7)
    monkeypatch.setattr(torch_fast, "MAX_GATHERED", 5000)
    torch.testing.assert_close(make(shape).run("torch"), whole, atol=1e-6, rtol=1e-5)
    windowed = replace(shape, sinks=0, q_sink=False)
    torch.testing.assert_close(
        make(windowed).run("torch"), make(windowed).run("reference"), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("candidate", ATTENTION)
def test_bfloat16_keeps_its_dtype_and_computes_in_float32(candidate: str) -> None:
    problem = make(SHAPES["all"], dtype=torch.bfloat16)
    got = problem.run(candidate)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), naive(problem), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("candidate", ATTENTION)
def test_numbers_of_another_sequence_never_leak(candidate: str) -> None:
    """Unwritten positions of the cache are NaN, and one sequence has NaN keys and values."""
    problem = make(Shape())
    clean = problem.run(candidate)
    assert clean.isfinite().all()
    table = problem.call["block_tables"][2]
    for cache in (problem.call["key_cache"], problem.call["value_cache"]):
        cache[table[:8].long()] = torch.nan  # all blocks of sequence 2
    dirty = problem.run(candidate)
    others = torch.ones(len(clean), dtype=torch.bool)
    others[6] = False  # row of sequence 2
    assert torch.equal(clean[others], dirty[others])
    assert dirty[6].isnan().all()


def test_write_kv_fills_exactly_its_slots() -> None:
    rng = torch.Generator().manual_seed(4)
    key, value = torch.randn(3, 2, 8, generator=rng), torch.randn(3, 2, 8, generator=rng)
    key_cache, value_cache = torch.zeros(5, 2, 4, 8), torch.zeros(5, 2, 4, 8, dtype=torch.float16)
    slots = [13, 2, 19]
    reference.write_kv(key, value, key_cache, value_cache, torch.tensor(slots))
    for block, head, offset in itertools.product(range(5), range(2), range(4)):
        slot = block * 4 + offset
        want = key[slots.index(slot), head] if slot in slots else torch.zeros(8)
        assert torch.equal(key_cache[block, head, offset], want)
        want = value[slots.index(slot), head] if slot in slots else torch.zeros(8)
        assert torch.equal(value_cache[block, head, offset], want.half())
