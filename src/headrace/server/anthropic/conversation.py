"""Converts messages and tools of Anthropic's API to those of a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.templates.messages import MAX_MESSAGES, MAX_TOOLS, not_text

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERROR = "Error: "
"""Prefix of the result of a failed tool."""


def chat_messages(messages: Any, system: Any = None) -> list[dict[str, Any]]:
    """The conversation for a chat template. A turn with results of tools becomes a message a result, and one with what
    stands between them.

    Raises InvalidParams for another shape, and for blocks that are not text, call, result or thinking.
    """
    chat: list[dict[str, Any]] = []
    if system is not None:
        said = _text(system, "system")
        if said:
            chat.append({"role": "system", "content": said})
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidParams("messages must be a list of at least one message")
    if len(messages) > MAX_MESSAGES:
        raise InvalidParams(f"messages holds {len(messages)} messages; at most {MAX_MESSAGES} are allowed")
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise InvalidParams(f"{where} must be an object")
        role, content = message.get("role"), message.get("content")
        if role == "user":
            chat += _user(content, f"{where}.content")
        elif role == "assistant":
            chat.append(_assistant(content, f"{where}.content"))
        elif role == "system":  # in the middle of a conversation
            chat.append({"role": "system", "content": _text(content, f"{where}.content")})
        else:
            raise InvalidParams(f"{where}.role must be user or assistant")
    return chat


def chat_tools(tools: Any, choice: Any) -> tuple[Any, Any, bool]:
    """(tools, tool_choice, whether several may be called) in the form of OpenAI's API.

    Raises InvalidParams for another shape, and for tools that Anthropic's servers define.
    """
    known = None
    if tools is not None:
        if not isinstance(tools, (list, tuple)):
            raise InvalidParams("tools must be a list")
        if len(tools) > MAX_TOOLS:
            raise InvalidParams(f"tools holds {len(tools)} tools; at most {MAX_TOOLS} are allowed")
        known = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    if choice is None:
        return known, None, True
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    parallel = not (isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is True)
    if kind == "tool" and isinstance(choice.get("name"), str):
        return known, {"type": "function", "name": choice["name"]}, parallel
    if isinstance(kind, str) and kind in _CHOICES:
        return known, _CHOICES[kind], parallel
    raise InvalidParams(
        'tool_choice must be {"type": "auto" | "any" | "none"} or {"type": "tool", "name": …}'
    )


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise InvalidParams(f"{where} must be an object")
    if tool.get("type") not in (None, "custom"):
        raise InvalidParams(
            f"{where} is of type {tool['type']!r:.60}; tools must be your own, with an input_schema"
        )
    if not isinstance(tool.get("input_schema"), Mapping):
        raise InvalidParams(f"{where}.input_schema must be a JSON schema, which is an object")
    given = {"name": tool.get("name"), "description": tool.get("description"), "strict": tool.get("strict")}
    return {"type": "function", **given, "parameters": tool["input_schema"]}


def _user(content: Any, where: str) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    said: list[dict[str, Any]] = []
    for number, block in enumerate(_blocks(content, where)):
        at = f"{where}[{number}]"
        if block.get("type") == "tool_result":
            said.append(_result(block, at))
            continue
        part = {"type": "text", "text": _text_of(block, at)}
        if said and said[-1]["role"] == "user":
            said[-1]["content"].append(part)
        else:
            said.append({"role": "user", "content": [part]})
    return said or [{"role": "user", "content": ""}]


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    if not isinstance(block.get("tool_use_id"), str):
        raise InvalidParams(f"{where}.tool_use_id must be a string")
    given = block.get("content")
    text = "" if given is None else _text(given, f"{where}.content")
    if block.get("is_error") is True:
        text = _ERROR + text
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}


def _assistant(content: Any, where: str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(_blocks(content, where)):
        at = f"{where}[{number}]"
        match block.get("type"):
            case "tool_use":
                calls.append(_call(block, at))
            case "thinking":
                if not isinstance(block.get("thinking"), str):
                    raise InvalidParams(f"{at}.thinking must be a string")
                thoughts.append(block["thinking"])
            case "redacted_thinking":
                pass  # encrypted by another server
            case _:
                texts.append(_text_of(block, at))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in ("id", "name"):
        if not isinstance(block.get(name), str):
            raise InvalidParams(f"{where}.{name} must be a string")
    given = block.get("input")
    if not isinstance(given, Mapping):
        raise InvalidParams(f"{where}.input must be an object")
    try:
        arguments = json.dumps(given, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise InvalidParams(f"{where}.input is nested too deep") from error
    return {
        "id": block["id"],
        "type": "function",
        "function": {"name": block["name"], "arguments": arguments},
    }


def _blocks(content: Any, where: str) -> list[Mapping[str, Any]]:
    if not isinstance(content, (list, tuple)):
        raise InvalidParams(f"{where} must be a string or a list of content blocks")
    for number, block in enumerate(content):
        if not isinstance(block, Mapping):
            raise InvalidParams(f"{where}[{number}] must be an object")
    return list(content)


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text_of(block, f"{where}[{n}]") for n, block in enumerate(_blocks(content, where)))


def _text_of(block: Mapping[str, Any], where: str) -> str:
    if block.get("type") != "text":
        raise not_text(where, block.get("type"))
    if not isinstance(block.get("text"), str):
        raise InvalidParams(f"{where}.text must be a string")
    text: str = block["text"]
    return text
