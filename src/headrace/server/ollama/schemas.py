"""Requests of Ollama's API, each field with a bound.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema

from headrace.core.grammar import JSON_OBJECT, JSON_SCHEMA, Grammar
from headrace.core.params import (
    MAX_LOGPROBS,
    MAX_SEED,
    MAX_TOKENS_LIMIT,
    MIN_REPETITION_PENALTY,
    SamplingParams,
)
from headrace.errors import InvalidParams
from headrace.server.http.strict import EMPTY, NoEffect, Other, Refused, Strict
from headrace.server.requests.fields import (
    MAX_MODEL_NAME_CHARS,
    MAX_PROMPTS,
    MESSAGES,
    Penalty,
    SamplingFields,
    StopStrings,
    WorkFields,
)
from headrace.server.requests.structured import named_grammar
from headrace.server.requests.vectors import MAX_DIMENSIONS
from headrace.text.templates.shapes import THINKING_VARIABLES
from headrace.text.tools.request import ToolUse, checked_tool_use

MAX_KEEP_ALIVE_CHARS = 64
_LONG_S = 1e12

_SERVERS = NoEffect("the server's own options decide")
_IMAGES = Refused("prompts are text")
_MIROSTAT = "there is no mirostat"

OPTIONS: dict[str, Other] = {
    "f16_kv": _SERVERS,
    "logits_all": _SERVERS,
    "low_vram": _SERVERS,
    "main_gpu": _SERVERS,
    "mirostat": Refused(_MIROSTAT),
    "mirostat_eta": NoEffect(_MIROSTAT),
    "mirostat_tau": NoEffect(_MIROSTAT),
    "num_batch": _SERVERS,
    "num_gpu": _SERVERS,
    "num_gqa": _SERVERS,
    "num_keep": NoEffect("whole turns are left out of a conversation that is too long; system messages stay"),
    "num_thread": _SERVERS,
    "numa": _SERVERS,
    "penalize_newline": NoEffect("penalties treat all tokens alike"),
    "draft_num_predict": NoEffect("there is no draft model"),
    "repeat_last_n": Refused("penalties look at the whole text", (None, -1, 64)),
    "rope_frequency_base": _SERVERS,
    "rope_frequency_scale": _SERVERS,
    "tfs_z": Refused("use top_p or min_p", (None, 1, 1.0)),
    "typical_p": Refused("use top_p or min_p", (None, 1, 1.0)),
    "use_mlock": _SERVERS,
    "use_mmap": _SERVERS,
    "vocab_only": _SERVERS,
}
"""Ollama's options that do nothing here, or are refused."""

_DURATION = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+|[+-]?\d+(?:\.\d*)?")


def _checked_keep_alive(value: str) -> str:
    if not _DURATION.fullmatch(value):
        raise ValueError('must be a number of seconds, or a duration such as "5m"')
    return value


KeepAlive = (
    Annotated[str, Field(max_length=MAX_KEEP_ALIVE_CHARS), AfterValidator(_checked_keep_alive)]
    | Annotated[float, Field(ge=-_LONG_S, le=_LONG_S)]
)


