"""The body of a request to /v1/responses, each field with a bound; see `request_fields` for others."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator

from headrace.core.params import MAX_LOGPROBS, SamplingParams
from headrace.errors import InvalidParams
from headrace.server.http.strict import Strict
from headrace.server.openai.request_fields import RESPONSES
from headrace.server.openai.schemas import template_variables
from headrace.server.requests.fields import Length, SamplingFields
from headrace.server.requests.structured import text_grammar
from headrace.text.tools.request import Tool, ToolUse, checked_tool_use, checked_tools

MAX_METADATA = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512
MAX_INCLUDES = 32
MAX_WORD_CHARS = 64

HOSTED_TOOLS = frozenset(
    {
        "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "file_search",
        "code_interpreter", "image_generation", "mcp", "computer", "computer_use_preview", "local_shell", "shell",
        "apply_patch", "tool_search", "programmatic_tool_calling",
    }
)  # fmt: skip
"""Types of tools that run on OpenAI's servers, or need its models. They are ignored with a warning."""

LOGPROBS = "message.output_text.logprobs"


def _checked_metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_METADATA:
        raise ValueError(f"must be an object of at most {MAX_METADATA} entries")
    for key, text in value.items():
        if not isinstance(text, str) or len(text) > MAX_METADATA_VALUE_CHARS:
            raise ValueError(f"must hold text of at most {MAX_METADATA_VALUE_CHARS} characters")
        if len(key) > MAX_METADATA_KEY_CHARS:
            raise ValueError(f"must have keys of at most {MAX_METADATA_KEY_CHARS} characters")
    return value


def _is_not_stored(value: object) -> object:
    if value is not None:
        raise ValueError("is not supported: send the whole conversation as input, or previous_response_id")
    return value


def _is_foreground(value: object) -> object:
    if value not in (None, False):
        raise ValueError("is not supported: this server answers while the caller waits")
    return value


Word = Annotated[str, Field(max_length=MAX_WORD_CHARS)]
Stored = Annotated[Any, AfterValidator(_is_not_stored)]


class ReasoningOptions(Strict):
    effort: Word | None = None
    summary: Word | None = None


class TextOptions(Strict):
    format: Any = None
    verbosity: Word | None = None


class ResponsesRequest(SamplingFields):
    """Body of POST /v1/responses. `headrace.server.openai.responses.conversation` checks the input."""

    others: ClassVar = RESPONSES

    input: Any
    instructions: str | None = None
    max_output_tokens: Length | None = None
    tools: Any = None  # `headrace.text.tools` checks these two
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Annotated[list[Word], Field(max_length=MAX_INCLUDES)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    metadata: Annotated[dict[str, str] | None, PlainValidator(_checked_metadata)] = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    background: Annotated[Any, AfterValidator(_is_foreground)] = None
    previous_response_id: Annotated[str, Field(max_length=MAX_WORD_CHARS)] | None = None
    conversation: Stored = None
    prompt: Stored = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if self.n not in (None, 1):
            raise InvalidParams("n other than 1 is not supported by /v1/responses")

    def tool_use(self, strict: bool = True) -> ToolUse:
        """`strict`: the default for functions, true in OpenAI's API. Raises InvalidParams for malformed tools."""
        return checked_tool_use(
            self.tools, self.tool_choice, self.parallel_tool_calls, strict=strict, ignored=HOSTED_TOOLS
        )

    def functions(self, strict: bool) -> tuple[Tool, ...]:
        """The functions among the tools, even if tool_choice excludes them."""
        return checked_tools(self.tools, strict=strict, ignored=HOSTED_TOOLS)

    @property
    def hosted(self) -> list[str]:
        """Types of the ignored tools; call after `tool_use`."""
        return [tool["type"] for tool in self.tools or () if tool["type"] in HOSTED_TOOLS]

    @property
    def logprobs(self) -> bool:
        """The answer contains log-probabilities."""
        return LOGPROBS in (self.include or ()) or self.top_logprobs is not None

    @property
    def sampling(self) -> SamplingParams:
        """Raises InvalidParams for parameters that conflict."""
        params = self._sampling(self.max_output_tokens, (self.top_logprobs or 0) if self.logprobs else None)
        grammar = text_grammar(None if self.text is None else {"format": self.text.format})
        if grammar is None:
            return params
        if params.grammar is not None:
            raise InvalidParams("text.format and another grammar cannot both be followed")
        return replace(params, grammar=grammar)

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        effort = None if self.reasoning is None else self.reasoning.effort
        return template_variables(effort, self.chat_template_kwargs)
