"""The conversation of a response: earlier stored responses, then its own input."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidParams, PreviousResponseNotFound, ResponseNotFound
from headrace.server.http.body import MAX_WORK, BodyWork
from headrace.server.http.json_parts import PART_CHARS, json_parts
from headrace.server.openai.responses.builder import ResponsesAnswer
from headrace.server.openai.responses.schemas import ResponsesRequest
from headrace.server.openai.responses.store import MAX_ENTRY_BYTES, ResponseStore, StoredItems, StoredResponse
from headrace.server.requests.prompts import are_many
from headrace.server.requests.service import Service
from headrace.text.templates.messages import MAX_MESSAGES, not_text

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ROLES = ("user", "assistant", "system", "developer")


def chat_messages(given: Any, instructions: str | None) -> list[dict[str, Any]]:
    """Messages for a chat template. The items of one turn of the model become one message.

    given: a string, or a list of messages, function calls, their outputs, and reasoning.

    Raises InvalidParams for malformed and unknown items.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, (list, tuple)) or not given:
        raise InvalidParams("input must be a string or a list of items")
    if len(given) > MAX_MESSAGES:
        raise InvalidParams(f"input holds {len(given)} items; at most {MAX_MESSAGES} are allowed")
    for number, item in enumerate(given):
        where = f"input[{number}]"
        if not isinstance(item, Mapping):
            raise InvalidParams(f"{where} must be an object")
        kind = item.get("type", "message")
        read = _ITEMS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise InvalidParams(f"{where} is of type {kind!r:.60}, which this server cannot use")
        read(item, where, messages)
    for message in messages:
        if "content" not in message and "tool_calls" not in message:
            message["content"] = ""  # only reasoning
    return messages


def _message(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidParams(f"{where}.role must be one of {', '.join(_ROLES)}")
    content = _text(item.get("content"), f"{where}.content")
    if role == "assistant":
        turn = _turn(messages, "content", "tool_calls")
        turn["content"] = content
    else:
        messages.append({"role": role, "content": content})


def _function_call(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    for name in ("call_id", "name", "arguments"):
        if not isinstance(item.get(name), str):
            raise InvalidParams(f"{where}.{name} must be a string")
    call = {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": item["name"], "arguments": item["arguments"]},
    }
    _turn(messages).setdefault("tool_calls", []).append(call)


def _function_call_output(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    if not isinstance(item.get("call_id"), str):
        raise InvalidParams(f"{where}.call_id must be a string")
    output = _text(item.get("output"), f"{where}.output")
    messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})


def _reasoning(item: Mapping[str, Any], where: str, messages: list[dict[str, Any]]) -> None:
    thoughts = _text(item.get("content") or item.get("summary") or [], f"{where}.content")
    if thoughts:
        _turn(messages, "reasoning_content", "content", "tool_calls")["reasoning_content"] = thoughts


_ITEMS = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def _turn(messages: list[dict[str, Any]], *unless: str) -> dict[str, Any]:
    """The assistant's last message; a new one if that has one of the fields `unless`."""
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and not any(name in last for name in unless):
        return last
    messages.append({"role": "assistant"})
    return messages[-1]


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise InvalidParams(f"{where} must be a string or a list of text parts")
    texts: list[str] = []
    for number, part in enumerate(content):
        if not isinstance(part, Mapping):
            raise InvalidParams(f"{where}[{number}] must be an object")
        kind = part.get("type")
        text = part.get("refusal") if kind == "refusal" else part.get("text")
        if kind != "refusal" and kind not in _TEXT_PARTS:
            raise not_text(f"{where}[{number}]", kind)
        if not isinstance(text, str):
            raise InvalidParams(f"{where}[{number}].text must be a string")
        texts.append(text)
    return "\n".join(texts)


_PART_BYTES = 2**14
"""Stored items are JSON lists of about this size, parsed one at a time. A conversation of at most this size is parsed
on the event loop."""


@dataclass(slots=True)
class Thread:
    """`store`: all stored responses. `before`: the conversation of some of them. `given`: the request's input. `kept`:
    store the response."""

    store: ResponseStore
    before: StoredItems
    given: Any
    kept: bool
    _written: StoredItems | None = None  # the conversation with the input; None if too large to be stored

    @classmethod
    def of(cls, service: Service, store: ResponseStore, body: ResponsesRequest) -> Thread:
        """Raises PreviousResponseNotFound, and InvalidParams if this server stores nothing."""
        previous = body.previous_response_id
        kept = store.enabled and body.store is not False
        if previous is None:
            return cls(store, StoredItems(), body.input, kept)
        if not store.enabled:
            raise InvalidParams(
                "previous_response_id is not supported: this server stores no responses; "
                "send the whole conversation as input"
            )
        try:
            return cls(store, store.get(service.caller.name, previous).items, body.input, kept)
        except ResponseNotFound as error:
            raise PreviousResponseNotFound(f"previous_response_id: {error}") from error

    @property
    def is_long(self) -> bool:
        """`items` and `write` may take long."""
        return self.before.size > _PART_BYTES or are_many(self.given)

    def items(self) -> Any:
        """Input items, or the text of a request without a previous response."""
        if not self.before.parts:
            return self.given
        return [item for part in self.before.parts for item in json.loads(part)] + _listed(self.given)

    def write(self) -> None:
        """Encode the input for `keep`."""
        if self.kept:
            self._written = _finished(_extended(self.before, _listed(self.given)))

    def keep(self, service: Service, response: ResponsesAnswer) -> Iterator[None]:
        """Store a complete response with its conversation. If they are too large, sets the response's `store` to False.

        Yields from time to time, so that the caller can serve others.
        """
        if self.kept and not (yield from self._put(service, response)):
            response["store"] = False

    def _put(self, service: Service, response: ResponsesAnswer) -> Generator[None, None, bool]:
        if self._written is None:
            return False
        items = yield from _extended(self._written, map(_without_logprobs, response["output"]))
        written = yield from _bounded(response)
        if items is None or written is None:
            return False
        if service.caller.name not in service.traffic.names:  # the key was removed in the meantime
            return False
        return self.store.put(service.caller.name, StoredResponse(response["id"], b"".join(written), items))


def _extended(before: StoredItems, items: Iterable[Any]) -> Generator[None, None, StoredItems | None]:
    """A conversation with more items; None if it is too large to be stored, or cannot be encoded.

    Parsing it costs no more than the body of one request may: see `http.body`.
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
    """A value as JSON; None if it has more than `most` bytes, or cannot be encoded."""
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
    """The return value of a generator."""
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
