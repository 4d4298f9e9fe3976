"""The conversation of a response: what its request says, behind what stored responses before it have said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidParams, PreviousResponseNotFound, ResponseNotFound
from headrace.server.json_parts import json_parts
from headrace.server.response_schemas import ResponsesRequest
from headrace.server.response_store import MAX_ENTRY_BYTES, StoredResponse
from headrace.server.service import Service


@dataclass(slots=True)
class Thread:
    """`items`: input items, or the one text of a request that goes on from nothing. `kept`: the response will be
    stored."""

    items: Any
    kept: bool
    _written: bytes | None = None  # the items as JSON, unless they are too large to be stored

    @classmethod
    def of(cls, service: Service, body: ResponsesRequest) -> Thread:
        """Raises PreviousResponseNotFound, and InvalidParams where this server stores nothing."""
        store, previous = service.responses, body.previous_response_id
        kept = store.enabled and body.store is not False
        if previous is None:
            return cls(body.input, kept)
        if not store.enabled:
            raise InvalidParams(
                "previous_response_id is not supported: this server stores no responses; "
                "send the whole conversation as input"
            )
        try:
            before = json.loads(store.get(service.caller.name, previous).items)
        except ResponseNotFound as error:
            raise PreviousResponseNotFound(f"previous_response_id: {error}") from error
        return cls(before + _listed(body.input), kept)

    def write(self) -> None:
        """Write the items down for `keep`. Thousands of them take long."""
        if self.kept:
            self._written = _bounded(_listed(self.items))

    def keep(self, service: Service, response: dict[str, Any]) -> None:
        """Store a complete response with its conversation; where it is too large, the response says that it is not."""
        if not self.kept:
            return
        if service.caller.name not in service.traffic.names:  # the key was removed while the answer grew
            response["store"] = False
            return
        said = [_without_logprobs(item) for item in response["output"]]
        written, items = _bounded(response), _joined(self._written, _bounded(said))
        if written is not None and items is not None:
            stored = StoredResponse(response["id"], written, items)
            if service.responses.put(service.caller.name, stored):
                return
        response["store"] = False


def _bounded(value: Any) -> bytes | None:
    """A value as JSON; None where that is too large to be stored, or cannot be written."""
    parts: list[bytes] = []
    size = 0
    try:
        for part in json_parts(value):
            parts.append(part)
            size += len(part)
            if size > MAX_ENTRY_BYTES:
                return None
    except (ValueError, RecursionError):
        return None
    return b"".join(parts)


def _joined(first: bytes | None, second: bytes | None) -> bytes | None:
    """Two lists as one; None where one of them is, or where it is too large to be stored."""
    if first is None or second is None or len(first) + len(second) > MAX_ENTRY_BYTES:
        return None
    between = b"," if len(first) > 2 and len(second) > 2 else b""
    return first[:-1] + between + second[1:]


def _without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    if "content" not in item:
        return item
    content = [{key: value for key, value in part.items() if key != "logprobs"} for part in item["content"]]
    return item | {"content": content}


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return list(given) if isinstance(given, (list, tuple)) else [given]
