"""Which blocks of the prefix cache are pinned until when. Pinned blocks are evicted last; nothing is reserved."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from headrace.core.block_pool import BlockPool
from headrace.core.step_writes import Cell

MOST = 0.5
"""Share of a pool's blocks that may be pinned. Beyond it the pins that would end first are broken."""
_SPARE = 64  # entries of broken pins that may lie in a heap at any size


@dataclass(slots=True)
class _Pin:
    number: int  # of its entry in the heap
    until: float


class Pins:
    """Ends pins in time, and counts those that were broken before: for lack of blocks, or as too many were pinned."""

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self._pools = pools
        self._pins: tuple[dict[int, _Pin], ...] = tuple({} for _ in pools)  # by block
        # (time, number, block): one entry per pin. Its time is too early where the pin was prolonged since.
        self._heaps: tuple[list[tuple[float, int, int]], ...] = tuple([] for _ in pools)
        self._numbers = count()
        self.made = 0  # blocks that were not pinned before
        self.broken = 0

    def __bool__(self) -> bool:
        """Whether any block may be pinned."""
        return any(self._heaps)

    def until(self, cell: Cell) -> float | None:
        """When the block's pin ends; None where it has none."""
        pin = self._pins[cell[0]].get(cell[1])
        return None if pin is None else pin.until

    def add(self, cell: Cell, until: float) -> None:
        """Pin a block, or prolong its pin; one that lasts longer stays as it is. O(log n)."""
        group, block = cell
        pins, heap, pool = self._pins[group], self._heaps[group], self._pools[group]
        pin = pins.get(block)
        if pin is not None:
            pin.until = max(pin.until, until)
            return
        pins[block] = pin = _Pin(next(self._numbers), until)
        heapq.heappush(heap, (until, pin.number, block))
        pool.pin(block)
        self.made += 1
        if len(pins) > MOST * pool.num_blocks and (first := self._first(group)) is not None:
            self._end(group, first[1])
            self.broken += 1

    def lose(self, cell: Cell) -> bool:
        """A block is about to be overwritten: returns whether that breaks its pin."""
        group, block = cell
        if block not in self._pins[group]:
            return False
        self._end(group, block)
        self.broken += 1
        return True

    def expire(self, now: float) -> None:
        """End the pins that have expired. O(log n) each."""
        for group, heap in enumerate(self._heaps):
            if heap and heap[0][0] <= now:
                while (first := self._first(group)) is not None and first[0] <= now:
                    self._end(group, first[1])

    def _first(self, group: int) -> tuple[float, int] | None:
        """The pin that ends first, as (time, block), now at the head of the heap."""
        pins, heap = self._pins[group], self._heaps[group]
        while heap:
            time, number, block = heap[0]
            pin = pins.get(block)
            if pin is None or pin.number != number:
                heapq.heappop(heap)  # of a pin that was broken
            elif pin.until > time:
                heapq.heapreplace(heap, (pin.until, number, block))
            else:
                return time, block
        return None

    def _end(self, group: int, block: int) -> None:
        pins, heap = self._pins[group], self._heaps[group]
        del pins[block]
        self._pools[group].unpin(block)
        if len(heap) > 4 * len(pins) + _SPARE:
            heap[:] = [(pin.until, pin.number, block) for block, pin in pins.items()]
            heapq.heapify(heap)
