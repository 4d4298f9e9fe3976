"""Which replica gets a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from headrace.sim.simulate.replica import Replica
from headrace.sim.simulate.requests import Ask, Prompt

PREFIX_BLOCK = 64
"""Tokens of the pieces of a prompt that the prefix-aware router remembers."""
MOST_BLOCKS = 64
"""Pieces of one prompt that it looks at."""
MOST_KEYS = 1 << 18
"""Pieces that it remembers, over all replicas; the oldest are forgotten."""
MOST_LEAD = 8
"""Requests by which a replica may be ahead of the least loaded one and still get one for its prefix, plus a quarter of
what that one has."""


class Router(Protocol):
    """Chooses replicas for requests, and gets a call when one ends or fails."""

    def choose(self, ask: Ask, up: Sequence[int], replicas: Sequence[Replica]) -> int:
        """One of the replicas `up`, which is not empty."""
        ...

    def sent(self, ask: Ask, index: int) -> None: ...

    def ended(self, ask: Ask, index: int) -> None: ...

    def lost(self, index: int) -> None:
        """The replica failed: its prefix cache is gone."""
        ...


class RoundRobin:
    """One after the other."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, ask: Ask, up: Sequence[int], replicas: Sequence[Replica]) -> int:
        self._last = next((index for index in up if index > self._last), up[0])
        return self._last

    def sent(self, ask: Ask, index: int) -> None:
        """It counts nothing."""

    def ended(self, ask: Ask, index: int) -> None:
        """It counts nothing."""

    def lost(self, index: int) -> None:
        """It remembers nothing."""


class LeastLoaded(RoundRobin):
    """The one with the fewest requests that have not ended; of several, the next in turn."""

    def choose(self, ask: Ask, up: Sequence[int], replicas: Sequence[Replica]) -> int:
        least = min(replicas[index].unfinished for index in up)
        return super().choose(ask, [index for index in up if replicas[index].unfinished == least], replicas)


class PrefixAware(LeastLoaded):
    """The one that was sent the longest prefix of the prompt before, unless it has many more requests than others."""

    def __init__(self) -> None:
        super().__init__()
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()  # (replica, key of a prefix)

    def choose(self, ask: Ask, up: Sequence[int], replicas: Sequence[Replica]) -> int:
        least = min(replicas[index].unfinished for index in up)
        keys = prefix_keys(ask.prompt)
        able = [index for index in up if replicas[index].unfinished <= least + MOST_LEAD + least // 4]
        lengths = {index: self._length(index, keys) for index in able}
        longest = max(lengths.values())
        if longest:
            able = [index for index in able if lengths[index] == longest]
        else:
            able = list(up)
        return super().choose(ask, able, replicas)

    def sent(self, ask: Ask, index: int) -> None:
        for key in prefix_keys(ask.prompt):
            self._known[index, key] = None
            self._known.move_to_end((index, key))
        while len(self._known) > MOST_KEYS:
            self._known.popitem(last=False)

    def lost(self, index: int) -> None:
        for known in [known for known in self._known if known[0] == index]:
            del self._known[known]

    def _length(self, index: int, keys: Sequence[int]) -> int:
        return next((at for at, key in enumerate(keys) if (index, key) not in self._known), len(keys))


def prefix_keys(prompt: Prompt) -> list[int]:
    """A key for each prefix of whole pieces, at most MOST_BLOCKS of them."""
    keys, key = [], 0
    for end in range(PREFIX_BLOCK, min(len(prompt), PREFIX_BLOCK * MOST_BLOCKS) + 1, PREFIX_BLOCK):
        key = hash((key, prompt[end - PREFIX_BLOCK : end]))
        keys.append(key)
    return keys


ROUTERS: Mapping[str, type[RoundRobin]] = MappingProxyType(
    {"round-robin": RoundRobin, "least-loaded": LeastLoaded, "prefix-aware": PrefixAware}
)
