"""The measured server: its address, the model's name there, and the form of requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.serving.http_client import Address, HttpError, Pool, request_bytes
from headrace.bench.serving.stream import EventBody, Streamed, StreamError, error_message, read_stream
from headrace.errors import HeadraceError
from headrace.sim.workload.sessions import WORDS, WordRate

COMPLETIONS, CHAT = "openai", "openai-chat"
BACKENDS: Mapping[str, str] = {COMPLETIONS: "/v1/completions", CHAT: "/v1/chat/completions"}
"""Named as in vLLM's client."""

_PROBE_WORDS = (16, 80)


@dataclass(frozen=True, slots=True)
class Target:
    """`extra`: additional fields of every request, such as {"ignore_eos": true}."""

    address: Address
    model: str
    backend: str = COMPLETIONS
    api_key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    max_model_len: int | None = None

    def request(self, texts: Sequence[str], max_tokens: int) -> bytes:
        """A streamed request. `texts`: the conversation so far, user and model in turn."""
        body: dict[str, Any] = {"model": self.model}
        if self.backend == CHAT:
            roles = ("user", "assistant")
            body["messages"] = [
                {"role": roles[number % 2], "content": text} for number, text in enumerate(texts)
            ]
        else:
            body["prompt"] = " ".join(texts)
        body |= {
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self._bytes("POST", BACKENDS[self.backend], json.dumps(body | dict(self.extra)).encode())

    def _bytes(self, method: str, path: str, content: bytes = b"") -> bytes:
        return request_bytes(self.address, method, path, content, self.api_key)


async def find_model(address: Address, api_key: str | None, model: str | None) -> tuple[str, int | None]:
    """(model name, its context in tokens if the server lists it); without a name, the first model of the server's list.

    Raises HeadraceError if the request fails or the server has no such model.
    """
    pool, body = Pool(address), EventBody()
    try:
        head = await pool.ask(request_bytes(address, "GET", "/v1/models", api_key=api_key), body)
        if head.status == 404 and model is not None:
            return model, None  # some servers have no list
        if head.status != 200:
            raise HeadraceError(f"the list of models: {error_message(head.status, body.data)}")
        listed = json.loads(body.data)["data"]
        names = {entry["id"]: entry.get("max_model_len") for entry in listed}
    except HttpError as error:
        raise HeadraceError(str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadraceError(f"the list of models is none: {body.data[:100]!r}") from error
    finally:
        pool.close()
    if model is None:
        if not names:
            raise HeadraceError("the server's list of models is empty: name one with --model")
        model = next(iter(names))
    length = names.get(model)
    return model, length if isinstance(length, int) and length > 0 else None


async def measure_words(target: Target) -> tuple[WordRate, str | None]:
    """Tokens per word, measured with two short requests, and a note if the server sends no usage.

    Raises HeadraceError if a request fails.
    """
    pool = Pool(target.address)
    found = []
    try:
        for count in _PROBE_WORDS:
            text = " ".join(WORDS[number % len(WORDS)] for number in range(count))
            found.append((await probe(pool, target, text)).prompt_tokens)
    finally:
        pool.close()
    low, high = found
    if low is None or high is None:
        return WordRate(), (
            "the server sends no usage: every piece of text counts as a token, and words as 1.3 tokens"
        )
    each = (high - low) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])
    if not 0.1 <= each <= 20:
        raise HeadraceError(
            f"the server counts {low} prompt tokens for {_PROBE_WORDS[0]} words and {high} for {_PROBE_WORDS[1]}"
        )
    return WordRate(max(0.0, low - each * _PROBE_WORDS[0]), each), None


async def probe(pool: Pool, target: Target, text: str) -> Streamed:
    """One short request. Raises HeadraceError with what is wrong with the answer."""
    body = EventBody()
    try:
        head = await pool.ask(target.request([text], 1), body)
        if head.status != 200:
            raise HeadraceError(f"a first request failed: {error_message(head.status, body.data)}")
        return read_stream(body, 1)
    except (HttpError, StreamError) as error:
        raise HeadraceError(f"a first request failed: {error}") from error
