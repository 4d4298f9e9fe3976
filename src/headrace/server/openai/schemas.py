"""Bodies of completions and chats: OpenAI's fields and vLLM's extras; see `request_fields` for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from headrace.core.params import (
    MAX_LOGPROBS,
    MAX_N,
    MAX_TOKENS_LIMIT,
    SamplingParams,
)
from headrace.errors import InvalidParams
from headrace.server.openai.request_fields import CHAT, COMPLETION
from headrace.server.requests.fields import MESSAGES, Length, Prompts, SamplingFields, TruncationFields
from headrace.text.templates.shapes import THINKING_VARIABLES
from headrace.text.tools.request import ToolUse, checked_tool_use

DEFAULT_COMPLETION_TOKENS = 16
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class PromptFields(TruncationFields, SamplingFields):
    """Fields of completions and chats: vLLM's fields about the prompt."""

    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool | None = None

    def check(self) -> None:
        super().check()
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidParams("prompt_logprobs is not available in streams")


class CompletionRequest(PromptFields):
    """Body of POST /v1/completions."""

    others: ClassVar = COMPLETION

    prompt: Prompts
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    def check(self) -> None:
        super().check()
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidParams("best_of other than n is not supported by this server: all n are returned")
        if self.max_tokens == 0 and not self.echo:
            raise InvalidParams("max_tokens 0 is allowed with echo only: there would be nothing to answer")

    @property
    def sampling(self) -> SamplingParams:
        """Raises InvalidParams for parameters that conflict."""
        length = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        if self.max_tokens is None and self.min_tokens is not None:
            length = max(length, self.min_tokens)
        params = self._sampling(length, self.logprobs)
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return replace(params, prompt_logprobs=max((k for k in asked if k is not None), default=None))


def template_variables(effort: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The variables of a chat template; `reasoning_effort` and THINKING_VARIABLES set the reasoning effort."""
    variables = dict(given or {})
    if effort is not None:
        for name in THINKING_VARIABLES:
            variables.setdefault(name, effort != "none")
        variables["reasoning_effort"] = effort
    return variables


class ChatRequest(PromptFields):
    """Body of POST /v1/chat/completions. `headrace.text.templates.messages` checks the messages."""

    others: ClassVar = CHAT

    messages: Annotated[Any, WithJsonSchema(MESSAGES)]
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Effort | None = None
    tools: Any = None  # `headrace.text.tools` checks these two
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None

    @property
    def tool_use(self) -> ToolUse:
        """Raises InvalidParams for malformed tools."""
        return checked_tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def check(self) -> None:
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidParams("top_logprobs needs logprobs to be true")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidParams("continue_final_message and add_generation_prompt cannot both be true")

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return template_variables(self.reasoning_effort, self.chat_template_kwargs)

    @property
    def length(self) -> int | None:
        """Maximum number of output tokens; None for the rest of the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def sampling(self) -> SamplingParams:
        """Raises InvalidParams for parameters that conflict."""
        params = self._sampling(self.length, (self.top_logprobs or 0) if self.logprobs else None)
        return replace(params, prompt_logprobs=self.prompt_logprobs)
