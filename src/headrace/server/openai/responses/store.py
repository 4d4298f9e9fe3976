"""Answers of /v1/responses that callers may go on from or fetch again: in memory, each key's for itself, bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from headrace.errors import ResponseNotFound

DEFAULT_BYTES = 64 * 2**20
"""What is kept in all."""

MAX_ENTRY_BYTES = 4 * 2**20
"""What one response may hold, with the conversation before it; a larger one is not kept."""


@dataclass(frozen=True, slots=True)
class StoredItems:
    """A conversation as JSON lists of input items; those that go on from it share their bytes. `work`: what it costs to
    read, see `body_work`."""

    parts: tuple[bytes, ...] = ()
    work: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`response`: the answer as JSON. `items`: the conversation up to its end, without instructions, which each request
    gives itself."""

    id: str
    response: bytes
    items: StoredItems

    @property
    def size(self) -> int:
        return len(self.response) + self.items.size


class ResponseStore:
    """Keeps the responses of each owner that were used last. Nothing of it survives the process.

    max_bytes: of all; 0 keeps nothing. When that is full, the owner who holds the most loses the response that has
    not been used for the longest time, so that nobody's flood evicts what is another's.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._of: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._held: dict[str, int] = {}

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0

    @property
    def size(self) -> int:
        """Bytes that are held."""
        return sum(self._held.values())

    def put(self, owner: str, stored: StoredResponse) -> bool:
        """Keep a response; False where it is too large."""
        if stored.size > min(MAX_ENTRY_BYTES, self._max_bytes):
            return False
        self._of.setdefault(owner, OrderedDict())[stored.id] = stored
        self._held[owner] = self._held.get(owner, 0) + stored.size
        while self.size > self._max_bytes:
            most = max(self._held, key=self._held.__getitem__)
            self._remove(most, next(iter(self._of[most])))
        return True

    def get(self, owner: str, response_id: str) -> StoredResponse:
        """Raises ResponseNotFound for what is not there, or another owner's."""
        mine = self._of.get(owner)
        if mine is None or response_id not in mine:
            raise ResponseNotFound(f"there is no response with the id {response_id[:80]!r}")
        mine.move_to_end(response_id)
        return mine[response_id]

    def delete(self, owner: str, response_id: str) -> None:
        """Raises as `get`."""
        self.get(owner, response_id)
        self._remove(owner, response_id)

    def keep(self, owners: frozenset[str]) -> None:
        """Delete the responses of owners who are not there any more."""
        for owner in self._of.keys() - owners:
            del self._of[owner], self._held[owner]

    def _remove(self, owner: str, response_id: str) -> None:
        self._held[owner] -= self._of[owner].pop(response_id).size
        if not self._of[owner]:
            del self._of[owner], self._held[owner]
