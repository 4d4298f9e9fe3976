"""Messages of Ollama's API as those of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.templates.messages import MAX_MESSAGES, not_text

_TEXTS = ("content", "thinking", "tool_name", "name", "tool_call_id")


def count_calls(messages: Any) -> int:
    """Calls of all messages, times the results that have to find theirs. The shape has not been checked."""
    if not isinstance(messages, (list, tuple)):
        return 0
    calls = [each.get("tool_calls") for each in messages if isinstance(each, Mapping)]
    return len(calls) * sum(len(some) for some in calls if isinstance(some, (list, tuple)))


def chat_messages(messages: Any) -> list[dict[str, Any]]:
    """The conversation for a chat template. Calls get ids where they have none, and results those of their calls.

    Raises InvalidParams for another shape, and for images.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidParams("messages must be a list of at least one message")
    if len(messages) > MAX_MESSAGES:
        raise InvalidParams(f"messages holds {len(messages)} messages; at most {MAX_MESSAGES} are allowed")
    chat: list[dict[str, Any]] = []
    open_calls: dict[str, str] = {}  # names of the calls without a result, by id
    made = 0
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise InvalidParams(f"{where} must be an object")
        for name in _TEXTS:
            if not isinstance(message.get(name), (str, type(None))):
                raise InvalidParams(f"{where}.{name} must be a string")
        if message.get("images"):
            raise not_text(f"{where}.images", "image")
        one: dict[str, Any] = {"role": message.get("role"), "content": message.get("content") or ""}
        if message.get("thinking"):
            one["reasoning_content"] = message["thinking"]
        if message.get("role") == "tool":
            one |= _result(message, open_calls)
        if message.get("tool_calls"):
            calls = [_call(call, f"{where}.tool_calls") for call in _list(message["tool_calls"], where)]
            for call in calls:
                if call["id"] is None:
                    call["id"] = f"call{made:05d}"
                    made += 1
            open_calls = {call["id"]: call["function"]["name"] for call in calls}
            one["tool_calls"] = calls
        chat.append(one)
    return chat


def continues(chat: list[dict[str, Any]]) -> bool:
    """The answer goes on with the last message, which is the assistant's own."""
    return chat[-1]["role"] == "assistant" and "tool_calls" not in chat[-1]


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise InvalidParams(f"{where}.tool_calls must be a list")
    return list(value)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidParams(f'{where} must hold objects {{"function": {{"name": …, "arguments": {{…}}}}}}')
    arguments = function.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        raise InvalidParams(f"{where}.function.arguments must be an object")
    given = call.get("id")
    return {
        "id": given if isinstance(given, str) and given else None,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _result(message: Mapping[str, Any], open_calls: dict[str, str]) -> dict[str, Any]:
    """The call that a result belongs to: by its id, else the first open one of its name, else the first open one."""
    name = message.get("tool_name") or message.get("name")
    found: str | None = message.get("tool_call_id")
    if not found:
        found = next((id for id, called in open_calls.items() if name in (None, called)), None)
    called = None if found is None else open_calls.pop(found, None)
    result = {"tool_call_id": found, "name": name or called}
    return {key: value for key, value in result.items() if value}
