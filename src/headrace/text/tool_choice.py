"""The field `tool_choice`: whether a tool is called, and which ones come into question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.messages import MAX_TOOLS

_MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`mode` is "none", "auto" or "required". `names` are the only tools that may be called; None for all of them.
    `named`: the request names the one function that must be called, once."""

    mode: str = "auto"
    names: tuple[str, ...] | None = None
    named: bool = False

    @property
    def described(self) -> str | dict[str, Any]:
        """As OpenAI's responses API writes it."""
        if self.names is None:
            return self.mode
        tools = [{"type": "function", "name": name} for name in self.names]
        return tools[0] if self.named else {"type": "allowed_tools", "mode": self.mode, "tools": tools}


def checked_tool_choice(choice: Any) -> ToolChoice:
    """The choice, in the form of OpenAI's chat API or of its responses API, which leaves out a level of nesting.

    Raises InvalidParams for any other form.
    """
    if choice is None:
        return ToolChoice()
    if isinstance(choice, str) and choice in _MODES:
        return ToolChoice(choice)
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function":
        name = _name(choice)
        if name is not None:
            return ToolChoice("required", (name,), named=True)
    elif kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        mode, tools = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, Mapping) else (0, 0)
        if mode in ("auto", "required") and isinstance(tools, (list, tuple)) and 0 < len(tools) <= MAX_TOOLS:
            names = [_name(tool) for tool in tools]
            known = tuple(name for name in names if name is not None)
            if len(known) == len(names):
                return ToolChoice(mode, known)
    raise InvalidParams(
        "tool_choice must be 'none', 'auto', 'required', "
        '{"type": "function", "function": {"name": …}} or '
        f'{{"type": "allowed_tools", "allowed_tools": {{"mode": …, "tools": […]}}}} with 1 to {MAX_TOOLS} functions'
    )


def _name(function: Any) -> str | None:
    inner = function.get("function", function) if isinstance(function, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None
