"""Steps of several sequences over shuffled blocks, for any step model; a minimal scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import NOWHERE, KVGroupSpec, StateSlots
from headrace.models.spec import ModelSpec
from headrace.runner.step import GroupTables, StateTables, Step

BLOCKS = 256
SLOTS = 1024  # each slice leaves its state in a new one


def groups_of(spec: ModelSpec, block_size: int) -> tuple[KVGroupSpec, ...]:
    return tuple(
        KVGroupSpec(
            layout.name,
            BLOCKS if layout.state is None else SLOTS,
            block_size,
            layout.retention,
            layout.window,
            layout.sinks,
        )
        for layout in spec.kv_shapes
    )


class PagedRun:
    """Sequences of one model; blocks outside a window are dropped as soon as possible."""

    def __init__(self, model: Any, groups: Sequence[KVGroupSpec], seed: int = 0) -> None:
        self.model = model
        self.groups = groups
        shuffle = np.random.default_rng(seed).permutation
        self.free = [shuffle(group.num_blocks).tolist() for group in groups]
        self.length: dict[int, int] = {}
        self.tables: dict[tuple[int, int], list[int]] = {}  # (sequence, group) -> block of each logical block
        self.total_dropped = 0

    def step(
        self, slices: Mapping[int, Sequence[int]], rows: Sequence[int] | None = None
    ) -> list[NDArray[np.float32]]:
        """Append tokens to sequences in one batch; logits [n, V] after every token of each, or those of `rows`."""
        step = self.plan(slices)
        if rows is not None:
            step.logits_rows = np.array(rows, dtype=np.int64)
        logits = np.asarray(self.model.forward(step)).copy()  # valid until the next step only
        return np.split(logits, step.cu_q[1:-1]) if rows is None else [logits]

    def plan(self, slices: Mapping[int, Sequence[int]]) -> Step:
        starts = {s: self.length.get(s, 0) for s in slices}
        for s, tokens in slices.items():
            self.length[s] = starts[s] + len(tokens)
        positions = [range(starts[s], self.length[s]) for s in slices]
        return Step(
            ids=np.concatenate([np.array(tokens, dtype=np.int64) for tokens in slices.values()]),
            positions=np.concatenate([np.array(part, dtype=np.int64) for part in positions]),
            cu_q=np.cumsum([0, *map(len, slices.values())], dtype=np.int32),
            kv_lens=np.array([self.length[s] for s in slices], dtype=np.int32),
            groups=tuple(self._group(index, starts) for index in range(len(self.groups))),
            logits_rows=np.arange(sum(map(len, slices.values()))),
        )

    def _moves(self, index: int, s: int, start: int) -> StateSlots:
        source = self.tables[s, index][-1] if start else NOWHERE
        self.tables.setdefault((s, index), []).append(self.free[index].pop())
        return StateSlots(source, ((self.length[s] - start, self.tables[s, index][-1]),))

    def _group(self, index: int, starts: Mapping[int, int]) -> GroupTables | StateTables:
        group, size = self.groups[index], self.groups[index].block_size
        if group.is_state:
            return StateTables(tuple(self._moves(index, s, start) for s, start in starts.items()))
        live, dropped, slots = [], [], []
        for s, start in starts.items():
            table = self.tables.setdefault((s, index), [])
            while len(table) * size < self.length[s]:
                table.append(self.free[index].pop())
            gone = 0
            if group.window is not None:
                gone = max(0, (start - group.window + 1) // size - group.sink_blocks)
            live.append(table[: group.sink_blocks] + table[group.sink_blocks + gone :])
            dropped.append(gone)
            slots += [table[p // size] * size + p % size for p in range(start, self.length[s])]
        self.total_dropped += sum(dropped)
        width = max(map(len, live))
        return GroupTables(
            block_tables=np.array([row + [0] * (width - len(row)) for row in live], dtype=np.int32),
            dropped=np.array(dropped, dtype=np.int32),
            slots=np.array(slots, dtype=np.int64),
            sink_blocks=group.sink_blocks,
            block_size=size,
        )
