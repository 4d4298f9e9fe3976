"""The shape of a chat request: checked, and copied to plain data that a template may see.

A template sees only str, int, float, bool, None, list and dict, of exactly these types and copied: it cannot reach
methods of other objects or change the caller's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.templates.wire import Reads

MAX_MESSAGES = 16_384
"""Most messages of one request."""

MAX_TOOLS = 1024
"""Most tools of one request."""

MAX_NESTING = 48
"""Deepest nesting of the values of a message."""

ITEM_WEIGHT = 8
"""Characters that a value counts for besides its text, for the time that it takes."""

_MEDIA = {"image": "an image", "audio": "audio", "video": "a video"}
_REASONING = ("reasoning_content", "thinking", "reasoning")


class PlainCopier:
    """Copies values to plain data, of at most `weight` characters in all."""

    def __init__(self, weight: int) -> None:
        self._weight = weight
        self._left = weight

    def copy(self, value: Any, where: str, levels: int = MAX_NESTING) -> Any:
        """A plain copy; `where` names the value in errors. Raises InvalidParams."""
        self._left -= ITEM_WEIGHT + (len(value) if isinstance(value, str) else 0)
        if self._left < 0:
            raise InvalidParams(
                f"the chat is too large: its characters, and {ITEM_WEIGHT} for every value, exceed {self._weight}."
            )
        if value is None or type(value) in (str, int, float, bool):
            return value
        if not levels:
            raise InvalidParams(f"{where} is nested deeper than {MAX_NESTING} levels.")
        if isinstance(value, Mapping):
            return {self._key(key, where): self.copy(item, where, levels - 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.copy(item, where, levels - 1) for item in value]
        # Subclasses, such as enums, become the bare value without their methods.
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        raise InvalidParams(f"{where} holds a {type(value).__name__}, which is not JSON data.")

    def _key(self, key: Any, where: str) -> str:
        if not isinstance(key, str):
            raise InvalidParams(f"{where} holds a key that is not a string.")
        self._left -= len(key)
        return str.__str__(key)


def checked_messages(messages: Any, copier: PlainCopier, reads: Reads) -> list[dict[str, Any]]:
    """Check the messages of a chat and copy them.

    messages: a list of dicts with `role` (any string; templates check it) and `content`: a string, a list of
        {"type": "text", "text": …} parts, or None beside tool calls or reasoning.
    reads: what the template reads. Unless it reads parts, they become one string, their texts joined with newlines.
        Arguments of tool calls that are strings of JSON, as in OpenAI's API, become objects, unless it reads text.

    As in transformers, fields that are None are left out, and reasoning has each of its names.

    Raises InvalidParams for any other shape.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidParams("messages must be a list of messages.")
    if not messages:
        raise InvalidParams("messages must hold at least one message.")
    if len(messages) > MAX_MESSAGES:
        raise InvalidParams(f"messages holds {len(messages)} messages; at most {MAX_MESSAGES} are allowed.")
    return [_checked_message(each, f"messages[{i}]", copier, reads) for i, each in enumerate(messages)]


def checked_tools(tools: Any, copier: PlainCopier, reads: Reads) -> list[dict[str, Any]] | None:
    """Check and copy tool descriptions (dicts, usually JSON schemas); None and an empty list mean no tools.

    reads: what the template reads. Functions without a description get an empty one if it needs one.
    """
    if tools is None:
        return None
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidParams("tools must be a list of objects.")
    if len(tools) > MAX_TOOLS:
        raise InvalidParams(f"tools holds {len(tools)} tools; at most {MAX_TOOLS} are allowed.")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidParams(f"tools[{index}] must be an object.")
    copies = [copier.copy(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    for function in (copy.get("function") for copy in copies if Reads.DESCRIPTIONS in reads):
        if isinstance(function, dict) and function.get("description") is None:
            function["description"] = ""
    return copies or None


def _checked_message(message: Any, where: str, copier: PlainCopier, reads: Reads) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidParams(f"{where} must be an object with role and content.")
    if not isinstance(message.get("role"), str):
        raise InvalidParams(f"{where}.role must be a string.")
    plain = {key: value for key, value in copier.copy(message, where).items() if value is not None}
    calls = plain.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise InvalidParams(f"{where}.tool_calls must be a list of objects.")
    content = plain.get("content")
    if content is None:
        if not (calls or plain.get("function_call") or any(plain.get(name) for name in _REASONING)):
            raise InvalidParams(f"{where}.content is missing.")
    elif isinstance(content, list):
        texts = [_text_of_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
        if Reads.PARTS not in reads:
            plain["content"] = "\n".join(texts)
    elif not isinstance(content, str):
        raise InvalidParams(f"{where}.content must be a string or a list of text parts.")
    for call in calls or ():
        if Reads.ARGUMENTS_AS_TEXT in reads:
            _write_arguments(call)
        else:
            _parse_arguments(call)
    reasoning = next((plain[name] for name in _REASONING if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def not_text(where: str, kind: Any) -> InvalidParams:
    """The refusal of a part of a message that is of this type."""
    media = next((name for word, name in _MEDIA.items() if isinstance(kind, str) and word in kind), None)
    if media is None:
        return InvalidParams(f"{where} is of type {kind!r:.40}; only text parts are supported.")
    return InvalidParams(
        f"{where} is {media}, of type {kind!r:.40}; of a model only its text part runs here: send messages of text."
    )


def _text_of_part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidParams(f"{where} must be an object with a type.")
    if part["type"] != "text":
        raise not_text(where, part["type"])
    if not isinstance(part.get("text"), str):
        raise InvalidParams(f"{where}.text must be a string.")
    text: str = part["text"]
    return text


def _write_arguments(call: dict[str, Any]) -> None:
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments", {}), dict):
        function["arguments"] = json.dumps(function.get("arguments", {}), ensure_ascii=False)


def _parse_arguments(call: dict[str, Any]) -> None:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return
    try:
        parsed = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return  # a model may have written something else; the template gets the text
    if isinstance(parsed, dict):
        # Checked again, because the string may contain deeper nesting than the request.
        try:
            function["arguments"] = PlainCopier(ITEM_WEIGHT * (len(function["arguments"]) + 2)).copy(
                parsed, "arguments"
            )
        except InvalidParams:
            return