def _whole(value: object) -> object:
    """Some writers of JSON write whole numbers as 3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_Whole = BeforeValidator(_whole)
_Count = Annotated[int, Field(ge=1, le=MAX_TOKENS_LIMIT), _Whole]


class Options(Strict):
    """`num_predict` below 1: up to the end of the context. `num_ctx` bounds prompt and answer below the model's own
    context; it never raises it. Top_k 0: all tokens."""

    others: ClassVar = OPTIONS

    num_predict: Annotated[int, Field(ge=-2, le=MAX_TOKENS_LIMIT), _Whole] | None = None
    num_ctx: _Count | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKENS_LIMIT), _Whole] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED), _Whole] | None = None
    stop: StopStrings = ()
    repeat_penalty: Annotated[float, Field(ge=MIN_REPETITION_PENALTY, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class ModelFields(WorkFields):
    """`keep_alive` is accepted: a served model stays in memory until the server ends."""

    options: Options | None = None
    keep_alive: KeepAlive | None = None

    @property
    def given(self) -> Options:
        return self.options or Options()

    @property
    def work_fields(self) -> dict[str, Any]:
        """The fields that requests of all APIs have, by name."""
        return {name: getattr(self, name) for name in WorkFields.model_fields if name != "model"}

    @property
    def unloads(self) -> bool:
        return self.keep_alive == 0 or (
            isinstance(self.keep_alive, str) and not re.search("[1-9]", self.keep_alive)
        )


_CHOSEN = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def _checked_think(value: object) -> object:
    if value is None or isinstance(value, bool) or value in get_args(Effort):
        return value
    raise ValueError(f"must be true, false or one of {', '.join(get_args(Effort))}")


Effort = Literal["low", "medium", "high", "max"]
Think = Annotated[
    bool | Effort | None, PlainValidator(_checked_think, json_schema_input_type=bool | Effort | None)
]


class GeneratingFields(ModelFields):
    """What chats and completions have in common."""

    stream: bool | None = None
    format: Any = None  # "json" or a JSON schema
    think: Think = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @property
    def streams(self) -> bool:
        """Answers are streamed unless the request says no."""
        return self.stream is not False

    @property
    def shows_thinking(self) -> bool:
        return self.think is not False

    @property
    def template_variables(self) -> dict[str, Any]:
        """What the chat template sees beside the conversation; a request that says nothing leaves the choice to it."""
        if self.think is None:
            return {}
        given: dict[str, Any] = dict.fromkeys(THINKING_VARIABLES, self.think is not False)
        return given | ({"reasoning_effort": self.think} if isinstance(self.think, str) else {})

    @property
    def work(self) -> SamplingFields:
        """What the engine is to know beside prompt and parameters. Options that are None here may come from the
        model's generation_config.json."""
        given = self.given
        return SamplingFields(
            **self.work_fields, temperature=given.temperature, top_p=given.top_p or None, top_k=given.top_k,
            min_p=given.min_p, repetition_penalty=given.repeat_penalty, presence_penalty=given.presence_penalty,
            frequency_penalty=given.frequency_penalty,
        )  # fmt: skip

    def sampling(self, room: int | None) -> SamplingParams:
        """`room`: tokens that the prompt leaves to the answer, None without a limit. Raises InvalidParams."""
        given, work = self.given, self.work
        asked = None if given.num_predict is None or given.num_predict < 1 else given.num_predict
        limits = [limit for limit in (asked, room) if limit is not None]
        chosen = {name: getattr(work, name) for name in _CHOSEN} | {"seed": given.seed}
        return SamplingParams(
            max_tokens=min(limits, default=None),
            stop=given.stop,
            grammar=_form(self.format),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            **{name: value for name, value in chosen.items() if value is not None},
        )

    def check(self) -> None:
        """Raises InvalidParams for fields that do not go together."""
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidParams("top_logprobs needs logprobs to be true")


def _form(value: Any) -> Grammar | None:
    """What the answer must look like. Raises InvalidParams."""
    if value in (None, ""):
        return None
    if value == "json":
        return Grammar(JSON_OBJECT)
    if not isinstance(value, dict):
        raise InvalidParams('format must be "json" or a JSON schema, an object')
    return named_grammar(JSON_SCHEMA, value, "format")


_MESSAGES = {name: value for name, value in MESSAGES.items() if name != "minItems"}


class OllamaChatRequest(GeneratingFields):
    """Body of POST /api/chat. Without messages it is answered at once, as a request to load the model."""

    messages: Annotated[Any, WithJsonSchema({"anyOf": [_MESSAGES, {"type": "null"}]})] = None
    tools: Any = None

    def check(self) -> None:
        super().check()
        if not isinstance(self.messages, (list, type(None))):
            raise InvalidParams("messages must be a list")

    @property
    def tool_use(self) -> ToolUse:
        """Raises InvalidParams for tools of a wrong shape."""
        return checked_tool_use(self.tools, None, None)


class OllamaGenerateRequest(GeneratingFields):
    """Body of POST /api/generate. Without a prompt it is answered at once, as a request to load the model."""

    others: ClassVar = {
        "context": Refused("send the conversation to /api/chat", EMPTY),
        "images": _IMAGES,
        "suffix": Refused("there is no infilling"),
        "template": Refused("the model's own chat template is used"),
    }

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None

    def check(self) -> None:
        super().check()
        if self.raw and self.system:
            raise InvalidParams("raw takes the prompt as it is: system cannot be given with it")


def _checked_inputs(value: object) -> list[str]:
    texts = ([value] if value else []) if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("must be a string or a list of strings")
    if len(texts) > MAX_PROMPTS:
        raise ValueError(f"holds {len(texts)} texts; at most {MAX_PROMPTS} are allowed")
    return texts


_Texts = Annotated[list[str], Field(max_length=MAX_PROMPTS)]


class OllamaEmbedRequest(ModelFields):
    """Body of POST /api/embed."""

    input: Annotated[list[str], PlainValidator(_checked_inputs, json_schema_input_type=str | _Texts)]
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_DIMENSIONS)] | None = None


class OllamaEmbeddingRequest(ModelFields):
    """Body of POST /api/embeddings, which /api/embed has replaced."""

    prompt: str


class OllamaShowRequest(Strict):
    """Body of POST /api/show; `name` is the old name of `model`."""

    others: ClassVar = {
        "options": NoEffect("nothing is loaded"),
        "system": NoEffect("nothing is loaded"),
        "template": NoEffect("nothing is loaded"),
    }

    model: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    name: Annotated[str, Field(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    verbose: bool | None = None


def served_name(asked: str | None, names: Sequence[str]) -> str | None:
    """The name to look up: Ollama's clients add `:latest` to names without a tag, and Ollama ignores case."""
    if asked is None or asked in names:
        return asked
    bare = asked.removesuffix(":latest").casefold()
    if not bare:
        return None
    return next((name for name in names if name.casefold() == bare), asked)
