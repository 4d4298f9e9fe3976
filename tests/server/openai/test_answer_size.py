"""The answer to one HTTP request is bounded when it is accepted, over all prompts, choices and alternatives."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from headrace.core.params import SamplingParams
from headrace.errors import InvalidParams
from headrace.server.requests import bounds
from headrace.server.requests.bounds import LEAST_HELD_BYTES, MAX_ENTRIES, bounded
from tests.server.conftest import TinyServer

CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("params", "prompts", "echo"),
    [
        (SamplingParams(max_tokens=2**20), [5], False),
        (SamplingParams(max_tokens=2**13, n=128), [5], False),
        (SamplingParams(max_tokens=2**10), [5] * 1024, False),
        (SamplingParams(max_tokens=2**15, logprobs=31), [5], False),
        (SamplingParams(max_tokens=0, prompt_logprobs=15), [2**14] * 4, True),
        (SamplingParams(max_tokens=0, prompt_logprobs=15, n=4), [2**14], True),
        (SamplingParams(max_tokens=0, n=64), [2**14], True),
    ],
)
def test_sizes_at_the_bound_and_beyond(params: SamplingParams, prompts: list[int], echo: bool) -> None:
    assert bounded(params, prompts, None, echo=echo, stream=False) is params
    for stream in (False, True):
        with pytest.raises(InvalidParams, match=f"may come to .* but one request may have {MAX_ENTRIES}"):
            bounded(params, [prompts[0] * 2 if echo else 5, *prompts], None, echo=echo, stream=stream)


@pytest.mark.parametrize("context", [None, 2**20])
def test_without_max_tokens_a_whole_answer_ends_at_the_bound(context: int | None) -> None:
    params = SamplingParams(max_tokens=None, n=4, logprobs=7)
    ends = bounded(params, [10], context, echo=False, stream=False)
    assert ends.max_tokens == MAX_ENTRIES // 32
    assert bounded(ends, [10], context, echo=False, stream=False) is ends
    assert bounded(params, [10], context, echo=False, stream=True) is params
    assert bounded(params, [10], 4096, echo=False, stream=False) is params
    with pytest.raises(InvalidParams):
        bounded(params, [2**18], context, echo=True, stream=False)


def test_a_request_beyond_the_bound_is_refused_before_anything_is_computed(tiny: TinyServer) -> None:
    """Forty prompts that each may be scored, and together may not."""
    steps = tiny.stats().scheduler.steps
    body: dict[str, Any] = {"prompt": [[7] * 450] * 40, "max_tokens": 0, "echo": True, "logprobs": 64}
    answer = tiny.http.post("/v1/completions", json=body)
    assert answer.status_code == 400, answer.text[:200]
    assert f"may come to {40 * 450 * 65} tokens and log-probabilities" in answer.json()["error"]["message"]
    assert tiny.stats().scheduler.steps == steps
    assert tiny.http.post("/v1/completions", json=body | {"prompt": [[7] * 450] * 5}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_ids_of_prompts_count(
    path: str, stream: bool, tiny: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in each choice, and once in a chat that is not streamed."""
    monkeypatch.setattr(bounds, "MAX_ENTRIES", 8000)
    talk = {"messages": [{"role": "user", "content": "a" * 390}]}
    asked = ({"prompt": [7] * 400} if path == "/v1/completions" else talk) | {"max_tokens": 1, "n": 32}
    refused = path == "/v1/completions" or stream
    steps = tiny.stats().scheduler.steps
    answer = tiny.http.post(path, json=asked | {"return_token_ids": True, "stream": stream})
    assert answer.status_code == (400 if refused else 200), answer.text[:300]
    if refused:
        assert "return_token_ids" in answer.json()["error"]["message"]
        assert tiny.stats().scheduler.steps == steps
    fewer = asked | {"return_token_ids": True, "stream": stream, "n": 8}
    for accepted in (asked | {"stream": stream}, fewer):
        assert tiny.http.post(path, json=accepted).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_ids_of_prompts_take_memory(path: str, tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = tiny.app.state.service.answers
    monkeypatch.setattr(bounds, "LEAST_HELD_BYTES", 3000)
    monkeypatch.setattr(answers, "most", 3000)
    talk = {"messages": [{"role": "user", "content": "a" * 390}]}
    asked = ({"prompt": [7] * 400} if path == "/v1/completions" else talk) | {"max_tokens": 1}
    steps = tiny.stats().scheduler.steps
    refused = tiny.http.post(path, json=asked | {"return_token_ids": True})
    assert refused.status_code == 429 and "take too much memory" in refused.text
    assert tiny.stats().scheduler.steps == steps
    for accepted in (asked, asked | {"return_token_ids": True, "stream": True}):
        assert tiny.http.post(path, json=accepted).status_code == 200
    tiny.call(collected())
    assert answers.bytes == 0


def test_answers_over_the_shared_memory_bound_end_as_overload(tiny: TinyServer) -> None:
    answers = tiny.app.state.service.answers
    body = CHAT | {"n": 16, "max_tokens": 50, "logprobs": True, "top_logprobs": 20}
    most, answers.most = answers.most, LEAST_HELD_BYTES
    try:
        refused = tiny.http.post("/v1/chat/completions", json=body)
        small = tiny.http.post("/v1/chat/completions", json=body | {"n": 1})
    finally:
        answers.most = most
    assert refused.status_code == 429 and "take too much memory" in refused.json()["error"]["message"]
    assert small.status_code == 200
    assert tiny.http.post("/v1/chat/completions", json=body).status_code == 200
    tiny.call(collected())
    assert answers.bytes == 0 and tiny.idle


async def collected() -> None:
    gc.collect()
