"""The offline API: a model in this process."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.engine import EngineStats
from headrace.core.params import SamplingParams, as_ids, as_int
from headrace.core.types import NewRequest, Pooling
from headrace.core.vectors import floats, shaped
from headrace.errors import HeadraceError, InvalidParams, RequestError, TokenizerError
from headrace.serving.client.inprocess import Call, InProcessClient
from headrace.serving.requests.outputs import (
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    RequestMetrics,
    RequestOutput,
)
from headrace.text.bad_words import with_bad_word_ids
from headrace.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tqdm import tqdm

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "RequestMetrics",
    "RequestOutput",
]

Prompt = str | Sequence[int] | Mapping[str, object]
Message = Mapping[str, object]


_REQUEST_FIELDS = ("priority", "user", "cache_salt", "cache_pin_tokens", "cache_pin_ttl_s")
"""Fields of NewRequest that a prompt may hold."""

_BYTES = (bytes, bytearray, memoryview)
"""Sequences of whole numbers for Python; as a prompt they are text that was not decoded, and refused."""


class LLM:
    """A model in this process.

        llm = LLM("tale")
        for out in llm.generate(["Once upon a time"], SamplingParams(max_tokens=64, temperature=0.0)):
            print(out.outputs[0].text, out.metrics)

    `model` is a bundled name, a Hugging Face folder, a hub id or `shape:NAME` (random weights, no tokenizer). The
    options are those of `headrace.config.EngineConfig`; what is left open is chosen for this machine, and
    `headrace inspect` says why. Threads may share one LLM: each step computes the requests of all of them. Ctrl-C
    aborts the call that it interrupts, and the LLM stays usable.

    Raises ModelError where the model cannot be loaded and ConfigError where an option is wrong.
    """

    def __init__(self, model: str, *, show_progress: bool = True, **options: object) -> None:
        config = EngineConfig.from_kwargs(model=model, **options)
        bar = _LoadingBar(f"loading {model}") if show_progress and sys.stderr.isatty() else None
        try:
            self.parts = assemble(config, bar)
        finally:
            if bar is not None:
                bar.close()
        self._client = InProcessClient(self.parts.engine, self.parts.executor, self.parts.tokenizer)
        self._names = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises TokenizerError for a `shape:` model, which has none."""
        if self.parts.tokenizer is None:
            raise TokenizerError(f"{self.parts.source.name} has no tokenizer: give prompts as token ids")
        return self.parts.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What holds where a call gives no parameters: what the model's generation_config.json recommends."""
        return SamplingParams(**self.parts.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts, all in one continuous batch; results come in the order of the prompts.

        A prompt is text, a list or array of token ids, or a dict {"prompt": text} or {"prompt_token_ids": ids}, which
        may also hold "priority", "user", "cache_salt", "cache_pin_tokens" and "cache_pin_ttl_s" (see
        `core.types.NewRequest`). `sampling_params` is one for all or one a prompt; None takes what the model's
        generation_config.json recommends.

        Raises RequestError for a prompt or parameter that cannot be served, before anything is run.
        """
        many = _as_prompts(prompts)
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        each = _as_params(given, len(many))
        requests = [self._request(prompt, one) for prompt, one in zip(many, each, strict=True)]
        call = self._run(requests, use_tqdm)
        return [call.results[new.request_id] for new, _ in requests]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer a conversation, or several, with the model's chat template. A message is {"role", "content"}.

        Raises TokenizerError if the model has no chat template, RequestError as `generate` does.
        """
        conversations = _as_conversations(messages)
        prompts = [{"prompt_token_ids": self.tokenizer.encode_chat(one)} for one in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Complete one prompt and yield the growing result after every step that adds to it.

        Closing the iterator, or dropping it, aborts the request. Streams may be interleaved with each other and with
        `generate`.
        """
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        request = self._request(prompt, given)
        call = Call([request], growing=True)
        try:
            while call.left:
                self._client.advance(call)
                if call.partial is not None:
                    yield call.partial
            yield call.results[request[0].request_id]
        finally:
            call.closed = True  # and nothing else: the garbage collector may run this at any line of a step

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Answer one conversation and yield the growing result, as `stream` does."""
        yield from self.stream({"prompt_token_ids": self.tokenizer.encode_chat(messages)}, sampling_params)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling: str = "last",
        dimensions: int | None = None,
        normalize: bool = True,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """Prompts as vectors of the model's hidden size, in the order of the prompts.

        `pooling` takes the hidden state behind the final norm of the "last" token, or the "mean" of all of them.
        `dimensions` keeps the first ones only; `normalize` scales what is kept to length 1.

        Raises RequestError for a prompt or option that cannot be served, before anything is run, and HeadraceError
        where the model fails on a prompt.
        """
        kind = _as_pooling(pooling)
        size = self.parts.spec.hidden_size
        if dimensions is not None and not 1 <= dimensions <= size:
            raise InvalidParams(f"dimensions must be between 1 and {size}, got {dimensions!r:.80}")
        params = SamplingParams(max_tokens=0)
        requests = [self._request(prompt, params, kind) for prompt in _as_prompts(prompts)]
        call = self._run(requests, use_tqdm, "embedding")
        outputs = []
        for new, text in requests:
            ended = call.pooled[new.request_id]
            if ended.pooled is None:
                raise HeadraceError(f"the engine failed on this prompt: {ended.error}")
            vector = shaped(floats(ended.pooled), dimensions, normalize)
            cached = 0 if ended.stats is None else ended.stats.num_cached
            outputs.append(
                EmbeddingRequestOutput(new.request_id, EmbeddingOutput(vector), text, new.prompt, cached)
            )
        return outputs

    def stats(self) -> EngineStats:
        """Counts since the model was loaded."""
        return self._client.stats()

    def _request(
        self, prompt: Prompt, params: SamplingParams, pooling: Pooling | None = None
    ) -> tuple[NewRequest, str | None]:
        """A request, and its text if it came as text."""
        fields = dict(prompt) if isinstance(prompt, Mapping) else {}
        text: object = prompt if isinstance(prompt, str) else fields.pop("prompt", None)
        ids: object = fields.pop("prompt_token_ids", None) if isinstance(prompt, Mapping) else prompt
        if isinstance(prompt, Mapping) and text is not None and ids is not None:
            raise InvalidParams("a prompt must have prompt or prompt_token_ids, not both")
        extras = {name: fields.pop(name) for name in _REQUEST_FIELDS if name in fields}
        if fields:
            raise InvalidParams(f"a prompt has no field {next(iter(fields))!r:.80}")
        if isinstance(text, str):
            ids = self.tokenizer.encode(text)
        ids = _as_list(ids)
        if not isinstance(ids, Sequence) or isinstance(ids, (str, *_BYTES)):
            raise InvalidParams("a prompt must be text, a list of token ids, or a dict with one of the two")
        if params.bad_words:
            params = with_bad_word_ids(params, self.tokenizer)
        name = f"request-{next(self._names)}"
        new = NewRequest(name, as_ids(ids), params, pooling=pooling, **extras)  # type: ignore[arg-type]
        if params.grammar is not None:
            self.parts.grammars.get(params.grammar)
        return new, text if isinstance(text, str) else None

    def _run(
        self, requests: Sequence[tuple[NewRequest, str | None]], use_tqdm: bool, what: str = "generating"
    ) -> Call:
        """Run requests to their end. What a signal handler raises (Ctrl-C) comes between two steps and aborts them."""
        bar = _GeneratingBar(len(requests), what) if use_tqdm and sys.stderr.isatty() else None
        call = Call(requests)
        try:
            with self._client.interrupts as interrupts:
                try:
                    while call.left:
                        self._client.advance(call)
                        if bar is not None:
                            bar.show(call.num_tokens, len(requests) - len(call.left))
                        interrupts.check()
                    return call
                finally:
                    call.closed = True
                    self._client.settle()
        finally:
            if bar is not None:
                bar.close()


class _LoadingBar:
    """A progress bar that appears when loading takes longer than most."""

    _PATIENCE_S = 0.5

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = time.monotonic()
        self._bar: tqdm[object] | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None and time.monotonic() - self._started > self._PATIENCE_S:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=self._title, unit="tensor", leave=False)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _GeneratingBar:
    """Requests that have ended, and the speed so far."""

    def __init__(self, requests: int, what: str) -> None:
        from tqdm import tqdm

        self._bar: tqdm[object] = tqdm(total=requests, unit="req", desc=what)
        self._started = time.monotonic()

    def show(self, tokens: int, ended: int) -> None:
        """So many tokens and ended requests there are now."""
        speed = tokens / max(1e-9, time.monotonic() - self._started)
        self._bar.set_postfix_str(f"{speed:.0f} tok/s", refresh=False)
        self._bar.update(ended - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def _as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several. A flat list or array of whole numbers is one prompt of token ids."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, _BYTES) or not isinstance(prompts, Iterable):
        raise InvalidParams(f"prompts must be text, token ids, or a list of prompts, got {prompts!r:.80}")
    many = list(cast("Iterable[Prompt]", _as_list(prompts)))
    if many and all(isinstance(part, int) or as_int(part) is not None for part in many):
        return [cast("list[int]", many)]
    return many


def _as_list(value: object) -> object:
    """An array, of numpy or of torch, as a list of Python's numbers; everything else as it is."""
    listed = getattr(value, "tolist", None)
    return value if listed is None or isinstance(value, _BYTES) else listed()


def _as_params(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    each = list(params) if isinstance(params, Iterable) else [params]
    if not all(isinstance(one, SamplingParams) for one in each):
        raise InvalidParams("sampling_params must be one SamplingParams or a list of them")
    if len(each) != count:
        raise InvalidParams(f"{count} prompts need one SamplingParams or {count} of them, got {len(each)}")
    return each


def _as_pooling(name: object) -> Pooling:
    for kind in Pooling:
        if name in (kind, kind.value):
            return kind
    raise InvalidParams(f'pooling must be "mean" or "last", got {name!r:.80}')


def _as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    if not messages:
        raise RequestError("the conversation is empty: it must hold at least one message")
    if isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]
    return list(cast("Sequence[Sequence[Message]]", messages))
