"""Native rotations, head norms and KV writes against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests import needs
from tests.instruction_sets import SETS, parameters

_native = needs.native()

from headrace.ops import reference  # noqa: E402
from tests.native.paged import aligned, beside, from_bf16, from_panels  # noqa: E402

EPS = 1e-6


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, _native.Team]]:
    yield {size: _native.Team(size) for size in (1, 2, 5)}


def frequencies(rotated: int) -> np.ndarray:
    return 1e4 ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)


@pytest.mark.parametrize("name", parameters())
def test_rotations_match_the_reference(name: str, teams: dict[int, _native.Team]) -> None:
    positions = torch.tensor([0, 1, 17, 4095, 131071, 10**6, 10**9, 3, 3])
    for rotated, factor in ((16, 1.0), (80, 1.4), (128, 1.0)):
        found = _native.rotations(
            _native.Kernels(name), teams[2], positions.numpy(), frequencies(rotated), factor=factor
        )
        required = reference.rope_tables(positions, torch.from_numpy(frequencies(rotated)), factor)
        for table, expected in zip(found, required, strict=True):
            torch.testing.assert_close(torch.from_numpy(table), expected, rtol=2e-7, atol=1e-7)


@pytest.mark.parametrize("name", parameters())
def test_rotations_of_a_position_are_the_same_bits_in_any_batch(
    name: str, teams: dict[int, _native.Team]
) -> None:
    kernels = _native.Kernels(name)
    positions = np.random.default_rng(0).integers(0, 10**6, 37)
    together = _native.rotations(kernels, teams[5], positions, frequencies(64))
    for t in range(len(positions)):
        alone = _native.rotations(kernels, teams[1], positions[t : t + 1], frequencies(64))
        for table, single in zip(together, alone, strict=True):
            assert np.array_equal(table[t : t + 1], single)


def test_positions_above_the_limit_are_taken_as_the_limit(teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(SETS[0])
    positions = np.array([3, 49, 50, 51, 10**6])
    cos, sin = _native.rotations(kernels, teams[1], positions, frequencies(32), limit=50)
    plain = _native.rotations(kernels, teams[1], positions.clip(max=50), frequencies(32))
    assert np.array_equal(cos, plain[0])
    assert np.array_equal(sin, plain[1])


class Case:
    """A random QKV, and a cache of five blocks that holds one thing everywhere."""

    FILL = 3

    def __init__(
        self, kind: str, dim: int, rotated: int, block_size: int, norm: bool, sinks: bool, tokens: int = 23,
        *, v_norm: bool = False, keys_are_values: bool = False,
    ):  # fmt: skip
        rng = torch.Generator().manual_seed(dim + rotated + block_size)
        self.kind, self.dim, self.block_size = kind, dim, block_size
        self.heads, self.num_kv = 6, 2
        self.v_norm, self.keys_are_values = v_norm, keys_are_values
        columns = (self.heads + (1 if keys_are_values else 2) * self.num_kv) * dim
        self.qkv = torch.randn(tokens, columns, generator=rng)
        self.positions = torch.randint(0, 5000, (tokens,), generator=rng)
        self.blocks = -(-tokens // block_size) + 3
        self.slots = torch.randperm(self.blocks * block_size, generator=rng)[:tokens]
        self.norms = [torch.rand(dim, generator=rng) + 0.5 for _ in range(2)] if norm else None
        angles = torch.from_numpy(frequencies(rotated))
        self.tables = reference.rope_tables(self.positions, angles, 1.0)
        self.sink_tables = reference.rope_tables(self.positions.clamp(max=50), angles, 1.0) if sinks else None

    def run(self, name: str, team: _native.Team, only: slice = slice(None)) -> dict[str, Any]:
        stored = {"f32": np.float32, "bf16": np.uint16, "i8": np.int8}[self.kind]
        room = aligned(self.block_size)
        cache = {
            side: np.full((self.blocks, self.num_kv, room * self.dim), self.FILL, dtype=stored)
            for side in ("keys", "values")
        }
        if self.kind == "i8":
            for side in ("key_scales", "value_scales"):
                cache[side] = np.full((self.blocks, self.num_kv, room), self.FILL, dtype=np.float32)
        extra: dict[str, Any] = {"v_norm": self.v_norm, "keys_are_values": self.keys_are_values}
        if self.norms is not None:
            extra |= {"q_norm": self.norms[0].numpy(), "k_norm": self.norms[1].numpy(), "eps": EPS}
        if self.sink_tables is not None:
            extra |= {
                "sink_cos": self.sink_tables[0][only].numpy(),
                "sink_sin": self.sink_tables[1][only].numpy(),
            }
        q, q_sink = _native.rope_and_write(
            _native.Kernels(name),
            team,
            self.qkv[only].numpy(),
            slots=self.slots[only].numpy(),
            cos=self.tables[0][only].numpy(),
            sin=self.tables[1][only].numpy(),
            num_heads=self.heads,
            head_dim=self.dim,
            block_size=self.block_size,
            **cache,
            **extra,
        )
        return {"q": q, "q_sink": q_sink, **cache}

    def expected(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
        """q, q_sink [T, Hq, D], and caches [N, Hkv, bs, D], float32."""
        widths = [self.heads * self.dim, *[self.num_kv * self.dim] * (1 if self.keys_are_values else 2)]
        q, k, *others = (part.unflatten(1, (-1, self.dim)) for part in self.qkv.split(widths, dim=1))
        v = others[0] if others else k
        if self.v_norm:
            v = reference.rms_norm(v, torch.ones(self.dim), EPS)
        if self.norms is not None:
            q, k = (reference.rms_norm(x, w, EPS) for x, w in zip((q, k), self.norms, strict=True))
        q_sink = None if self.sink_tables is None else reference.apply_rope(q, *self.sink_tables)
        key, value = torch.full((2, self.blocks, self.num_kv, self.block_size, self.dim), float(self.FILL))
        reference.write_kv(reference.apply_rope(k, *self.tables), v, key, value, self.slots)
        return reference.apply_rope(q, *self.tables), q_sink, key, value

    def cached(self, found: dict[str, Any], side: str) -> torch.Tensor:
        stored = found[side + "s"]
        if self.kind == "i8" and side == "key":  # code + 128
            stored = stored ^ np.int8(-128)
        plain = from_bf16(stored) if self.kind == "bf16" else torch.from_numpy(stored).float()
        cache = from_panels(
            plain, self.block_size, self.dim, keys=side == "key", beside=beside(self.kind, keys=side == "key")
        )
        if self.kind == "i8":
            cache = cache * torch.from_numpy(found[side + "_scales"])[:, :, : self.block_size, None]
        return cache

    def queries(self, q: np.ndarray) -> torch.Tensor:
        plain = torch.from_numpy(q) if self.kind == "f32" else from_bf16(q)
        return plain.transpose(0, 1).flatten(1, 2)  # [Hkv, T, G, D] -> [T, Hq, D]


CASES = (
    # dim, rotated, block_size, norm, sinks
    (16, 16, 16, False, False),
    (32, 16, 1, True, False),
    (64, 64, 16, False, True),
    (80, 80, 4, True, True),
    (80, 32, 20, False, False),
    (96, 96, 32, True, False),
    (128, 128, 100, True, True),
    (256, 64, 16, True, False),
    (1024, 1024, 16, True, True),
)


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("name", parameters())
def test_rope_and_write_match_the_reference(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    rounding = {"f32": 1e-6, "bf16": 2**-8, "i8": 2**-8}[kind]  # of queries: bfloat16 with an int8 cache
    cases = [Case(kind, *one) for one in CASES]
    cases += [
        Case(kind, 80, 80, 4, True, True, v_norm=True),
        Case(kind, 32, 32, 16, True, False, v_norm=True, keys_are_values=True),
        Case(kind, 512, 128, 20, True, True, keys_are_values=True),
    ]
    for case in cases:
        block_size = case.block_size
        found = case.run(name, teams[2])
        q, q_sink, key, value = case.expected()
        torch.testing.assert_close(case.queries(found["q"]), q, rtol=rounding, atol=2e-6)
        assert (found["q_sink"] is None) == (q_sink is None)
        if q_sink is not None:
            torch.testing.assert_close(case.queries(found["q_sink"]), q_sink, rtol=rounding, atol=2e-6)
        for side, required in (("key", key), ("value", value)):
            block, offset = case.slots // block_size, case.slots % block_size
            rows, wanted_rows = (cache[block, :, offset] for cache in (case.cached(found, side), required))
            if kind == "i8":  # half a step of a row's own scale, the largest magnitude being 127 steps
                step = wanted_rows.abs().amax(-1, keepdim=True) / 127
                assert ((rows - wanted_rows).abs() <= 0.501 * step).all()
                assert torch.allclose(rows.abs().amax(-1), wanted_rows.abs().amax(-1), rtol=1e-5)
            else:
                torch.testing.assert_close(rows, wanted_rows, rtol=rounding, atol=2e-6)


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
def test_writes_touch_nothing_but_their_slots(kind: str, teams: dict[int, _native.Team]) -> None:
    for dim, rotated, block_size, norm, sinks in CASES:
        case = Case(kind, dim, rotated, block_size, norm, sinks)
        found = case.run(SETS[0], teams[2])
        written = torch.zeros(case.blocks, aligned(block_size), dtype=torch.bool)
        written[case.slots // block_size, case.slots % block_size] = True
        for side in ("key", "value"):
            stored = torch.from_numpy(found[side + "s"].astype(np.float32))  # bit patterns as numbers
            room = aligned(block_size)
            cells = from_panels(
                stored, room, dim, keys=side == "key", beside=beside(kind, keys=side == "key")
            ).transpose(1, 2)
            assert (cells[~written] == case.FILL).all()
            if kind == "i8":
                scales = torch.from_numpy(found[side + "_scales"]).transpose(1, 2)
                assert (scales[~written] == case.FILL).all()


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("name", parameters())
def test_a_token_without_a_slot_is_rotated_and_not_written(
    name: str, kind: str, teams: dict[int, _native.Team]
) -> None:
    case = Case(kind, 80, 64, 4, True, True)
    everything = case.run(name, teams[2])
    slots = case.slots.clone()
    case.slots[::2] = -1
    found = case.run(name, teams[2])
    assert np.array_equal(found["q"], everything["q"]) and np.array_equal(
        found["q_sink"], everything["q_sink"]
    )
    for side in ("key", "value"):
        rows, all_rows = (case.cached(one, side)[slots // 4, :, slots % 4] for one in (found, everything))
        assert torch.equal(rows[1::2], all_rows[1::2])
        assert not torch.equal(rows[::2], all_rows[::2])
        assert len(rows[::2].unique()) == 1  # what the cache was filled with


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8"])
@pytest.mark.parametrize("name", parameters())
def test_batch_and_threads_change_no_bit(name: str, kind: str, teams: dict[int, _native.Team]) -> None:
    case = Case(kind, 80, 64, 4, True, True)
    together = case.run(name, teams[1])
    for size in (2, 5):
        assert all(np.array_equal(x, together[key]) for key, x in case.run(name, teams[size]).items())
    for t in range(len(case.slots)):
        alone = case.run(name, teams[1], slice(t, t + 1))
        for queries in ("q", "q_sink"):
            assert np.array_equal(alone[queries][:, 0], together[queries][:, t])
        block, offset = int(case.slots[t]) // 4, int(case.slots[t]) % 4
        for side in ("key", "value"):
            rows = [case.cached(found, side)[block, :, offset] for found in (alone, together)]
            assert torch.equal(rows[0], rows[1])
