"""Requests of the Messages API, each field with a bound, and their `cache_control` marks.

A mark on a block covers everything before it: tools, then the system message, then the conversation. Sources:
https://docs.anthropic.com/en/api/messages, https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from headrace.core.grammar import Grammar
from headrace.core.params import MAX_SEED, MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, SamplingParams
from headrace.core.types import MAX_NAME_CHARS
from headrace.errors import InvalidParams
from headrace.server.anthropic.conversation import chat_tools
from headrace.server.http.strict import NoEffect, Other, Refused, Strict
from headrace.server.requests.fields import MAX_MODEL_NAME_CHARS, Length, WorkFields, checked_stop
from headrace.server.requests.structured import format_grammar
from headrace.text.templates.messages import MAX_MESSAGES
from headrace.text.templates.shapes import THINKING_VARIABLES
from headrace.text.tools.request import ToolUse, checked_tool_use

MAX_MARKS = 4
TTLS_S = {"5m": 300.0, "1h": 3600.0}
DEFAULT_TTL = "5m"


@dataclass(frozen=True, slots=True)
class CacheMark:
    """`messages`, `system`: the request up to the end of the marked block; no messages if the mark is on a tool or the
    system message. ttl_s: seconds."""

    messages: Sequence[Any]
    system: Any
    ttl_s: float


def cache_marks(messages: Any, system: Any, tools: Any, whole: Any) -> list[CacheMark]:
    """The marks of a request in the order of its prompt. `whole`: the request's own `cache_control`, which marks its
    last block.

    The rest of the request has been checked. Raises InvalidParams for a malformed mark, and for too many.
    """
    found: list[CacheMark] = []
    for number, tool in enumerate(tools or ()):
        ttl = _ttl(tool, f"tools[{number}]")
        if ttl is not None:
            found.append(CacheMark((), None, ttl))
    for at, block, where in _blocks(system, "system"):
        ttl = _ttl(block, where)
        if ttl is not None:
            found.append(CacheMark((), system[: at + 1], ttl))
    for number, message in enumerate(messages):
        for at, block, where in _blocks(message["content"], f"messages[{number}].content"):
            ttl = _ttl(block, where)
            if ttl is not None:
                cut = {"role": message["role"], "content": message["content"][: at + 1]}
                found.append(CacheMark([*messages[:number], cut], system, ttl))
    ttl = _ttl({"cache_control": whole}, "the request")
    if ttl is not None:
        found.append(CacheMark(messages, system, ttl))
    if len(found) > MAX_MARKS:
        raise InvalidParams(
            f"the request has {len(found)} marks of cache_control; at most {MAX_MARKS} are allowed"
        )
    return found


def _blocks(content: Any, where: str) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    if isinstance(content, (list, tuple)):
        for at, block in enumerate(content):
            yield at, block, f"{where}[{at}]"


def _ttl(block: Mapping[str, Any], where: str) -> float | None:
    """Seconds; None without a mark."""
    control = block.get("cache_control")
    if control is None:
        return None
    if not isinstance(control, Mapping) or control.get("type") != "ephemeral":
        raise InvalidParams(f'{where}.cache_control must be {{"type": "ephemeral"}}')
    ttl = control.get("ttl", DEFAULT_TTL)
    if not isinstance(ttl, str) or ttl not in TTLS_S:
        raise InvalidParams(f"{where}.cache_control.ttl must be one of {', '.join(TTLS_S)}")
    return TTLS_S[ttl]


_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_CHARS)]
_Stops = Annotated[list[_Stop], Field(max_length=MAX_STOP_STRINGS)]


def _checked_stops(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError("must be a list of strings")
    return checked_stop(value)


_MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"type": "string"}},
    },
}

OTHERS: dict[str, Other] = {
    "container": Refused("there are no containers"),
    "context_management": Refused("this server shortens no conversation by itself"),
    "inference_geo": NoEffect("there is one location"),
    "mcp_servers": Refused("this server calls no tools by itself"),
    "service_tier": NoEffect("there is one kind of service; see priority"),
    "speed": NoEffect("there is one speed"),
}
"""Anthropic's fields that do nothing here, or are refused."""


class Metadata(Strict):
    user_id: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


class Thinking(Strict):
    """`budget_tokens` is accepted, but not enforced: max_tokens bounds thinking and answer together."""

    others: ClassVar = {"display": NoEffect("thinking is shown as it is")}

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Length | None = None


class OutputConfig(Strict):
    """`effort` reaches the chat template as `reasoning_effort`."""

    format: Any = None
    effort: Annotated[str, Field(max_length=64)] | None = None


class CountTokensRequest(Strict):
    """Body of POST /v1/messages/count_tokens. `conversation` checks messages, system and tools."""

    others: ClassVar = OTHERS

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    messages: Annotated[Any, WithJsonSchema(_MESSAGES)]
    system: Any = None
    tools: Any = None
    tool_choice: Any = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def tool_use(self) -> ToolUse:
        """Raises InvalidParams for malformed tools."""
        tools, choice, parallel = chat_tools(self.tools, self.tool_choice)
        return checked_tool_use(tools, choice, parallel)

    @property
    def form(self) -> Grammar | None:
        """The grammar of the answer. Raises InvalidParams."""
        given = None if self.output_config is None else self.output_config.format
        if given is None:
            return None
        if not isinstance(given, dict) or given.get("type") != "json_schema":
            raise InvalidParams('output_config.format must be {"type": "json_schema", "schema": {…}}')
        named = {"name": "output", "schema": given.get("schema")}
        return format_grammar({"type": "json_schema", "json_schema": named}, "output_config.format")

    @property
    def thinks(self) -> bool:
        """The request enables thinking."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        given: dict[str, Any] = dict.fromkeys(THINKING_VARIABLES, self.thinks)
        if self.output_config is not None and self.output_config.effort is not None:
            given["reasoning_effort"] = self.output_config.effort
        return given | (self.chat_template_kwargs or {})


class MessagesRequest(CountTokensRequest, WorkFields):
    """Body of POST /v1/messages; `seed` and the fields of every request are extensions."""

    max_tokens: Length
    stop_sequences: Annotated[
        tuple[str, ...], PlainValidator(_checked_stops, json_schema_input_type=_Stops | None)
    ] = ()
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    metadata: Metadata | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None

    @property
    def user(self) -> str | None:
        return None if self.metadata is None else self.metadata.user_id

    @property
    def sampling(self) -> SamplingParams:
        """Raises InvalidParams for parameters that conflict."""
        given = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "seed")}
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            grammar=self.form,
            **{name: value for name, value in given.items() if value is not None},
        )
