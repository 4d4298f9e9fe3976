"""NaN in all KV memory that holds nothing: what a request with broken arithmetic leaves in the blocks that it frees."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from headrace.build import EngineParts
from headrace.runner.executor import ModelExecutor
from headrace.runner.kv_storage import KVStorage
from headrace.runner.native_kv import NativeKV
from headrace.speculative.control import Speculation
from headrace.speculative.eagle import EagleMethod
from headrace.speculative.model import ModelMethod

NAN = {
    "f32": (np.float32, np.nan),
    "bf16": (np.uint16, 0x7FC0),
    "i8": (np.int8, -128),
    "e4m3": (np.uint8, 0x7F),
    "i4": (np.uint8, 0xF0),
}
"""What a poisoned element is, by the type of the cache. Codes are always finite: there the scales are NaN too."""


def _parts(storage: NativeKV, group: int) -> tuple[Any, Any, Any, Any]:
    """The type and value of a poisoned element, the arrays that hold such elements, and their scales."""
    pool = storage._pools[group]  # [L, N, bytes of a block] each
    if storage.layouts[group].state is not None:
        return (*NAN["f32"], pool, ())
    layout = storage.layouts[group]
    return (*NAN[storage.type_of(layout)], pool[: layout.parts], pool[layout.parts :])


def poison(storage: NativeKV | KVStorage, group: int, blocks: list[int]) -> None:
    """Fill blocks of one KV group, in all layers, padding included."""
    if isinstance(storage, KVStorage):
        for tensor in storage._pools[group]:
            tensor[:, blocks] = float("nan")
        return
    dtype, value, parts, scales = _parts(storage, group)
    for part in parts:
        part.view(dtype)[:, blocks] = value
    for part in scales:
        if storage.type == "i4":
            part.view(np.uint16)[:, blocks] = NAN["bf16"][1]
        else:
            part.view(np.float32)[:, blocks] = np.nan


def poisoned(storage: NativeKV | KVStorage, group: int, block: int) -> bool:
    """Whether all keys and values of a block are poison, in all layers."""
    if isinstance(storage, KVStorage):
        return all(bool(tensor[:, block].isnan().all()) for tensor in storage._pools[group])
    dtype, value, parts, _ = _parts(storage, group)
    found = [part.view(dtype)[:, block] for part in parts]
    return all(bool((np.isnan(part) if dtype is np.float32 else part == value).all()) for part in found)


def _storages(executor: ModelExecutor[Any]) -> list[tuple[NativeKV | KVStorage, int]]:
    """For each KV group what stores it, and its number there: the model's, then those of the model that drafts."""
    methods = executor.drafter.methods if isinstance(executor.drafter, Speculation) else ()
    storages = [executor.model._kv]  # type: ignore[attr-defined]
    for one in methods:
        if isinstance(one, ModelMethod):
            storages.append(one.model._kv)  # type: ignore[attr-defined]
        elif isinstance(one, EagleMethod):
            layers: Any = one.layers
            storages.append((layers._tape if hasattr(layers, "_tape") else layers._model)._kv)
    return [(storage, group) for storage in storages for group in range(len(storage._pools))]


class Poison:
    """Poisons free blocks before each step, and counts how many of them the steps take.

    A block stays poisoned until a step takes it, so each is filled once for each time that it becomes free.
    """

    BLOCKS = 256
    """That are handed out next: more than one step takes."""

    def __init__(self, parts: EngineParts) -> None:
        assert isinstance(parts.executor, ModelExecutor)
        self._kv = parts.engine.scheduler.kv
        self._storages = _storages(parts.executor)
        self._poisoned: list[set[int]] = [set() for _ in self._kv.pools]
        self.taken = 0

    def before_plan(self) -> None:
        """Poison the free blocks that are next, but for those whose content the prefix cache can find."""
        cache = self._kv.cache
        for group, (pool, known) in enumerate(zip(self._kv.pools, self._poisoned, strict=True)):
            next_ones = itertools.islice(pool.free_order(), self.BLOCKS)
            blocks = [block for block in next_ones if cache is None or not cache.holds(group, block)]
            if fresh := [block for block in blocks if block not in known]:
                poison(*self._storages[group], fresh)
                known.update(fresh)

    def after_plan(self) -> None:
        """Before the step runs: what it takes is poison still. States that it leaves to the cache have no reference."""
        cache = self._kv.cache
        for group, (pool, known) in enumerate(zip(self._kv.pools, self._poisoned, strict=True)):
            kept = () if cache is None else cache.findable(group)
            taken = {block for block in known if pool.references(block) > 0 or block in kept}
            assert not taken or poisoned(*self._storages[group], min(taken))
            known -= taken
            self.taken += len(taken)
