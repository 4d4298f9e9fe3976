"""The offline API: a model in this process."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Unpack

from headrace.build import assemble
from headrace.config import EngineConfig, EngineOptions, shows_options
from headrace.core.engine import EngineStats
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Pooling
from headrace.core.vectors import floats
from headrace.errors import HeadraceError
from headrace.runner.executor import ModelExecutor
from headrace.serving.client.inprocess import Call, InProcessClient
from headrace.serving.metrics import MetricSample, engine_samples
from headrace.serving.requests.inputs import (
    Inputs,
    Message,
    Prompt,
    Shape,
    as_conversations,
    as_params,
    as_pooling,
    as_prompts,
)
from headrace.serving.requests.outputs import (
    CompletionOutput,
    EmbeddingRequestOutput,
    RequestMetrics,
    RequestOutput,
)
from headrace.serving.totals import EngineTotals
from headrace.sim.step_budget import step_budget
from headrace.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tqdm import tqdm

__all__ = [
    "LLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "RequestMetrics",
    "RequestOutput",
]


class LLM:
    """A model in this process.

        llm = LLM("tale")
        for out in llm.generate(["Once upon a time"], SamplingParams(max_tokens=64, temperature=0.0)):
            print(out.outputs[0].text, out.metrics)

    `model` is a bundled name, a Hugging Face folder, a GGUF file, a hub id or `shape:NAME` (random weights, no
    tokenizer). The options are those of `headrace.config.EngineConfig`, by vLLM's names too; open options are resolved
    for this machine, and `headrace inspect` explains each value. Threads may share one LLM: each step computes the
    requests of all of them. Ctrl-C aborts the call that it interrupts, and the LLM stays usable.

    Raises ModelError if the model cannot be loaded and ConfigError if an option is wrong.
    """

    @shows_options
    def __init__(self, model: str, *, show_progress: bool = True, **options: Unpack[EngineOptions]) -> None:
        config = EngineConfig.from_kwargs(model=model, **options)
        bar = _LoadingBar(f"loading {model}") if show_progress and sys.stderr.isatty() else None
        try:
            self.parts = assemble(config, bar, step_budget)
        finally:
            if bar is not None:
                bar.close()
        self._client = InProcessClient(self.parts.engine, self.parts.executor, self.parts.tokenizer)
        self._inputs = Inputs(self.parts.source.name, self.parts.tokenizer)
        self._names = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises TokenizerError for a `shape:` model, which has none."""
        return self._inputs.require_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of a call without any: what the model's generation_config.json recommends."""
        return SamplingParams(**self.parts.sampling_defaults)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts in one continuous batch; results are in the order of the prompts.

        A prompt is text, a list or array of token ids, or a dict {"prompt": text} or {"prompt_token_ids": ids}, which
        may also hold "priority", "user", "cache_salt", "cache_pin_tokens" and "cache_pin_ttl_s" (see
        `core.types.NewRequest`). `sampling_params` is one for all or one a prompt; None: see
        `get_default_sampling_params`.

        Raises RequestError for a prompt or parameter that cannot be served, before anything is run.
        """
        many = as_prompts(prompts)
        given = self.get_default_sampling_params() if sampling_params is None else sampling_params
        each = as_params(given, len(many))
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
        conversations = as_conversations(messages)
        prompts = [self._inputs.chat(one) for one in conversations]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Complete one prompt and yield the result after every step that adds to it, see `output_kind`.

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
            call.closed = True  # nothing else: the garbage collector may run this at any line of a step

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Answer one conversation; otherwise as `stream`."""
        yield from self.stream(self._inputs.chat(messages), sampling_params)

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

        `pooling` takes the hidden state after the final norm of the "last" token, or the "mean" of all of them.
        `dimensions` keeps the first ones only; `normalize` scales what is kept to length 1.

        Raises RequestError for a prompt or option that cannot be served, before anything is run, and HeadraceError
        if the model fails on a prompt.
        """
        kind, shape = as_pooling(pooling), Shape(self.parts.spec.hidden_size, dimensions, normalize)
        params = SamplingParams(max_tokens=0)
        requests = [self._request(prompt, params, kind) for prompt in as_prompts(prompts)]
        pooled = self._pooled(requests, use_tqdm, "embedding")
        return [
            shape.output(new, text, floats(vector), cached)
            for (new, text), (vector, cached) in zip(requests, pooled, strict=True)
        ]

    def hidden_states(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool = True
    ) -> list[NDArray[np.float32]]:
        """The states after the final norm of all tokens of each prompt, [n, H]; HF: last_hidden_state.

        Raises as `embed` does.
        """
        import numpy as np

        requests = [
            self._request(prompt, SamplingParams(max_tokens=0), Pooling.ALL) for prompt in as_prompts(prompts)
        ]
        pooled = self._pooled(requests, use_tqdm, "reading")
        width = self.parts.spec.hidden_size
        return [np.frombuffer(one, dtype="<f4").reshape(-1, width).astype(np.float32) for one, _ in pooled]

    def logits(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits [n, V] of hidden states [n, H], which `hidden_states` gives: softmax is of the token after each.

        Raises ValueError for states of another width.
        """
        import numpy as np

        executor, width = self.parts.executor, self.parts.spec.hidden_size
        if states.ndim != 2 or states.shape[1] != width:
            raise ValueError(f"states must be [n, {width}], got {list(states.shape)}")
        assert isinstance(executor, ModelExecutor)
        found = executor.model.head(np.ascontiguousarray(states, dtype=np.float32))
        return np.asarray(found if isinstance(found, np.ndarray) else found.float().cpu(), dtype=np.float32)

    def stats(self) -> EngineStats:
        """Counts since the model was loaded."""
        return self._client.stats()

    def get_metrics(self) -> list[MetricSample]:
        """The engine's metrics, as /metrics of `headrace serve` has them: requests, KV cache, tokens, prefix cache."""
        totals = EngineTotals()
        totals.take(0, self.stats())
        return engine_samples(totals)

    def _request(
        self, prompt: Prompt, params: SamplingParams, pooling: Pooling | None = None
    ) -> tuple[NewRequest, str | None]:
        new, text = self._inputs.request(f"request-{next(self._names)}", prompt, params, pooling)
        if params.grammar is not None:
            self.parts.grammars.get(params.grammar)
        return new, text

    def _pooled(
        self, requests: Sequence[tuple[NewRequest, str | None]], use_tqdm: bool, what: str
    ) -> list[tuple[bytes, int]]:
        """Run requests with `pooling`: what each gives, and how many of its tokens were cached."""
        call = self._run(requests, use_tqdm, what)
        found = []
        for new, _ in requests:
            ended = call.pooled[new.request_id]
            if ended.pooled is None:
                raise HeadraceError(f"the engine failed on this prompt: {ended.error}")
            found.append((ended.pooled, 0 if ended.stats is None else ended.stats.num_cached))
        return found

    def _run(
        self, requests: Sequence[tuple[NewRequest, str | None]], use_tqdm: bool, what: str = "generating"
    ) -> Call:
        """Run requests to their end. A signal handler that raises (Ctrl-C) runs between two steps, and aborts them."""
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
    """A progress bar that appears if loading takes longer than usual."""

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
    """Progress of requests, and the speed so far."""

    def __init__(self, requests: int, what: str) -> None:
        from tqdm import tqdm

        self._bar: tqdm[object] = tqdm(total=requests, unit="req", desc=what)
        self._started = time.monotonic()

    def show(self, tokens: int, ended: int) -> None:
        """Update the bar to these totals."""
        speed = tokens / max(1e-9, time.monotonic() - self._started)
        self._bar.set_postfix_str(f"{speed:.0f} tok/s", refresh=False)
        self._bar.update(ended - self._bar.n)

    def close(self) -> None:
        self._bar.close()
