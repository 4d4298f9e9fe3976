"""The input of /v1/responses as the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.messages import MAX_MESSAGES

_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_ROLES = ("user", "assistant", "system", "developer")


def chat_messages(given: Any, instructions: str | None) -> list[dict[str, Any]]:
    """Messages for a chat template. What the model said in one turn, in several items, becomes one message.

    given: a string, or a list of messages, function calls, their outputs, and reasoning.

    Raises InvalidParams for items of another shape or type.
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
            message["content"] = ""  # reasoning that led to nothing
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
    """The message that the assistant is saying; a new one if it has said one of `unless` already."""
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
            raise InvalidParams(f"{where}[{number}] is of type {kind!r:.40}; only text is supported")
        if not isinstance(text, str):
            raise InvalidParams(f"{where}[{number}].text must be a string")
        texts.append(text)
    return "\n".join(texts)
