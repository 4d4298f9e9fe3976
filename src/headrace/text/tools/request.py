"""The tools of a request, and whether one must be called."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.templates.messages import MAX_TOOLS, PlainCopier
from headrace.text.tools.call_json import MAX_NAME_CHARS, is_name

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


MAX_DESCRIPTION_CHARS = 65_536
MAX_WEIGHT = 2**20
"""Most characters of all tools of a request, see `PlainCopier`: more would delay other requests."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is a JSON schema, None for a function that takes anything.

    strict: its calls follow the schema even if the model need not call.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def described(self) -> dict[str, Any]:
        """As in chat templates and OpenAI's chat API."""
        given = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {key: it for key, it in given.items() if it is not None}}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`tools` are those that the model may call. `forced`: it must call one of them. `parallel`: it may call several.

    Without tools, replies are not searched for calls.
    """

    tools: tuple[Tool, ...] = ()
    forced: bool = False
    parallel: bool = True

    @property
    def schemas(self) -> dict[str, Mapping[str, Any] | None]:
        """The schemas of the tools' arguments by the tools' names."""
        return {tool.name: tool.parameters for tool in self.tools}

    @property
    def strict(self) -> bool:
        """Whether the model need not call, but its calls must follow a schema."""
        return not self.forced and any(tool.strict for tool in self.tools)


NO_TOOLS = ToolUse()


def checked_tool_use(
    tools: Any,
    choice: Any,
    parallel: bool | None = None,
    *,
    strict: bool = False,
    ignored: Collection[str] = (),
) -> ToolUse:
    """The fields `tools`, `tool_choice` and `parallel_tool_calls`, in the form of OpenAI's chat API or of its
    responses API, which leaves out the level of `function`. For `strict` and `ignored` see `checked_tools`.

    Raises InvalidParams for another shape, for names that are used twice, and for a choice without a tool.
    """
    known = checked_tools(tools, strict=strict, ignored=ignored)
    chosen = checked_tool_choice(choice)
    if not known and (chosen.mode == "required" or chosen.names is not None):
        raise InvalidParams("tool_choice asks for a tool, but there is no function in tools")
    if chosen.mode == "none":
        return NO_TOOLS
    available = frozenset(tool.name for tool in known)
    for name in chosen.names or ():
        if name not in available:
            raise InvalidParams(f"tool_choice names {name[:80]!r}, which is none of the tools")
    if chosen.names is not None:
        known = tuple(tool for tool in known if tool.name in chosen.names)
    return ToolUse(known, chosen.mode == "required", parallel is not False and not chosen.named)


def checked_tools(tools: Any, *, strict: bool = False, ignored: Collection[str] = ()) -> tuple[Tool, ...]:
    """The functions among the tools of a request. `strict`: the default of their field. `ignored`: types of
    tools that are left out. Raises InvalidParams as `checked_tool_use` does."""
    if tools is None:
        return ()
    if not isinstance(tools, (list, tuple)):
        raise InvalidParams("tools must be a list")
    if len(tools) > MAX_TOOLS:
        raise InvalidParams(f"tools holds {len(tools)} tools; at most {MAX_TOOLS} are allowed")
    copier = PlainCopier(MAX_WEIGHT)
    known: dict[str, Tool] = {}
    for number, entry in enumerate(tools):
        kind = entry.get("type") if isinstance(entry, Mapping) else None
        if isinstance(kind, str) and kind in ignored:
            continue
        tool = _checked_tool(entry, f"tools[{number}]", copier, strict)
        if tool.name in known:
            raise InvalidParams(f"tools[{number}] has the name of an earlier tool, {tool.name[:80]!r}")
        known[tool.name] = tool
    return tuple(known.values())


def _checked_tool(entry: Any, where: str, copier: PlainCopier, default_strict: bool) -> Tool:
    if not isinstance(entry, Mapping):
        raise InvalidParams(f"{where} must be an object")
    if entry.get("type") != "function":
        raise InvalidParams(f"{where}.type must be 'function'; this server runs no tools of its own")
    function = entry.get("function", entry)
    if not isinstance(function, Mapping):
        raise InvalidParams(f"{where}.function must be an object")
    name, description, parameters, strict = (
        function.get(key) for key in ("name", "description", "parameters", "strict")
    )
    if not isinstance(name, str) or not is_name(name):
        raise InvalidParams(
            f"{where}: a name must be 1 to {MAX_NAME_CHARS} letters, digits and characters of _ . - : /"
        )
    if description is not None and not (
        isinstance(description, str) and len(description) <= MAX_DESCRIPTION_CHARS
    ):
        raise InvalidParams(
            f"{where}: description must be text of at most {MAX_DESCRIPTION_CHARS} characters"
        )
    copier.copy(description, f"{where}.description")
    if parameters is not None:
        if not isinstance(parameters, Mapping):
            raise InvalidParams(f"{where}: parameters must be a JSON schema, which is an object")
        parameters = copier.copy(parameters, f"{where}.parameters")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidParams(f"{where}: strict must be true or false")
    return Tool(name, description, parameters, default_strict if strict is None else strict)
