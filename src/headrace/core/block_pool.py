"""Reference-counted KV blocks with a free list in eviction order."""

from __future__ import annotations

from collections.abc import Callable


class BlockPool:
    """`num_blocks` blocks with ids 0 … num_blocks - 1; every operation is O(1).

    A block is free when its reference count is 0. Free blocks are in a doubly linked list: `allocate` takes the head,
    so blocks without reusable content are put in at the head and blocks that the prefix cache still knows at the
    tail, which makes the list least-recently-used order. Pinned blocks have a list of their own, of which `allocate`
    takes when the other is empty. `on_evict` is called before a block is reallocated, which ends its pin.

    Invariant: 0 <= references(b), and b is in one of the free lists, by whether it is pinned, exactly when
    references(b) == 0.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._references = [0] * num_blocks
        # The lists are rings through the sentinel indices num_blocks and, for pinned blocks, num_blocks + 1.
        self._next: list[int] = [*range(1, num_blocks + 1), 0, num_blocks + 1]
        self._previous: list[int] = [num_blocks, *range(num_blocks), num_blocks + 1]
        self._num_free = num_blocks
        self._pinned: set[int] = set()

    @property
    def num_free(self) -> int:
        return self._num_free

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self) -> int:
        """Hand out the block at the head of the free list with one reference. Raises IndexError when none is free."""
        if not self._num_free:
            raise IndexError("no free KV block")
        end = self.num_blocks
        block = self._next[end] if self._next[end] != end else self._next[end + 1]
        if self._on_evict is not None:
            self._on_evict(block)
        self._pinned.discard(block)
        self._unlink(block)
        self._references[block] = 1
        return block

    @property
    def num_pinned(self) -> int:
        return len(self._pinned)

    def is_pinned(self, block: int) -> bool:
        return block in self._pinned

    def pin(self, block: int) -> None:
        """Hand the block out last, whenever it is free."""
        self._set_pinned(block, pinned=True)

    def unpin(self, block: int) -> None:
        """Treat the block like others again; a free one as if it were released now, with reusable content."""
        self._set_pinned(block, pinned=False)

    def share(self, block: int) -> None:
        """Add a reference; a free block leaves the free list with its content kept."""
        if self._references[block] == 0:
            self._unlink(block)
        self._references[block] += 1

    def release(self, block: int, *, reusable: bool) -> None:
        """Drop a reference; the last one frees the block, to the tail of the list if its content is reusable."""
        count = self._references[block] - 1
        if count < 0:
            raise ValueError(f"block {block} was released more often than it was taken")
        self._references[block] = count
        if count == 0:
            end = self.num_blocks + (block in self._pinned)
            self._link(block, before=end if reusable else self._next[end])

    def renew(self, block: int) -> None:
        """Hand the free block out next: its content is worth nothing any more."""
        self._unlink(block)
        self._link(block, before=self._next[self.num_blocks + (block in self._pinned)])

    def free_order(self) -> list[int]:
        """Free blocks, next to be handed out first. O(free blocks): for tests and displays."""
        order = []
        for end in (self.num_blocks, self.num_blocks + 1):
            block = self._next[end]
            while block != end:
                order.append(block)
                block = self._next[block]
        return order

    def _set_pinned(self, block: int, *, pinned: bool) -> None:
        free = self._references[block] == 0
        if free:
            self._unlink(block)
        if pinned:
            self._pinned.add(block)
        else:
            self._pinned.discard(block)
        if free:
            self._link(block, before=self.num_blocks + pinned)

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._num_free -= 1

    def _link(self, block: int, before: int) -> None:
        previous = self._previous[before]
        self._next[previous] = self._previous[before] = block
        self._previous[block], self._next[block] = previous, before
        self._num_free += 1
