"""Caches of e4m3 and 4-bit codes against the reference, and bit for bit the same however they were written and read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests import needs
from tests.instruction_sets import SETS, parameters

_native = needs.native()

from headrace.ops import reference  # noqa: E402
from tests.native.paged import from_bf16, from_panels, to_bf16  # noqa: E402

HEADS, NUM_KV = 6, 2


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, _native.Team]]:
    yield {size: _native.Team(size) for size in (1, 2, 5)}


@dataclass
class Sequence:
    """A prompt of random queries, keys and values, written to a cache in blocks that are not in order. Memory starts as
    what a request with broken arithmetic leaves."""

    kind: str
    length: int
    dim: int
    size: int
    qkv: NDArray[np.float32] = field(init=False)
    caches: dict[str, NDArray[np.generic]] = field(init=False)
    recent: tuple[NDArray[np.generic], ...] = ()
    queries: list[NDArray[np.generic]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.length + self.dim)
        columns = (HEADS + 2 * NUM_KV) * self.dim
        self.qkv = rng.standard_normal((self.length, columns), dtype=np.float32)
        self.qkv += 4 * rng.standard_normal(
            columns, dtype=np.float32
        )  # features differ in their means, as those of models
        self.blocks = -(-self.length // self.size)
        self.table = rng.permutation(self.blocks + 2)[: self.blocks].astype(np.int32)
        shape = (self.blocks + 2, NUM_KV)
        panel = self.size * self.dim
        if self.kind == "i4":
            self.caches = {
                "keys": np.full((*shape, panel // 2), 0xF0, np.uint8),
                "values": np.full((*shape, panel // 2), 0xF0, np.uint8),
                "key_scales": np.full((*shape, self.dim, 2), 0x7FC0, np.uint16),
                "value_scales": np.full((*shape, self.size), 0x7FC0, np.uint16),
            }
            self.recent = (
                np.full((*shape, panel), 0x7FC0, np.uint16),
                np.full((*shape, panel), 0x7FC0, np.uint16),
            )
        else:
            self.caches = {name: np.full((*shape, panel), 0x7F, np.uint8) for name in ("keys", "values")}
            self.caches |= {
                f"{name}_scales": np.full((*shape, self.size), np.nan, np.float32)
                for name in ("key", "value")
            }

    def write(self, kernels: _native.Kernels, team: _native.Team, first: int, last: int) -> None:
        """Positions first..last, as a chunk of a prompt."""
        at = np.arange(first, last)
        slots = self.table[at // self.size].astype(np.int64) * self.size + at % self.size
        no_turn = np.ones((last - first, 8), np.float32), np.zeros((last - first, 8), np.float32)
        q, _ = _native.rope_and_write(
            kernels, team, self.qkv[first:last], slots=slots, cos=no_turn[0], sin=no_turn[1], num_heads=HEADS,
            head_dim=self.dim, block_size=self.size, recent=(*self.recent, slots) if self.recent else None,
            **self.caches,
        )  # fmt: skip
        self.queries.append(q)

    def attend(
        self, kernels: _native.Kernels, team: _native.Team, first: int, last: int, window: int = 0
    ) -> torch.Tensor:
        """The result [last - first, Hq * D] for queries first..last."""
        q = np.ascontiguousarray(np.concatenate(self.queries, axis=1)[:, first:last])
        table, none = self.table[None], np.zeros(1, np.int32)
        gone = np.array([first // self.size], np.int32)  # only the block of the first query is still there
        recent = (*self.recent, np.ascontiguousarray(table[:, gone[0] :]), gone) if self.recent else None
        out = _native.paged_attention(
            kernels, team, q, cu_q=np.array([0, last - first], np.int32), kv_lens=np.array([last], np.int32),
            positions=np.arange(first, last), block_tables=table, dropped=none, sink_blocks=0, block_size=self.size,
            scale=0.3 * self.dim**-0.5, window=window, recent=recent, **self.caches,
        )  # fmt: skip
        return torch.from_numpy(out)

    def parts(self) -> tuple[torch.Tensor, ...]:
        """Queries [T, Hq, D], keys and values [Hkv, T, D] of the prompt, as bfloat16 numbers."""
        rows = torch.from_numpy(self.qkv).bfloat16().float().unflatten(1, (-1, self.dim))
        return rows[:, :HEADS], *(part.transpose(0, 1) for part in rows[:, HEADS:].split(NUM_KV, dim=1))

    def expected(self, first: int, last: int, window: int = 0) -> torch.Tensor:
        """What the reference gives: query i reads its own block as it is, and earlier ones as the cache holds them."""
        queries, keys, values = self.parts()
        exact = torch.from_numpy(self.qkv).unflatten(1, (-1, self.dim))[:, HEADS:].transpose(0, 1)
        whole = self.length // self.size * self.size
        if self.kind == "i4":
            blocks = [part[:, :whole].unflatten(1, (-1, self.size)) for part in (keys, values)]
            coded = [reference.round_block_keys(blocks[0]), reference.round_block_values(blocks[1])]
            stored = [
                torch.cat((one.flatten(1, 2), part[:, whole:]), 1)
                for one, part in zip(coded, (keys, values), strict=True)
            ]
        else:
            stored = [reference.round_rows(part, "fp8") for part in exact.split(NUM_KV)]
        rows = []
        for i in range(first, last):
            own = i // self.size * self.size if self.kind == "i4" else i + 1
            seen = [
                torch.cat((one[:, :own], part[:, own : i + 1]), 1)
                for one, part in zip(stored, (keys, values), strict=True)
            ]
            low = max(0, i + 1 - window) if window else 0
            q = queries[i].unflatten(0, (NUM_KV, -1))
            scores = (q @ seen[0][:, low:].transpose(1, 2)) * (0.3 * self.dim**-0.5)
            rows.append((scores.softmax(-1) @ seen[1][:, low:]).flatten())
        return torch.stack(rows)

    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The codes' numbers of the whole blocks [Hkv, T, D], before scales of positions."""
        found = []
        for name in ("keys", "values"):
            codes = torch.from_numpy(self.caches[name][self.table])
            found.append(from_panels(codes, self.size, self.dim, keys=name == "keys", beside=2))
        return found[0], found[1]


