"""NaN in all KV memory that holds nothing: what a request with broken arithmetic leaves in the blocks that it frees."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from headrace.build import EngineParts
from headrace.runner.executor import ModelExecutor
from headrace.runner.kv_storage import KVStorage
from headrace.runner.native_kv import NativeKV

NAN = {"f32": (np.float32, np.nan), "bf16": (np.uint16, 0x7FC0), "i8": (np.int8, -128)}
"""What a poisoned element is, by the type of the cache. Codes are always finite: there the scales are NaN too."""


def poison(storage: NativeKV | KVStorage, group: int, blocks: list[int]) -> None:
    """Fill blocks of one KV group, in all layers, padding included."""
    if isinstance(storage, KVStorage):
        storage._pools[group][:, :, blocks] = float("nan")
        return
    dtype, value = NAN[storage.type]
    rows, scales = _parts(storage, group)
    for part in rows:
        part.view(dtype)[:, blocks] = value
    for part in scales:
        part.view(np.float32)[:, blocks] = np.nan


def _parts(
    storage: NativeKV, group: int
) -> tuple[tuple[NDArray[np.uint8], ...], tuple[NDArray[np.uint8], ...]]:
    """Keys and values, or keys alone, and their scales: [L, N, bytes of a block] each."""
    pool = storage._pools[group]
    count = len(pool) // 2 if storage.type == "i8" else len(pool)
    return pool[:count], pool[count:]


def poisoned(storage: NativeKV | KVStorage, group: int, block: int) -> bool:
    """Whether all keys and values of a block are poison, in all layers."""
    if isinstance(storage, KVStorage):
        return bool(storage._pools[group][:, :, block].isnan().all())
    dtype, value = NAN[storage.type]
    found = [part.view(dtype)[:, block] for part in _parts(storage, group)[0]]
    return all(bool((np.isnan(part) if dtype is np.float32 else part == value).all()) for part in found)


class Poison:
    """Poisons free blocks before each step, and counts how many of them the steps take.

    A block stays poisoned until a step takes it, so each is filled once for each time that it becomes free.
    """

    BLOCKS = 256
    """That are handed out next: more than one step takes."""

    def __init__(self, parts: EngineParts) -> None:
        assert isinstance(parts.executor, ModelExecutor)
        self._kv = parts.engine.scheduler.kv
        self._storage = parts.executor.model._kv
        self._poisoned: list[set[int]] = [set() for _ in self._kv.pools]
        self.taken = 0

    def before_plan(self) -> None:
        """Poison the free blocks that are next, but for those whose content the prefix cache can find."""
        cache = self._kv.cache
        for group, (pool, known) in enumerate(zip(self._kv.pools, self._poisoned, strict=True)):
            next_ones = itertools.islice(pool.free_order(), self.BLOCKS)
            blocks = [block for block in next_ones if cache is None or not cache.holds(group, block)]
            if fresh := [block for block in blocks if block not in known]:
                poison(self._storage, group, fresh)
                known.update(fresh)

    def after_plan(self) -> None:
        """Before the step runs: what it takes is poison still."""
        for group, (pool, known) in enumerate(zip(self._kv.pools, self._poisoned, strict=True)):
            taken = {block for block in known if pool.references(block) > 0}
            assert not taken or poisoned(self._storage, group, min(taken))
            known -= taken
            self.taken += len(taken)
