"""Stored answers of /v1/responses, to be continued or fetched: in memory, separate for each key, bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from headrace.errors import ResponseNotFound

DEFAULT_BYTES = 64 * 2**20
"""Of all stored responses."""

MAX_ENTRY_BYTES = 4 * 2**20
"""Of one response with the conversation before it; a larger one is not stored."""


@dataclass(frozen=True, slots=True)
class StoredItems:
    """A conversation as JSON lists of input items; later responses share the bytes. `work`: the cost of parsing it, see
    `http.body`."""

    parts: tuple[bytes, ...] = ()
    work: int = 0

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`response`: the answer as JSON. `items`: the conversation up to its end, without instructions, which are not
    inherited."""

    id: str
    response: bytes
    items: StoredItems

    @property
    def size(self) -> int:
        return len(self.response) + self.items.size


class ResponseStore:
    """Keeps the most recently used responses of each owner, in memory only.

    max_bytes: of all responses; 0 stores none. When it is reached, the owner with the most bytes loses the least
    recently used response, so that one owner cannot evict the others' responses.
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
        """In bytes."""
        return sum(self._held.values())

    def put(self, owner: str, stored: StoredResponse) -> bool:
        """Store a response; returns False if it is too large."""
        if stored.size > min(MAX_ENTRY_BYTES, self._max_bytes):
            return False
        self._of.setdefault(owner, OrderedDict())[stored.id] = stored
        self._held[owner] = self._held.get(owner, 0) + stored.size
        while self.size > self._max_bytes:
            most = max(self._held, key=self._held.__getitem__)
            self._remove(most, next(iter(self._of[most])))
        return True

    def get(self, owner: str, response_id: str) -> StoredResponse:
        """Raises ResponseNotFound if the owner has no such response."""
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
        """Delete the responses of all other owners."""
        for owner in self._of.keys() - owners:
            del self._of[owner], self._held[owner]

    def _remove(self, owner: str, response_id: str) -> None:
        self._held[owner] -= self._of[owner].pop(response_id).size
        if not self._of[owner]:
            del self._of[owner], self._held[owner]