CASES = [
    ("e4m3", 150, 32, 16),
    ("e4m3", 77, 80, 32),
    ("i4", 150, 32, 16),
    ("i4", 333, 64, 32),
    ("i4", 140, 48, 64),
    ("i4", 70, 16, 48),
]


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out - expected).norm() / expected.norm())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", parameters())
def test_matches_the_reference(
    name: str, case: tuple[str, int, int, int], teams: dict[int, _native.Team]
) -> None:
    sequence, kernels = Sequence(*case), _native.Kernels(name)
    sequence.write(kernels, teams[2], 0, sequence.length)
    for window in (0, 45):
        out = sequence.attend(kernels, teams[2], 0, sequence.length, window)
        assert error(out, sequence.expected(0, sequence.length, window)) < 1e-2


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", parameters())
def test_chunks_and_threads_change_no_bit(
    name: str, case: tuple[str, int, int, int], teams: dict[int, _native.Team]
) -> None:
    kernels, length = _native.Kernels(name), case[1]
    whole = Sequence(*case)
    whole.write(kernels, teams[1], 0, length)
    together = whole.attend(kernels, teams[1], 0, length)
    cut = Sequence(*case)
    for first, last in itertools.pairwise((0, 1, 17, 48, 49, 64, length - 1, length)):
        cut.write(kernels, teams[5], first, last)
        out = cut.attend(kernels, teams[1 + first % 2], first, last)  # later positions are not written yet
        assert torch.equal(out, together[first:last]), (first, last)
    for one, other in zip(whole.caches.values(), cut.caches.values(), strict=True):
        assert np.array_equal(one, other, equal_nan=one.dtype == np.float32)


