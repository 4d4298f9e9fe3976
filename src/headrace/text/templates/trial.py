"""A trial of a model's chat template, on a few conversations before its first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.errors import RequestError, TokenizerError
from headrace.text.templates.chat import ChatTemplate
from headrace.text.templates.renderer import TemplateStopped


def tried(source: str, variables: Mapping[str, str]) -> ChatTemplate:
    """The template, after it has rendered `CONVERSATIONS`.

    Raises TokenizerError for one that cannot be compiled, or that exceeds a limit, which no published one does.
    Rejecting conversations, or failing on them, is no reason. Raises Overloaded as ChatTemplate does.
    """
    template = ChatTemplate(source, variables)
    for messages, tools in CONVERSATIONS:
        try:
            template.render(messages, tools=tools)
        except TemplateStopped as error:
            raise TokenizerError(f"the chat template was refused in a trial: {error.reason}.") from error
        except RequestError:
            pass
    return template


def _talk(*contents: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]


_SYSTEM = {"role": "system", "content": "Be brief."}
_TOOL = {
    "type": "function",
    "function": {
        "name": "speed",
        "description": "Speed of a wheel.",
        "parameters": {"type": "object", "properties": {"unit": {"type": "string"}}, "required": ["unit"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "speed", "arguments": {"unit": "rpm"}}}
_WITH_CALL = [
    _SYSTEM,
    *_talk("How fast?"),
    {"role": "assistant", "content": "", "reasoning_content": "Measure.", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "speed", "content": '{"speed": 7}'},
]

CONVERSATIONS: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    (_talk("Hello"), None),
    ([_SYSTEM, *_talk("Hello", "Hi.", "How are you?")], None),
    (_talk("Hello"), [_TOOL]),
    (_WITH_CALL, [_TOOL]),
    ([_SYSTEM, *_talk(*["word " * 200] * 63)], None),
)
"""Messages and tools."""
