"""Conversations with tools for chat templates that do not support them.

A template that does gets the conversation unchanged. For others, the tools are described in the system message, and
calls and their results become text in the form that Hermes and Qwen models use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.templates.shapes import shaped
from headrace.text.tools.request import Tool

INSTRUCTIONS = (
    "You may call these tools:\n<tools>\n{tools}\n</tools>\n"
    'To call one, answer: <tool_call>{{"name": NAME, "arguments": {{ARGUMENTS}}}}</tool_call>'
)

_INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "thinking")


def knows_tools(template: str | None) -> bool:
    """Whether a chat template shows tools to the model."""
    return template is not None and "tools" in template


def adapted(messages: Any, tools: Sequence[Tool], template: str | None) -> Any:
    """The messages for a template: `developer` becomes `system` if the template has no such role, and tools become
    text if it does not support them, or take the shape that it expects (`shapes`). Messages of a wrong shape are
    unchanged; `ChatTemplate.render` checks them.

    Raises InvalidParams for arguments that cannot be written as JSON.
    """
    if not isinstance(messages, (list, tuple)) or template is None:
        return messages
    messages = [_with_content(message) for message in messages]
    if "developer" not in template:
        messages = [_as_system(message) for message in messages]
    written: list[Any] = []
    try:
        if knows_tools(template):
            return shaped(messages, tools, template)
        for message in messages:
            _write_out(message, written)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParams("the arguments of a tool call are not JSON, or nested too deep") from error
    return _with_instructions(written, tools) if tools else written


def _with_content(message: Any) -> Any:
    """With calls or reasoning, missing content becomes empty content: templates join it to other text unchecked."""
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return message
    if message.get("content") is None and any(message.get(name) for name in _INSTEAD_OF_CONTENT):
        return {**message, "content": ""}
    return message


def _as_system(message: Any) -> Any:
    if isinstance(message, Mapping) and message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def _write_out(message: Any, written: list[Any]) -> None:
    role = message.get("role") if isinstance(message, Mapping) else None
    if role == "tool":
        result = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
        last = written[-1] if written else None
        if isinstance(last, _Result):  # several results are one turn of the user
            last["content"] += "\n" + result
        else:
            written.append(_Result(role="user", content=result))
    elif role == "assistant" and isinstance(message.get("tool_calls"), (list, tuple)):
        calls = [_call(call) for call in message["tool_calls"]]
        texts = [text for text in (_text(message.get("content")), *calls) if text]
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        written.append({**rest, "content": "\n".join(texts)})
    else:
        written.append(message)


class _Result(dict[str, Any]):
    """A message of results of tools only."""


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return ""
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    name = json.dumps(function.get("name"), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {written or "{}"}}}\n</tool_call>'


def _text(content: Any) -> str:
    """The text of a message's content, or of its parts; "" if it is neither."""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def _with_instructions(messages: list[Any], tools: Sequence[Tool]) -> list[Any]:
    described = "\n".join(json.dumps(tool.described, ensure_ascii=False) for tool in tools)
    text = INSTRUCTIONS.format(tools=described)
    first = messages[0] if messages else None
    if isinstance(first, Mapping) and first.get("role") == "system":
        return [{**first, "content": f"{_text(first.get('content'))}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
