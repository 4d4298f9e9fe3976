"""Attention problems for the native kernels: a ragged batch over a paged cache, and the cache in panel form."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import _native
from headrace.models.rope import alibi_slopes
from headrace.ops import reference

Floats = NDArray[np.float32]


def aligned(block_size: int) -> int:
    """Positions that a block has room for."""
    return -(-block_size // 16) * 16


def to_bf16(x: torch.Tensor) -> NDArray[np.uint16]:
    return x.bfloat16().view(torch.int16).numpy().view(np.uint16)


def from_bf16(x: NDArray[np.uint16]) -> torch.Tensor:
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).float()


def panels(cache: torch.Tensor, *, keys: bool, beside: int, padding: float = 0) -> torch.Tensor:
    """A cache [N, Hkv, bs, D] in the order in which products read it, [N, Hkv, T * D]; see csrc/tensors.h.
    `beside` features of a key, or positions of values, lie side by side; `padding` fills the positions from bs to T."""
    n, heads, size, dim = cache.shape
    room = torch.full((n, heads, aligned(size), dim), padding, dtype=cache.dtype)
    room[:, :, :size] = cache
    if keys:
        room = room.transpose(2, 3)  # [N, Hkv, D, T]
    room = room.unflatten(2, (-1, beside)).transpose(3, 4)  # neighbouring rows side by side
    return room.reshape(n, heads, -1).contiguous()


def from_panels(stored: torch.Tensor, block_size: int, dim: int, *, keys: bool, beside: int) -> torch.Tensor:
    """The inverse of `panels`: [N, Hkv, block_size, D]."""
    n, heads, _ = stored.shape
    first, second = (dim, aligned(block_size)) if keys else (aligned(block_size), dim)
    room = stored.view(n, heads, first // beside, second, beside).transpose(3, 4)
    room = room.reshape(n, heads, first, second)
    return (room.transpose(2, 3) if keys else room)[:, :, :block_size].contiguous()


def beside(kind: str, *, keys: bool) -> int:
    """Features of a key, or positions of values, that lie side by side in a cache of that format."""
    return 1 if kind == "f32" else 4 if kind == "i8" and keys else 2


@dataclass(frozen=True)
class Cache:
    """Keys and values in panel form, and the same as float32 [N, Hkv, bs, D] after the rounding of the format."""

    native: dict[str, NDArray[np.generic]]
    plain: tuple[torch.Tensor, torch.Tensor]

    @classmethod
    def of(cls, key: torch.Tensor, value: torch.Tensor, kind: str, padding: float = 0) -> Cache:
        native: dict[str, NDArray[np.generic]] = {}
        plain = []
        for name, cache in (("key", key), ("value", value)):
            keys = name == "key"
            if kind == "f32":
                native[name + "s"] = panels(
                    cache, keys=keys, beside=beside(kind, keys=keys), padding=padding
                ).numpy()
                plain.append(cache)
            elif kind == "bf16":
                room = panels(cache, keys=keys, beside=beside(kind, keys=keys), padding=padding)
                native[name + "s"] = to_bf16(room)
                plain.append(cache.bfloat16().float())
            else:
                scale = cache.abs().amax(-1) / 127  # [N, Hkv, bs]
                codes = torch.round(cache / scale.clamp(min=1e-30)[..., None]).nan_to_num(-128)
                stored = panels(codes, keys=keys, beside=beside(kind, keys=keys)).to(torch.int8)
                native[name + "s"] = (stored ^ -128 if keys else stored).numpy()  # keys: code + 128
                room = torch.full((*cache.shape[:2], aligned(cache.shape[2])), float(padding))
                room[:, :, : cache.shape[2]] = scale
                native[name + "_scales"] = room.numpy()
                plain.append(codes * scale[..., None])
        return cls(native, (plain[0], plain[1]))


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    num_kv: int = 2
    dim: int = 32
    block_size: int = 16
    window: int | None = None
    sinks: int = 0
    chunked: bool = False
    soft_cap: float | None = None
    alibi: float = 0.0
    slices: tuple[tuple[int, int], ...] = ((5, 17), (1, 1), (1, 300), (60, 530), (9, 9))  # (q_len, kv_len)
    seed: int = 0
    keep: bool = False  # blocks that left the window stay in the tables

    @property
    def slopes(self) -> torch.Tensor | None:
        return torch.tensor(alibi_slopes(self.heads, self.alibi)) if self.alibi else None


@dataclass(frozen=True)
class Problem:
    """Random queries, keys and values. Positions that no sequence has written hold large finite garbage."""

    shape: Shape
    q: torch.Tensor  # [T, Hq, D]
    q_sink: torch.Tensor | None
    key: torch.Tensor  # [N, Hkv, bs, D]
    value: torch.Tensor
    cu_q: torch.Tensor
    kv_lens: torch.Tensor
    positions: torch.Tensor
    block_tables: torch.Tensor
    dropped: torch.Tensor
    sink_blocks: int
    garbage: torch.Tensor = field(repr=False)  # [N, 1, bs, 1] bool: positions hidden from every query
    padding: float = 0  # after a block's positions

    @classmethod
    def make(cls, shape: Shape) -> Problem:
        rng = torch.Generator().manual_seed(shape.seed)
        size = shape.block_size
        blocks = [-(-kv // size) for _, kv in shape.slices]
        free = torch.randperm(sum(blocks) + 2, generator=rng).tolist()
        cache = torch.randn(2, len(free), shape.num_kv, size, shape.dim, generator=rng)
        unseen = torch.ones(len(free), 1, size, 1, dtype=torch.bool)
        sink_blocks = -(-shape.sinks // size)
        rows, dropped = [], []
        for (q_len, kv_len), count in zip(shape.slices, blocks, strict=True):
            table = [free.pop() for _ in range(count)]
            for at in range(count):
                unseen[table[at], :, : min(size, kv_len - at * size)] = False
            gone = 0
            if shape.window is not None and not shape.keep:
                gone = max(0, (kv_len - q_len - shape.window + 1) // size - sink_blocks)
            unseen[table[sink_blocks : sink_blocks + gone]] = True
            rows.append(table[:sink_blocks] + table[sink_blocks + gone :])
            dropped.append(gone)
        tables = torch.zeros(len(rows), max(map(len, rows)) + 1, dtype=torch.int32)
        for s, row in enumerate(rows):
            tables[s, : len(row)] = torch.tensor(row)
        lengths = torch.tensor([q_len for q_len, _ in shape.slices])
        q = torch.randn(2, int(lengths.sum()), shape.heads, shape.dim, generator=rng)
        problem = cls(
            shape,
            q[0],
            q[1] if shape.sinks else None,
            cache[0],
            cache[1],
            torch.cat((torch.zeros(1), lengths.cumsum(0))).int(),
            torch.tensor([kv for _, kv in shape.slices]).int(),
            torch.cat([torch.arange(kv - n, kv) for n, kv in shape.slices]),
            tables,
            torch.tensor(dropped).int(),
            sink_blocks,
            unseen,
        )
        return problem.with_garbage(seed=shape.seed + 1)

    def with_garbage(self, seed: int) -> Problem:
        """The same problem with other values at hidden positions."""
        noise = 1e3 * torch.randn(2, *self.key.shape, generator=torch.Generator().manual_seed(seed))
        return replace(
            self,
            key=torch.where(self.garbage, noise[0], self.key),
            value=torch.where(self.garbage, noise[1], self.value),
        )

    def with_poison(self, poison: float) -> Problem:
        """The same problem with `poison` (NaN, infinity) at hidden positions, padding included."""
        key, value = (torch.where(self.garbage, poison, cache) for cache in (self.key, self.value))
        return replace(self, key=key, value=value, padding=poison)

    def only(self, s: int, first: int = 0, last: int | None = None) -> Problem:
        """Rows first..last of sequence s alone, as an earlier or shorter step would have computed them."""
        start, stop = self.cu_q[s : s + 2].tolist()
        rows = slice(start + first, stop if last is None else start + last)
        return replace(
            self,
            q=self.q[rows],
            q_sink=None if self.q_sink is None else self.q_sink[rows],
            cu_q=torch.tensor([0, rows.stop - rows.start]).int(),
            kv_lens=self.positions[rows][-1:].int() + 1,
            positions=self.positions[rows],
            block_tables=self.block_tables[s : s + 1],
            dropped=self.dropped[s : s + 1],
        )

    def rows(self, s: int) -> slice:
        return slice(int(self.cu_q[s]), int(self.cu_q[s + 1]))

    def solve(
        self, kernels: _native.Kernels, team: _native.Team, kind: str, out_dtype: str = "f32"
    ) -> torch.Tensor:
        """The native kernel's result [T, Hq * D]."""
        shape = self.shape

        def grouped(q: torch.Tensor) -> NDArray[np.generic]:
            stacked = q.unflatten(1, (shape.num_kv, -1)).transpose(0, 1).contiguous()  # [Hkv, T, G, D]
            return stacked.numpy() if kind == "f32" else to_bf16(stacked)

        out = _native.paged_attention(
            kernels,
            team,
            grouped(self.q),
            **Cache.of(self.key, self.value, kind, self.padding).native,  # type: ignore[arg-type]
            cu_q=self.cu_q.numpy(),
            kv_lens=self.kv_lens.numpy(),
            positions=self.positions.numpy(),
            block_tables=self.block_tables.numpy(),
            dropped=self.dropped.numpy(),
            sink_blocks=self.sink_blocks,
            block_size=shape.block_size,
            scale=shape.dim**-0.5,
            window=shape.window or 0,
            chunked=shape.chunked,
            sinks=shape.sinks,
            soft_cap=shape.soft_cap or 0.0,
            slopes=None if shape.slopes is None else shape.slopes.numpy(),
            q_sink=None if self.q_sink is None else grouped(self.q_sink),
            out_dtype=out_dtype,
        )
        return torch.from_numpy(out) if out_dtype == "f32" else from_bf16(out)

    def expected(self, kind: str, *, round_queries: bool = True) -> torch.Tensor:
        """The reference's result [T, Hq * D], on what is left of the inputs after the rounding of the format. An int8
        cache rounds queries as well."""
        shape = self.shape

        def rounded(q: torch.Tensor) -> torch.Tensor:
            if kind == "f32":
                return q
            plain = q.bfloat16().float()
            return reference.round_rows(plain, "int8") if kind == "i8" and round_queries else plain

        key, value = Cache.of(self.key, self.value, kind).plain
        out = reference.paged_attention(
            rounded(self.q),
            key,
            value,
            self.cu_q,
            self.kv_lens,
            self.positions,
            self.block_tables,
            self.dropped,
            sink_blocks=self.sink_blocks,
            block_size=shape.block_size,
            scale=shape.dim**-0.5,
            window=shape.window,
            chunked=shape.chunked,
            sinks=shape.sinks,
            soft_cap=shape.soft_cap,
            slopes=shape.slopes,
            q_sink=None if self.q_sink is None else rounded(self.q_sink),
        )
        return out.flatten(1)
