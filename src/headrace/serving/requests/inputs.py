"""What users pass to LLM and AsyncLLM, as requests: prompts in every form, parameters, conversations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from headrace.core.params import SamplingParams, as_ids, as_int, shown
from headrace.core.types import NewRequest, Pooling
from headrace.core.vectors import shaped
from headrace.errors import InvalidParams, RequestError, TokenizerError
from headrace.serving.requests.outputs import EmbeddingOutput, EmbeddingRequestOutput
from headrace.text.bad_words import with_bad_word_ids
from headrace.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, object]
Message = Mapping[str, object]

SHORT_CHARS = 2000
"""Text up to this length is tokenized on the event loop: a thread would cost more than the work."""

_REQUEST_FIELDS = ("priority", "user", "cache_salt", "cache_pin_tokens", "cache_pin_ttl_s")
"""Fields of NewRequest that a prompt may set."""

_BYTES = (bytes, bytearray, memoryview)
"""To Python these are sequences of integers. As a prompt they are text that was not decoded, so they are refused."""


class Inputs:
    """Builds requests for one model. `tokenizer` is None for a model without one."""

    def __init__(self, model: str, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self.tokenizer = tokenizer

    def require_tokenizer(self) -> Tokenizer:
        """Raises TokenizerError for a model without one."""
        if self.tokenizer is None:
            raise TokenizerError(f"{self._model} has no tokenizer: give prompts as token ids")
        return self.tokenizer

    def request(
        self, name: str, prompt: Prompt, params: SamplingParams, pooling: Pooling | None = None
    ) -> tuple[NewRequest, str | None]:
        """A request, and the prompt's text if it came as text. Raises RequestError, or TokenizerError for text."""
        fields = dict(prompt) if isinstance(prompt, Mapping) else {}
        text: object = prompt if isinstance(prompt, str) else fields.pop("prompt", None)
        ids: object = fields.pop("prompt_token_ids", None) if isinstance(prompt, Mapping) else prompt
        if isinstance(prompt, Mapping) and text is not None and ids is not None:
            raise InvalidParams("a prompt must have prompt or prompt_token_ids, not both")
        extras = {field: fields.pop(field) for field in _REQUEST_FIELDS if field in fields}
        if fields:
            raise InvalidParams(f"a prompt has no field {next(iter(fields))!r:.80}")
        if isinstance(text, str):
            ids = self.require_tokenizer().encode(text)
        ids = _as_list(ids)
        if not isinstance(ids, Sequence) or isinstance(ids, (str, *_BYTES)):
            raise InvalidParams("a prompt must be text, a list of token ids, or a dict with one of the two")
        if params.bad_words:
            params = with_bad_word_ids(params, self.require_tokenizer())
        new = NewRequest(name, _token_ids(ids), params, pooling=pooling, **extras)  # type: ignore[arg-type]
        return new, text if isinstance(text, str) else None

    def chat(self, messages: Sequence[Message]) -> Prompt:
        """A conversation as a prompt. Raises TokenizerError without a chat template, RequestError for bad messages."""
        return {"prompt_token_ids": self.require_tokenizer().encode_chat(messages)}


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several. A flat list or array of integers is one prompt of token ids."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed = _as_list(prompts)
    if isinstance(listed, _BYTES) or not isinstance(listed, Iterable):
        raise InvalidParams(f"prompts must be text, token ids, or a list of prompts, got {shown(prompts)}")
    many = list(cast("Iterable[Prompt]", listed))
    if many and all(isinstance(part, int) or as_int(part) is not None for part in many):
        return [cast("list[int]", many)]
    return many


def as_params(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    """One SamplingParams for each of `count` prompts."""
    if isinstance(params, SamplingParams):
        return [params] * count
    each = list(params) if isinstance(params, Iterable) else [params]
    if not all(isinstance(one, SamplingParams) for one in each):
        raise InvalidParams("sampling_params must be one SamplingParams or a list of them")
    if len(each) != count:
        raise InvalidParams(f"{count} prompts need one SamplingParams or {count} of them, got {len(each)}")
    return each


def as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation or several."""
    if isinstance(messages, (str, *_BYTES)) or not isinstance(messages, Sequence):
        raise InvalidParams(
            f"messages must be a list of messages, or of conversations, got {shown(messages)}"
        )
    if not messages:
        raise RequestError("the conversation is empty: it must hold at least one message")
    if isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return list(cast("Sequence[Sequence[Message]]", messages))


def as_pooling(name: object) -> Pooling:
    """A Pooling that gives one vector, by its value."""
    for kind in (Pooling.MEAN, Pooling.LAST):
        if name in (kind, kind.value):
            return kind
    raise InvalidParams(f'pooling must be "mean" or "last", got {shown(name)}')


class Shape:
    """How users want embeddings: the first `dimensions` of `size` numbers, scaled to length 1 with `normalize`."""

    def __init__(self, size: int, dimensions: int | None, normalize: bool) -> None:
        kept = size if dimensions is None else as_int(dimensions)
        if kept is None or not 1 <= kept <= size:
            raise InvalidParams(
                f"dimensions must be a whole number between 1 and {size}, got {shown(dimensions)}"
            )
        if not isinstance(normalize, bool):
            raise InvalidParams(f"normalize must be true or false, got {shown(normalize)}")
        self._dimensions = None if dimensions is None else kept
        self._normalize = normalize

    def output(
        self, new: NewRequest, text: str | None, vector: Sequence[float], num_cached_tokens: int
    ) -> EmbeddingRequestOutput:
        output = EmbeddingOutput(shaped(vector, self._dimensions, self._normalize))
        return EmbeddingRequestOutput(new.request_id, output, text, new.prompt, num_cached_tokens)


def as_request_ids(ids: str | Iterable[str]) -> list[str]:
    """One request id or several."""
    each = [ids] if isinstance(ids, str) or not isinstance(ids, Iterable) else list(ids)
    for one in each:
        if not isinstance(one, str):
            raise InvalidParams(f"request_id must be text or a list of texts, got {shown(one)}")
    return each


def _token_ids(values: Sequence[object]) -> tuple[int, ...]:
    ids = as_ids(values)
    if not set(map(type, ids)) <= {int}:
        wrong = next(one for one in ids if as_int(one) is None)
        raise InvalidParams(f"each token id of a prompt must be a whole number, got {shown(wrong)}")
    return ids


def _as_list(value: object) -> object:
    """An array, of numpy or of torch, as a list of Python's numbers; everything else as it is."""
    listed = getattr(value, "tolist", None)
    return value if listed is None or isinstance(value, _BYTES) else listed()
