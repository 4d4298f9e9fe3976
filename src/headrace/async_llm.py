"""The API for event loops: a model in a process of its own, which is restarted if it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from headrace.config import EngineConfig, EngineOptions, shows_options
from headrace.core.engine import EngineStats
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Pooling
from headrace.errors import EngineDead, HeadraceError, InvalidParams, RequestError, TokenizerError
from headrace.serving.client.base import GRACE_S, AsyncClient
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.serving.client.process import MAX_IN_FLIGHT, ProcessClient
from headrace.serving.client.source import arrivals
from headrace.serving.client.supervisor import Supervisor
from headrace.serving.client.totals import PolledTotals
from headrace.serving.engine.state import EngineState, ModelFacts
from headrace.serving.engine.watchdog import DEFAULT_TIMEOUT_S, Watchdog
from headrace.serving.metrics import MetricSample, engine_samples
from headrace.serving.requests.generation import Generation, embed
from headrace.serving.requests.inputs import (
    SHORT_CHARS,
    Inputs,
    Message,
    Prompt,
    Shape,
    as_pooling,
    as_request_ids,
)
from headrace.serving.requests.output_processor import GrowingResult
from headrace.serving.requests.outputs import EmbeddingRequestOutput, RequestOutput
from headrace.text.templates.turns import Turns
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_source import open_tokenizer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """`max_in_flight`: completions that may run or wait; more raise Overloaded. `timeout_s`: silence after which an
    engine process is killed and restarted, see `serving.engine.watchdog`; 0 never does."""

    max_in_flight: int = MAX_IN_FLIGHT
    timeout_s: float = DEFAULT_TIMEOUT_S
    command: Sequence[str] = ENGINE_COMMAND


class Call:
    """A request that is being prepared. `aborted`: the caller does not want it any more."""

    def __init__(self) -> None:
        self.aborted = False


class Preparing:
    """Requests that the client does not know yet, by id: the engine starts, or their prompts are tokenized."""

    def __init__(self) -> None:
        self._calls: dict[str | None, list[Call]] = {}

    @contextlib.contextmanager
    def call(self, request_id: str | None) -> Iterator[Call]:
        """While it is open, `abort` finds the call."""
        call = Call()
        key = request_id if isinstance(request_id, str) else None  # what is not text is refused later
        calls = self._calls.setdefault(key, [])
        calls.append(call)
        try:
            yield call
        finally:
            calls.remove(call)
            if not calls:
                del self._calls[key]

    def abort(self, request_id: str) -> None:
        for call in self._calls.get(request_id, ()):
            call.aborted = True


class AsyncLLM:
    """A model in a process of its own, for one event loop.

        async with AsyncLLM("tale") as engine:
            params = SamplingParams(max_tokens=64, output_kind="delta")
            async for output in engine.generate("Once upon a time", params, "request-1"):
                print(output.outputs[0].text, end="")

    `model` and the options are those of `LLM`. The process starts with `async with`, `start`, or the first request, and
    ends with `close`. If it ends by itself, running requests raise EngineDead at once, and it is started again; until
    the model is loaded, requests raise EngineDead with the seconds to wait in `retry_after_s`. If an AsyncLLM is
    dropped without `close`, its process ends, and a ResourceWarning says so.

    Raises ConfigError from the constructor if an option is wrong. A RuntimeError says that an event loop other than the
    first one calls.
    """

    @shows_options
    def __init__(self, model: str, **options: Unpack[EngineOptions]) -> None:
        self._init(EngineConfig.from_kwargs(model=model, **options), ProcessOptions())

    @classmethod
    def from_config(cls, config: EngineConfig, options: ProcessOptions) -> AsyncLLM:
        """As the constructor, with options for the process."""
        self = cls.__new__(cls)
        self._init(config, options)
        return self

    def _init(self, config: EngineConfig, options: ProcessOptions) -> None:
        self._config, self._options = config, options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None
        self._client: AsyncClient | None = None
        self._totals: PolledTotals | None = None
        self._finalizer: weakref.finalize[[Supervisor, str], AsyncLLM] | None = None
        self._closed = False
        self._chats = Turns()
        self._preparing = Preparing()
        self.inputs = Inputs(config.model, None)
        """Builds requests; its `tokenizer` is None for a model without one, and before the start."""

    # ---- Start and end ----

    async def start(self) -> Self:
        """Start the process and wait until the model is loaded; returns at once if it is.

        Cancelling a caller that waits does not stop the start, as others may wait; `close` does. Raises ConfigError,
        ModelError and EngineDead.
        """
        self._check_loop()
        if self._client is None:
            if self._starting is None:
                self._starting = asyncio.create_task(self._start(), name="engine-start")
            await asyncio.shield(self._starting)
        return self

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("this AsyncLLM belongs to another event loop: make one for each loop")
        self._loop = loop
        if self._closed:
            raise EngineDead("this AsyncLLM is closed")

    async def _start(self) -> None:
        try:
            client = await Supervisor.start(partial(_start_process, self._config, self._options))
            try:
                folder = client.facts.tokenizer_folder
                tokenizer = None if folder is None else await asyncio.to_thread(load_tokenizer, folder)
            except BaseException:
                await client.aclose(0.0)
                raise
        except asyncio.CancelledError:
            if not self._closed:
                raise
            raise EngineDead("the engine was closed while it started") from None
        finally:
            self._starting = None  # after a failure the next call tries again
        self._open(client, tokenizer)
        # The client must not refer to this object, which would then never be dropped.
        self._finalizer = weakref.finalize(self, _dropped, client, self._config.model)
        self._finalizer.atexit = False  # the process ends with this one

    def _open(self, client: AsyncClient, tokenizer: Tokenizer | None) -> None:
        self.inputs = Inputs(client.facts.model, tokenizer)
        self._client = client
        self._totals = PolledTotals(client)

    def drain(self) -> None:
        """Do not start another process: running requests may finish, then `close` follows."""
        self.client.drain()

    async def close(self, grace_s: float = GRACE_S) -> None:
        """End the process, which gets `grace_s` seconds; running requests raise EngineDead. Closing twice does nothing.

        A start that is under way is ended. A closed AsyncLLM cannot be started again.
        """
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        if self._client is not None:
            await self._client.aclose(grace_s)
        if self._finalizer is not None:
            self._finalizer.detach()
        if self.inputs.tokenizer is not None:
            self.inputs.tokenizer.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close(0.0)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- The engine ----

    @property
    def client(self) -> AsyncClient:
        """The engine's client, for callers that submit requests of their own. Raises RuntimeError before the start."""
        if self._client is None:
            raise RuntimeError("the engine has not been started: await start(), or use async with")
        return self._client

    @property
    def facts(self) -> ModelFacts:
        """What the engine says of its model, such as `max_model_len` in tokens. As `client` before the start."""
        return self.client.facts

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises TokenizerError for a model without one; as `client` before the start."""
        _ = self.client
        return self.inputs.require_tokenizer()

    @property
    def state(self) -> EngineState:
        """Whether the engine runs, is being started again, or has ended."""
        return EngineState.STARTING if self._client is None else self._client.state

    async def stats(self) -> EngineStats:
        """Requests that run and wait, and counts since the process was started. Raises EngineDead without an engine."""
        await self.start()
        return await self.client.stats()

    @property
    def totals(self) -> PolledTotals:
        """Counts over all processes since the start, as of the last `poll` of them. As `client` before the start."""
        _ = self.client
        assert self._totals is not None
        return self._totals

    async def get_metrics(self) -> list[MetricSample]:
        """The engine's metrics, as /metrics of `headrace serve` has them: requests, KV cache, tokens, prefix cache.

        Counters do not fall if the process is restarted, but what it counted since the last call may be lost then.
        """
        await self.start()
        await self.totals.poll()
        return engine_samples(self.totals)

    def get_default_sampling_params(self) -> SamplingParams:
        """What a call without parameters uses: what the model's generation_config.json recommends."""
        return SamplingParams(**self.facts.sampling_defaults)  # type: ignore[arg-type]

    # ---- Requests ----

    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, request_id: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one prompt, in any of the forms that `LLM.generate` takes; yields results as tokens come.

        `sampling_params.output_kind` says what each result holds: everything so far, what was added since the previous
        one, or one result at the end. The last result alone is `finished`. `request_id` must not be in use; None makes
        one up.

        Leaving the loop aborts the request, and so does cancelling its task. A generator that something still refers
        to has to be closed (`contextlib.aclosing`).

        Raises RequestError for a prompt or parameter that cannot be served, Overloaded if too many requests run or
        wait, and EngineDead. What goes wrong with one completion is in its `finish_reason` and `error`.
        """
        return self._outputs(partial(_given, prompt), sampling_params, request_id)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one conversation, with the model's chat template; otherwise as `generate`.

        Raises TokenizerError if the model has no chat template, RequestError as `generate` does.
        """

        async def rendered() -> Prompt:
            return await self._chats.run(partial(self.inputs.chat, messages))

        return self._outputs(rendered, sampling_params, request_id)

    async def embed(
        self,
        prompt: Prompt,
        *,
        pooling: str = "last",
        dimensions: int | None = None,
        normalize: bool = True,
        request_id: str | None = None,
    ) -> EmbeddingRequestOutput:
        """One prompt as a vector; the options are those of `LLM.embed`. Cancelling the caller aborts the request.

        Raises RequestError for a prompt or option that cannot be served, HeadraceError if the model fails on the
        prompt, and EngineDead.
        """
        with self._preparing.call(request_id) as call:
            await self.start()
            kind, shape = as_pooling(pooling), Shape(self.facts.hidden_size, dimensions, normalize)
            new, text = await self._request(prompt, SamplingParams(max_tokens=0), request_id, kind)
        if call.aborted:
            raise HeadraceError("the request was aborted before the engine had it")
        embedding = await embed(self.client, new)
        return shape.output(new, text, embedding.vector, embedding.num_cached_tokens)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests: their generators yield a last result with the finish reason "abort". Ignores unknown ids.

        An id may be used again at once. Raises InvalidParams, and aborts nothing, if an id is not text.
        """
        self._check_loop()
        for one in as_request_ids(request_id):
            self._preparing.abort(one)
            if self._client is not None:
                self._client.abort(one)

    async def _outputs(
        self,
        prompt: Callable[[], Awaitable[Prompt]],
        sampling_params: SamplingParams | None,
        request_id: str | None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The results of one request, whose prompt is made once the engine runs."""
        with self._preparing.call(request_id) as call:
            await self.start()
            params = self.get_default_sampling_params() if sampling_params is None else sampling_params
            new, text = await self._request(await prompt(), params, request_id)
        generation = await Generation.start(self.client, self.inputs.tokenizer, new)
        try:
            if call.aborted:
                generation.cancel()
            growing = GrowingResult(generation.pending, text, self.inputs.tokenizer)
            async for deltas in arrivals(generation):
                for delta in deltas:
                    growing.add(delta)
                if (output := growing.partial()) is not None:
                    yield output
            yield growing.final()
        finally:
            generation.cancel()

    async def _request(
        self, prompt: Prompt, params: SamplingParams, name: str | None, pooling: Pooling | None = None
    ) -> tuple[NewRequest, str | None]:
        if not isinstance(params, SamplingParams):
            raise InvalidParams("sampling_params must be SamplingParams")
        name = f"request-{uuid.uuid4().hex}" if name is None else name
        build = partial(self.inputs.request, name, prompt, params, pooling)
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        long = isinstance(text, str) and len(text) > SHORT_CHARS
        return await asyncio.to_thread(build) if long else build()


async def _given(prompt: Prompt) -> Prompt:
    return prompt


async def _start_process(config: EngineConfig, options: ProcessOptions) -> ProcessClient:
    return await ProcessClient.start(
        config.to_json(),
        command=options.command,
        max_in_flight=options.max_in_flight,
        watchdog=Watchdog(options.timeout_s) if options.timeout_s else None,
    )


def _dropped(client: Supervisor, model: str) -> None:
    client.abandon()
    warnings.warn(
        f"AsyncLLM({model!r}) was dropped without close(): its engine process has been ended",
        ResourceWarning,
        stacklevel=2,
    )


def load_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer of a folder or a GGUF file, with what its first users would otherwise wait for."""
    tokenizer = open_tokenizer(folder)
    _ = tokenizer.longest_token_chars
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}])  # tries it
    except RequestError:
        pass  # no chat template, or one that rejects this conversation
    except TokenizerError as error:
        _log.error("chats are refused, completions work: %s", error)
    return tokenizer
