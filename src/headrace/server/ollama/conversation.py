"""Messages of Ollama's API as those of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.templates.messages import MAX_MESSAGES


def chat_messages(messages: Any) -> list[dict[str, Any]]:
    """The conversation for a chat template. Calls get ids where they have none, and results those of their calls.

    Raises InvalidParams for another shape, and for images.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidParams("messages must be a list of at least one message")
    if len(messages) > MAX_MESSAGES:
        raise InvalidParams(f"messages holds {len(messages)} messages; at most {MAX_MESSAGES} are allowed")
    chat: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # (id, name) of calls without a result
    made = 0
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise InvalidParams(f"{where} must be an object")
        content = message.get("content")
        if not isinstance(content, (str, type(None))):
            raise InvalidParams(f"{where}.content must be a string")
        if message.get("images"):
            raise InvalidParams(f"{where}.images: prompts are text")
        one: dict[str, Any] = {"role": message.get("role"), "content": content or ""}
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
            open_calls = [(call["id"], call["function"]["name"]) for call in calls]
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


def _result(message: Mapping[str, Any], open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    """The call that a result belongs to: by its id, else by its name, else the first that has no result yet."""
    name = message.get("tool_name") or message.get("name")
    given = message.get("tool_call_id")
    found = next((call for call in open_calls if call[0] == given), None)
    if found is None and not given:
        found = next((call for call in open_calls if name in (None, call[1])), None)
    if found is not None:
        open_calls.remove(found)
    result = {"tool_call_id": given or (found and found[0]), "name": name or (found and found[1])}
    return {key: value for key, value in result.items() if isinstance(value, str)}
