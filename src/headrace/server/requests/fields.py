"""Fields that the requests of several APIs have, each with a bound; see `http.strict` for all others.

Types are strict: "1" is not a number and 1 is not a boolean. Null means the default. Long lists of mixed content are
checked by hand: pydantic would list an error for each of a million elements.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from headrace.core.params import (
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_TOKEN_LIST,
    MAX_TOKENS_LIMIT,
    MIN_REPETITION_PENALTY,
    SamplingParams,
)
from headrace.core.types import MAX_NAME_CHARS, MAX_PRIORITY, MAX_TIMEOUT_S, NO_USER
from headrace.errors import InvalidParams
from headrace.server.access.key_file import priority_number
from headrace.server.http.strict import NoEffect, Strict
from headrace.server.requests.structured import GUIDED, grammar_of
from headrace.text.templates.messages import MAX_MESSAGES

MAX_MODEL_NAME_CHARS = 1024
MAX_PROMPTS = 1024
MAX_PROMPT_TOKENS = 2**24

Prompt = str | list[int]


def checked_prompts(value: object) -> list[Prompt]:
    """One list entry a prompt. Raises ValueError unless it is a string, a list of them, token ids, or lists of them."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a string, a list of strings, a list of token ids, or a list of such lists")
    if type(value[0]) is int:
        return [_token_ids(value)]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"holds {len(value)} prompts; at most {MAX_PROMPTS} are allowed")
    if all(isinstance(prompt, str) for prompt in value):
        return value
    return [_token_ids(prompt) for prompt in value]


def _token_ids(value: object) -> list[int]:
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise ValueError("must not mix strings, token ids and lists")
    if len(value) > MAX_PROMPT_TOKENS:
        raise ValueError(f"has {len(value)} token ids; at most {MAX_PROMPT_TOKENS} are allowed")
    if value and not (min(value) >= 0 and max(value) <= MAX_TOKENS_LIMIT):
        raise ValueError(f"must hold token ids from 0 to {MAX_TOKENS_LIMIT}")
    return value


def checked_stop(value: object) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"must be a string or a list of at most {MAX_STOP_STRINGS} strings")
    if not all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_STRING_CHARS for stop in stops):
        raise ValueError(f"must hold strings of 1 to {MAX_STOP_STRING_CHARS} characters")
    return tuple(stops)


_Id = Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT, json_schema_extra={"format": "token-id"})]
_Ids = Annotated[list[_Id], Field(min_length=1, max_length=MAX_PROMPT_TOKENS)]
_Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
_Rows = Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
Prompts = Annotated[
    list[Prompt], PlainValidator(checked_prompts, json_schema_input_type=str | _Texts | _Ids | _Rows)
]
Token = Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT, json_schema_extra={"format": "token-id"})]
TokenList = Annotated[list[Token], Field(max_length=MAX_TOKEN_LIST, fail_fast=True)]
_Number = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Priority = Annotated[
    _Number,
    BeforeValidator(
        priority_number, json_schema_input_type=_Number | Literal["urgent", "normal", "background"]
    ),
]
User = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
Length = Annotated[int, Field(ge=1, le=MAX_TOKENS_LIMIT)]
BadWord = Annotated[str, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


_BIAS: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "maxProperties": MAX_TOKEN_LIST,
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        },
        {"type": "null"},
    ]
}
_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_CHARS)]
_Stops = Annotated[list[_Stop], Field(max_length=MAX_STOP_STRINGS)]
StopStrings = Annotated[
    tuple[str, ...], PlainValidator(checked_stop, json_schema_input_type=_Stop | _Stops | None)
]


class StreamOptions(Strict):
    others: ClassVar = {"include_obfuscation": NoEffect("events are not padded")}

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class WorkFields(Strict):
    """Fields of every request to the engine. Timeouts in seconds: until the request is scheduled, and until its end."""

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    priority: Priority | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    queue_timeout: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S)] | None = None
    timeout: Annotated[float, Field(ge=0, le=MAX_TIMEOUT_S)] | None = None

    @property
    def end_user(self) -> str:
        """The end user, by the `user` field."""
        return getattr(self, "user", None) or NO_USER


class SamplingFields(WorkFields):
    """Fields of completions, chats and responses."""

    user: User | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    stop: StopStrings = ()
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[Any, WithJsonSchema(_BIAS)] = None  # checked by SamplingParams

    # As in vLLM.
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS_LIMIT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS_LIMIT)] | None = None
    stop_token_ids: TokenList | None = None
    allowed_token_ids: TokenList | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None

    # The form of the output: OpenAI's field, then vLLM's, checked by `headrace.server.requests.structured`.
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    explain: bool | None = None  # an extension: see `openai.choices.usage`

    @property
    def streamed_usage(self) -> bool:
        """The stream ends with a chunk that counts tokens."""
        return bool(self.explain) or bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Every other chunk counts the tokens so far."""
        return self.streamed_usage and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )

    def check(self) -> None:
        """Raises InvalidParams for fields that conflict."""
        if self.stream_options is not None and not self.stream:
            raise InvalidParams("stream_options is allowed with stream only")

    def _sampling(self, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        given = {name: getattr(self, name) for name in _SAMPLING_NAMES}
        guided = {name: getattr(self, name) for name in GUIDED}
        return SamplingParams(
            max_tokens=max_tokens,
            logprobs=logprobs,
            grammar=grammar_of(self.response_format, self.structured_outputs, guided),
            **{name: value for name, value in given.items() if value is not None},
        )


_SAMPLING_NAMES = (
    "n", "temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "top_k",
    "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "allowed_token_ids", "bad_words", "ignore_eos",
    "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip


class TruncationFields(Strict):
    """vLLM's fields to shorten prompts."""

    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=MAX_TOKENS_LIMIT)] | None = None
    truncation_side: Literal["left", "right"] | None = None


_TEXT_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
MESSAGES: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string"},
            "content": {
                "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}, {"type": "null"}]
            },
        },
    },
}
"""As checked by `headrace.text.templates.messages`; the model's chat template may require more."""
