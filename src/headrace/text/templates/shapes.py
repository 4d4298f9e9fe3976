"""What some templates expect of a conversation with tools beyond OpenAI's API, known by what they read.

| the template reads | models | what it gets |
|---|---|---|
| `xml_tools` | SmolLM 3 | the tools under this name |
| `message['tools']`, and no other tools | Phi-4-mini | tools as JSON in the system message |
| `tool_responses`, and no role `tool` | Gemma 4 | results in the message of their calls |
| `<|channel|>` | gpt-oss | a call a message, before its results; thoughts and content as one text |
| `single tool-calls` | Llama 3.1 to 3.3 | a call a message, before its results |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.text.tools.request import Tool

THINKING_VARIABLES = ("enable_thinking", "thinking")
"""Variables by which templates turn reasoning on: Qwen's, GLM's and Gemma's the first, DeepSeek's and Granite's the
second."""

_TOOLS_OF_MESSAGE = re.compile(
    r"message\s*(?:\.\s*tools\b|\[\s*['\"]tools['\"]\s*\])|['\"]tools['\"]\s+in\s+message"
)
_ROLE_TOOL = re.compile(r"[!=]=\s*['\"]tool['\"]|['\"]tool['\"]\s*[!=]=|\bin\s*[\[(][^\])]*['\"]tool['\"]")


def has_role_tool(template: str) -> bool:
    """Whether a chat template tells messages of tools from others."""
    return _ROLE_TOOL.search(template) is not None


def refuses_system(template: str) -> bool:
    """Whether a chat template refuses system messages: Gemma 1 and 2 say so, the first Mistral models have user and
    assistant alternate."""
    return "System role not supported" in template or ("alternate" in template and "system" not in template)


def tool_variables(template: str | None, described: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Further names for a template that the tools have there."""
    return (
        {"xml_tools": list(described)}
        if described and template is not None and "xml_tools" in template
        else {}
    )


def shaped(messages: list[Any], tools: Sequence[Tool], template: str) -> list[Any]:
    """The messages as the template expects them. Messages of a wrong shape are unchanged.

    Raises TypeError, ValueError and RecursionError for arguments that cannot be written as JSON.
    """
    if _TOOLS_OF_MESSAGE.search(template) and not re.search(
        r"\btools\b", _TOOLS_OF_MESSAGE.sub("", template)
    ):
        messages = _with_tools(messages, tools)
    if "tool_responses" in template and not has_role_tool(template):
        messages = _with_responses(messages)
    channels = "<|channel|>" in template
    if channels or "single tool-calls" in template:
        messages = _a_call_a_message(messages, channels)
    return messages


def _calls(message: Any) -> list[Any]:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    return list(calls) if isinstance(calls, (list, tuple)) else []


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _function(call: Any) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _with_tools(messages: list[Any], tools: Sequence[Tool]) -> list[Any]:
    if not tools:
        return messages
    described = json.dumps([tool.described["function"] for tool in tools], ensure_ascii=False)
    if messages and _role(messages[0]) == "system":
        return [{**messages[0], "tools": described}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": described}, *messages]


def _with_responses(messages: list[Any]) -> list[Any]:
    made: list[Any] = []
    for message in messages:
        before = made[-1] if made else None
        if _role(message) != "tool" or not _calls(before):
            made.append(message)
            continue
        assert isinstance(before, Mapping)
        names = {
            call.get("id"): _function(call).get("name")
            for call in _calls(before)
            if isinstance(call, Mapping)
        }
        result = message.get("content")
        response = {
            "name": message.get("name") or names.get(message.get("tool_call_id")) or "unknown",
            "response": _object(result) if isinstance(result, str) else result,
        }
        made[-1] = {**before, "tool_responses": [*before.get("tool_responses", ()), response]}
    return made


def _object(text: str) -> Any:
    """An object that a text holds in JSON, else the text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


def _a_call_a_message(messages: list[Any], one_text: bool) -> list[Any]:
    made: list[Any] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = _calls(message)
        if not calls:
            made.append(message)
            continue
        results = []
        while at < len(messages) and _role(messages[at]) == "tool":
            results.append(messages[at])
            at += 1
        message = _with_one_text(message) if one_text else message
        for number, call in enumerate(calls):
            last = number == len(calls) - 1
            identity = call.get("id") if isinstance(call, Mapping) else None
            mine = [one for one in results if last or (identity and one.get("tool_call_id") == identity)]
            results = [one for one in results if one not in mine]
            made.append(
                {**(message if not number else {"role": "assistant", "content": ""}), "tool_calls": [call]}
            )
            made += mine
    return made


def _with_one_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Thoughts and content beside a call as thoughts."""
    content = message.get("content")
    name = next((name for name in _THOUGHTS if isinstance(message.get(name), str) and message[name]), None)
    if name is None or not (isinstance(content, str) and content):
        return message
    rest = {key: value for key, value in message.items() if key not in _THOUGHTS}
    return {**rest, "content": "", name: f"{message[name]}\n{content}"}
