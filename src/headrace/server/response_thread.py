"""The conversation of a response: what its request says, after what stored responses before it have said."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidParams, PreviousResponseNotFound, ResponseNotFound
from headrace.server.body_work import MAX_WORK, BodyWork
from headrace.server.json_parts import PART_CHARS, json_parts
from headrace.server.prompts import are_many
from headrace.server.response_schemas import ResponsesRequest
from headrace.server.response_store import MAX_ENTRY_BYTES, StoredItems, StoredResponse
from headrace.server.service import Service

_PART_BYTES = 2**14
"""Stored items are kept in JSON lists of about this size, and each is parsed on its own. A conversation of at most so
many bytes is parsed on the event loop."""


@dataclass(slots=True)
class Thread:
    """`before`: what stored responses have said. `given`: the request's input. `kept`: the response will be stored."""

    before: StoredItems
    given: Any
    kept: bool
    _written: StoredItems | None = (
        None  # the conversation with the input, unless it is too large to be stored
    )

    @classmethod
    def of(cls, service: Service, body: ResponsesRequest) -> Thread:
        """Raises PreviousResponseNotFound, and InvalidParams where this server stores nothing."""
        store, previous = service.responses, body.previous_response_id
        kept = store.enabled and body.store is not False
        if previous is None:
            return cls(StoredItems(), body.input, kept)
        if not store.enabled:
            raise InvalidParams(
                "previous_response_id is not supported: this server stores no responses; "
                "send the whole conversation as input"
            )
        try:
            return cls(store.get(service.caller.name, previous).items, body.input, kept)
        except ResponseNotFound as error:
            raise PreviousResponseNotFound(f"previous_response_id: {error}") from error

    @property
    def is_long(self) -> bool:
        """`items` and `write` take long."""
        return self.before.size > _PART_BYTES or are_many(self.given)

    def items(self) -> Any:
        """Input items, or the one text of a request that goes on from nothing."""
        if not self.before.parts:
            return self.given
        return [item for part in self.before.parts for item in json.loads(part)] + _listed(self.given)

    def write(self) -> None:
        """Write the input down for `keep`."""
        if self.kept:
            self._written = _finished(_extended(self.before, _listed(self.given)))

    def keep(self, service: Service, response: dict[str, Any]) -> Iterator[None]:
        """Store a complete response with its conversation; where it is too large, the response says that it is not.

        Yields from time to time, for others to be served.
        """
        if self.kept and not (yield from self._put(service, response)):
            response["store"] = False

    def _put(self, service: Service, response: dict[str, Any]) -> Generator[None, None, bool]:
        if self._written is None:
            return False
        items = yield from _extended(self._written, map(_without_logprobs, response["output"]))
        written = yield from _bounded(response)
        if items is None or written is None:
            return False
        if service.caller.name not in service.traffic.names:  # the key was removed while the answer grew
            return False
        return service.responses.put(
            service.caller.name, StoredResponse(response["id"], b"".join(written), items)
        )


def _extended(before: StoredItems, items: Iterable[Any]) -> Generator[None, None, StoredItems | None]:
    """A conversation with more items; None where it is too large to be stored, or cannot be written.

    What is stored costs no more to read than the body of one request may: see `body_work`.
    """
    parts, work = list(before.parts), BodyWork()
    room = MAX_ENTRY_BYTES - before.size
    tail = bytearray(b"[")
    if parts and len(parts[-1]) < _PART_BYTES:
        tail = bytearray(parts.pop()[:-1])
    for item in items:
        written = yield from _bounded(item, room)
        if written is None:
            return None
        if len(tail) > 1:
            tail += b","
        for part in written:
            tail += part
            room -= len(part)
            if before.work + work.add(part) > MAX_WORK:
                return None
        if len(tail) >= _PART_BYTES:
            parts.append(bytes(tail + b"]"))
            tail = bytearray(b"[")
            yield
    if len(tail) > 1:
        parts.append(bytes(tail + b"]"))
    return StoredItems(tuple(parts), before.work + work.units)


def _bounded(value: Any, most: int = MAX_ENTRY_BYTES) -> Generator[None, None, list[bytes] | None]:
    """A value as JSON; None where it has more than `most` bytes, or cannot be written."""
    parts: list[bytes] = []
    size, pause = 0, PART_CHARS
    try:
        for part in json_parts(value):
            parts.append(part)
            size += len(part)
            if size > most:
                return None
            if size >= pause:
                pause = size + PART_CHARS
                yield
    except (ValueError, RecursionError):
        return None
    return parts


def _finished(steps: Generator[None, None, StoredItems | None]) -> StoredItems | None:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: StoredItems | None = end.value
            return found


def _without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    if "content" not in item:
        return item
    content = [{key: value for key, value in part.items() if key != "logprobs"} for part in item["content"]]
    return item | {"content": content}


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return list(given) if isinstance(given, (list, tuple)) else [given]