def test_codes_are_those_of_the_reference(teams: dict[int, _native.Team]) -> None:
    sequence, kernels = Sequence("e4m3", 64, 32, 16), _native.Kernels(SETS[0])
    sequence.qkv[5] = 0
    sequence.qkv[6] *= 1e-30
    sequence.qkv[7] *= 1e30
    sequence.write(kernels, teams[2], 0, 64)
    exact = torch.from_numpy(sequence.qkv).unflatten(1, (-1, 32))[:, HEADS:].transpose(0, 1).split(NUM_KV)
    for codes, scales, part in zip(sequence.stored(), ("key_scales", "value_scales"), exact, strict=True):
        numbers = codes.view(torch.float8_e4m3fn).float().transpose(0, 1).flatten(1, 2)
        scale = torch.from_numpy(sequence.caches[scales][sequence.table]).transpose(0, 1).flatten(1, 2)
        torch.testing.assert_close(
            numbers * scale[..., None], reference.round_rows(part, "fp8"), rtol=2e-6, atol=0
        )


@pytest.mark.parametrize("name", parameters())
def test_4_bits_are_those_of_the_reference(name: str, teams: dict[int, _native.Team]) -> None:
    sequence, kernels = Sequence("i4", 64, 48, 16), _native.Kernels(name)
    sequence.qkv[5] = 0
    sequence.qkv[17:33, -50:] = 3.5  # a block whose features, and rows of one number
    sequence.write(kernels, teams[2], 0, 64)
    _, keys, values = sequence.parts()
    scales = from_bf16(sequence.caches["key_scales"][sequence.table]).transpose(0, 1)  # [Hkv, B, D, 2]
    packed = torch.from_numpy(sequence.caches["keys"][sequence.table]).transpose(0, 1).unflatten(2, (24, 16))
    codes = torch.stack((packed & 15, packed >> 4), 3).flatten(2, 3).transpose(2, 3)  # [Hkv, B, T, D]
    found = scales[:, :, None, :, 1] + scales[:, :, None, :, 0] * codes
    blocks = keys.unflatten(1, (-1, 16))
    assert torch.equal(found.bfloat16().float(), reference.round_block_keys(blocks))
    steps = from_bf16(sequence.caches["value_scales"][sequence.table]).transpose(0, 1)  # [Hkv, B, T]
    rows = torch.from_numpy(sequence.caches["values"][sequence.table]).transpose(0, 1).unflatten(2, (16, 24))
    low, high = rows & 15, rows >> 4
    order = (low[..., :16], high[..., :16], low[..., 16:], high[..., 16:])  # 32 features, then the last 16
    numbers = (torch.cat(order, -1).float() - 8) * steps[..., None]
    assert torch.equal(numbers, reference.round_block_values(values.unflatten(1, (-1, 16))))


def test_what_is_not_finite_makes_its_readers_so(teams: dict[int, _native.Team]) -> None:
    kernels = _native.Kernels(SETS[0])
    for kind, part in itertools.product(("e4m3", "i4"), (HEADS, HEADS + NUM_KV)):
        sequence = Sequence(kind, 70, 32, 16)
        sequence.qkv[20, part * 32] = np.inf
        sequence.write(kernels, teams[2], 0, 70)
        out = sequence.attend(kernels, teams[2], 0, 70).unflatten(1, (NUM_KV, -1))
        assert not out[:20].isnan().any()
        assert not out[:, 1].isnan().any()
        assert not out[20:, 0].isfinite().all(-1).any()


def test_bfloat16_is_what_a_recent_block_holds(teams: dict[int, _native.Team]) -> None:
    sequence, kernels = Sequence("i4", 20, 32, 32), _native.Kernels(SETS[0])
    sequence.write(kernels, teams[2], 0, 20)
    _, keys, values = sequence.parts()
    for cache, part, is_key in ((sequence.recent[0], keys, True), (sequence.recent[1], values, False)):
        block = torch.from_numpy(cache[sequence.table].view(np.int16))
        found = from_panels(block, 32, 32, keys=is_key, beside=2)[0, :, :20]
        assert np.array_equal(found.numpy().view(np.uint16), to_bf16(part))
