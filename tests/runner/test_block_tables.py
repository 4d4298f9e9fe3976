"""Block tables as arrays follow the updates of the KV manager exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.kv_manager import KVManager
from headrace.core.prefix_cache import BlockKeys
from headrace.core.request import Request
from headrace.core.types import BlockCopy, KVGroupSpec, NewRequest, Retention
from headrace.runner.block_tables import BlockTables

GROUPS = {
    "full": KVGroupSpec("full", 400, 4),
    "window": KVGroupSpec("window", 40, 4, Retention.WINDOW, 10),
    "sinks": KVGroupSpec("sinks", 40, 4, Retention.SINKS, 9, 6),
}


@pytest.mark.parametrize("kind", GROUPS)
@settings(max_examples=40, derandomize=True)
@given(steps=st.lists(st.integers(1, 25), min_size=1, max_size=25))
def test_arrays_follow_a_growing_sequence(kind: str, steps: list[int]) -> None:
    group = GROUPS[kind]
    manager = KVManager([group], prefix_caching=False)
    tables = BlockTables(group, max_seqs=3)
    request = Request(
        0,
        NewRequest("r", (1,)),
        0,
        seed=0,
        stop_ids=frozenset(),
        limit=10**6,
        num_groups=1,
        keys=BlockKeys("", 4),
        now=0.0,
    )
    block_of: dict[int, int] = {}  # logical block -> block, as first handed out
    for count in steps:
        copies: list[BlockCopy] = []
        if not manager.grow(request, count, copies):
            break
        start, end = request.num_computed, request.num_computed + count
        (update,) = manager.updates(request)
        if update is not None:
            tables.apply(1, update)
        positions = np.arange(start, end)
        batch = tables.tables(np.array([1]), np.full(count, 1, dtype=np.int64), positions.astype(np.int64))
        live = batch.block_tables[0].tolist()
        assert live == request.tables[0].live
        for position, slot in zip(positions.tolist(), batch.slots.tolist(), strict=True):
            block = block_of.setdefault(position // 4, slot // 4)
            assert (slot // 4, slot % 4) == (block, position % 4)
        dropped = int(batch.dropped[0])
        seen = {(i if i < group.sink_blocks else i + dropped): block for i, block in enumerate(live)}
        for query in (start, end - 1):
            for key in range(query + 1):
                if group.window is None or query - key < group.window or key < group.sinks:
                    assert seen[key // 4] == block_of[key // 4]
        request.num_computed = end
        manager.updates(request)


def test_rows_do_not_touch_each_other_and_grow_wider() -> None:
    group = KVGroupSpec("full", 1000, 1)
    manager = KVManager([group], prefix_caching=False)
    tables = BlockTables(group, max_seqs=2)
    requests = [
        Request(
            i, NewRequest(str(i), (1,)), 0, seed=0, stop_ids=frozenset(), limit=10**6, num_groups=1,
            keys=BlockKeys("", 1), now=0.0,
        )
        for i in range(2)
    ]  # fmt: skip
    for row, (request, count) in enumerate(zip(requests, (3, 300), strict=True)):
        assert manager.grow(request, count, [])
        (update,) = manager.updates(request)
        assert update is not None
        tables.apply(row, update)
    batch = tables.tables(np.array([0, 1]), np.array([0, 1]), np.array([2, 299]))
    assert batch.block_tables[0, :3].tolist() == requests[0].tables[0].live
    assert batch.block_tables[1].tolist() == requests[1].tables[0].live
    tables.clear(0)
    assert tables.tables(np.array([0]), np.array([0]), np.array([0])).block_tables.shape == (1, 0)
