"""NaN in all KV memory that holds nothing: what a request with broken arithmetic leaves in the blocks that it frees."""

from __future__ import annotations

import itertools

import numpy as np

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
    keys, values, *scales = storage._pools[group]  # [L, N, bytes of a block] each
    for part in (keys, values):
        part.view(dtype)[:, blocks] = value
    for part in scales:
        part.view(np.float32)[:, blocks] = np.nan


class Poison:
    """Poisons free blocks before each step, and counts how many of them the step takes."""

    BLOCKS = 256
    """That are handed out next: more than one step takes."""

    def __init__(self, parts: EngineParts) -> None:
        assert isinstance(parts.executor, ModelExecutor)
        self._kv = parts.engine.scheduler.kv
        self._storage = parts.executor.model._kv
        self._poisoned: list[list[int]] = [[] for _ in self._kv.pools]
        self.taken = 0

    def before_plan(self) -> None:
        """Poison the free blocks that are next, but for those whose content the prefix cache can find."""
        cache = self._kv.cache
        for group, pool in enumerate(self._kv.pools):
            next_ones = itertools.islice(pool.free_order(), self.BLOCKS)
            blocks = [block for block in next_ones if cache is None or not cache.holds(group, block)]
            self._poisoned[group] = blocks
            poison(self._storage, group, blocks)

    def after_plan(self) -> None:
        for pool, blocks in zip(self._kv.pools, self._poisoned, strict=True):
            self.taken += sum(pool.references(block) > 0 for block in blocks)
