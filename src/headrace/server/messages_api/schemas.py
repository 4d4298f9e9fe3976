"""What requests of the Messages API may hold, each field with a bound.

Source: https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from headrace.core.grammar import Grammar
from headrace.core.params import MAX_SEED, MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, SamplingParams
from headrace.core.types import MAX_NAME_CHARS, MAX_TIMEOUT_S
from headrace.errors import InvalidParams
from headrace.server.messages_api.conversation import chat_tools
from headrace.server.request_fields import NoEffect, Other, Refused, Strict
from headrace.server.schemas import MAX_MODEL_NAME_CHARS, Length, Priority, checked_stop
from headrace.server.structured import format_grammar
from headrace.text.messages import MAX_MESSAGES
from headrace.text.tools import ToolUse, checked_tool_use

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
    "inference_geo": NoEffect("there is one place"),
    "mcp_servers": Refused("this server calls no tools by itself"),
    "service_tier": NoEffect("there is one kind of service; see priority"),
    "speed": NoEffect("there is one speed"),
}
"""Anthropic's fields that do nothing here, or are refused."""


class Metadata(Strict):
    user_id: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


class Thinking(Strict):
    """`budget_tokens` is accepted, but not held to: max_tokens bounds thinking and answer together."""

    others: ClassVar = {"display": NoEffect("thinking is shown as it is")}

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Length | None = None


class OutputConfig(Strict):
    """`effort` reaches the chat template as `reasoning_effort`."""

    format: Any = None
    effort: Annotated[str, Field(max_length=64)] | None = None


class CountTokensRequest(Strict):
    """Body of POST /v1/messages/count_tokens. `messages_api.conversation` checks messages, system and tools."""

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
        """Raises InvalidParams for tools of a wrong shape."""
        tools, choice, parallel = chat_tools(self.tools, self.tool_choice)
        return checked_tool_use(tools, choice, parallel)

    @property
    def form(self) -> Grammar | None:
        """What the answer must look like. Raises InvalidParams."""
        given = None if self.output_config is None else self.output_config.format
        if given is None:
            return None
        if not isinstance(given, dict) or given.get("type") != "json_schema":
            raise InvalidParams('output_config.format must be {"type": "json_schema", "schema": {…}}')
        named = {"name": "output", "schema": given.get("schema")}
        return format_grammar({"type": "json_schema", "json_schema": named}, "output_config.format")

    @property
    def thinks(self) -> bool:
        """Thinking is asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template sees beside the conversation."""
        given: dict[str, Any] = {"enable_thinking": self.thinks}
        if self.output_config is not None and self.output_config.effort is not None:
            given["reasoning_effort"] = self.output_config.effort
        return given | (self.chat_template_kwargs or {})


class MessagesRequest(CountTokensRequest):
    """Body of POST /v1/messages. The last fields are vLLM's and our own."""

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
    priority: Priority | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    queue_timeout: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S)] | None = None
    timeout: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S)] | None = None

    explain: ClassVar[bool | None] = None

    @property
    def user(self) -> str | None:
        return None if self.metadata is None else self.metadata.user_id

    @property
    def sampling(self) -> SamplingParams:
        """Raises InvalidParams where the parameters do not fit together."""
        given = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "seed")}
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            grammar=self.form,
            **{name: value for name, value in given.items() if value is not None},
        )
