"""Conversations with tools for chat templates that do not support all of them.

| the template writes | models | what it gets |
|---|---|---|
| tools, calls and results | most | the conversation, in the shape that it expects (`shapes`) |
| tools and results | LFM 2, SmolLM 3, Granite 3 | calls as text, in the format of the template |
| calls and results | DeepSeek V3, R1 | the same, and tools described in the system message |
| neither | Gemma, Phi-3 | tools and calls as text in the form that Hermes and Qwen models use, results from the user |
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.templates.shapes import has_role_tool, refuses_system, shaped
from headrace.text.tools.formats import GENERIC, ToolCallFormat, detect_tool_calls
from headrace.text.tools.request import Tool
from headrace.text.tools.written import Arguments, example, written_calls

INSTRUCTIONS = "You may call these tools:\n<tools>\n{tools}\n</tools>\nTo call one, answer: {example}"

_INSTEAD_OF_CONTENT = ("tool_calls", "reasoning_content", "reasoning", "thinking")


def knows_tools(template: str | None) -> bool:
    """Whether a chat template shows tools to the model."""
    return template is not None and "tools" in template


def adapted(messages: Any, tools: Sequence[Tool], template: str | None) -> Any:
    """The messages for a template: `developer` becomes `system` if the template has no such role, and what it does not
    write of tools, calls and results becomes text. `ChatTemplate.render` checks the shape of messages.

    Raises InvalidParams for arguments that cannot be written as JSON.
    """
    if not isinstance(messages, (list, tuple)) or template is None:
        return messages
    messages = [_with_content(message) for message in messages]
    if "developer" not in template:
        messages = [_as_system(message) for message in messages]
    knows = knows_tools(template)
    how = detect_tool_calls(template) or GENERIC
    try:
        if not knows or "tool_calls" not in template:
            messages = [_with_written_calls(message, how) for message in messages]
        if knows:
            return shaped(messages, tools, template)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParams("the arguments of a tool call are not JSON, or nested too deep") from error
    if how is GENERIC or not has_role_tool(template):
        messages = _with_results_of_user(messages)
    return _with_instructions(messages, tools, how, refuses_system(template)) if tools else messages


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


def _with_written_calls(message: Any, how: ToolCallFormat) -> Any:
    """Calls as text after the content, which must be text, too."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, (list, tuple)) or message.get("role") != "assistant":
        return message
    written = written_calls([_call(call) for call in calls], how) if calls else ""
    texts = [text for text in (_text(message.get("content")), written) if text]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": ("\n" if how is GENERIC else "").join(texts)}


def _call(call: Any) -> tuple[str, Arguments]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return "", {}
    name, arguments = function.get("name"), function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except ValueError:
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    elif not isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return name if isinstance(name, str) else "", arguments


def _with_results_of_user(messages: Sequence[Any]) -> list[Any]:
    made: list[Any] = []
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") != "tool":
            made.append(message)
            continue
        result = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
        last = made[-1] if made else None
        if isinstance(last, _Result):  # several results are one turn of the user
            last["content"] += "\n" + result
        else:
            made.append(_Result(role="user", content=result))
    return made


class _Result(dict[str, Any]):
    """A message of results of tools only."""


def _text(content: Any) -> str:
    """The text of a message's content, or of its parts; "" if it is neither."""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def _with_instructions(
    messages: list[Any], tools: Sequence[Tool], how: ToolCallFormat, of_user: bool
) -> list[Any]:
    """The tools in the system message; of_user: before what the user says first, as there is no system message."""
    described = "\n".join(json.dumps(tool.described, ensure_ascii=False) for tool in tools)
    text = INSTRUCTIONS.format(tools=described, example=example(how))
    role = "user" if of_user else "system"
    first = messages[0] if messages else None
    if isinstance(first, Mapping) and first.get("role") == role:
        texts = (text, _text(first.get("content"))) if of_user else (_text(first.get("content")), text)
        return [{**first, "content": "\n\n".join(texts)}, *messages[1:]]
    return [{"role": role, "content": text}, *messages]
