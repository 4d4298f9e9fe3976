"""`"explain": true`: every reason for which a prompt was not cached, over HTTP, and what it never reveals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from headrace.core.types import CacheMiss
from headrace.server.access.keys import Caller
from headrace.server.openai.choices import ExplainedPrompt
from headrace.serving.requests import outputs as request_metrics
from tests.server.conftest import TinyServer
from tests.server.keyring import bearer, keyed

BLOCK = 8
FIELDS = ExplainedPrompt.__required_keys__
_fresh = iter(range(2, 1900))


@pytest.fixture(scope="module")
def tiny() -> Iterator[TinyServer]:
    """A server without earlier prompts."""
    server = TinyServer()
    yield server
    server.close()


def fresh(length: int) -> list[int]:
    """Tokens that no other prompt of these tests begins with."""
    return [next(_fresh)] + [7] * (length - 1)


def explained(server: TinyServer, prompt: object, **body: object) -> dict[str, Any]:
    fields = {"prompt": prompt, "max_tokens": 2, "explain": True} | body
    answer = server.http.post("/v1/completions", json=fields)
    assert answer.status_code == 200, answer.text
    (explanation,) = answer.json()["usage"]["headrace"]["prompts"]
    assert explanation["cached_tokens"] == answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return dict(explanation)


def test_never_seen(tiny: TinyServer) -> None:
    explanation = explained(tiny, fresh(20))
    assert explanation["cache_miss"] == "never seen"
    assert (explanation["prompt_tokens"], explanation["cached_tokens"], explanation["output_tokens"]) == (
        20,
        0,
        2,
    )
    assert set(explanation) == FIELDS
    TypeAdapter(ExplainedPrompt).validate_python(explanation, strict=True)


def test_everything_that_can_be_shared(tiny: TinyServer) -> None:
    prompt = fresh(20)
    explained(tiny, prompt)
    explanation = explained(tiny, prompt)
    assert (explanation["cache_miss"], explanation["cached_tokens"]) == (None, 2 * BLOCK)


@pytest.mark.parametrize("at", [1, 7, 8, 13, 17])
def test_diverged(tiny: TinyServer, at: int) -> None:
    prompt = fresh(25)
    explained(tiny, prompt)
    explanation = explained(tiny, [*prompt[:at], 1234, *prompt[at + 1 :]])
    assert explanation["cache_miss"] == f"diverged at token {at}"
    assert explanation["cached_tokens"] == at // BLOCK * BLOCK


@pytest.mark.parametrize("length", [1, BLOCK])
def test_below_one_block(tiny: TinyServer, length: int) -> None:
    explanation = explained(tiny, fresh(length))
    assert explanation["cache_miss"] == f"below one block: a block is {BLOCK} tokens"
    assert explanation["cached_tokens"] == 0


def test_evicted() -> None:
    server = TinyServer(num_blocks=20)
    try:
        prompt = fresh(40)
        explained(server, prompt)
        assert explained(server, prompt)["cached_tokens"] == 4 * BLOCK
        explained(server, fresh(150))
        explanation = explained(server, prompt)
        assert explanation["cache_miss"].startswith("evicted: block ")
        assert explanation["cached_tokens"] < 4 * BLOCK
    finally:
        server.close()


def test_times_add_up(tiny: TinyServer) -> None:
    explanation = explained(tiny, fresh(20), max_tokens=30)
    assert 0 <= explanation["queue_s"] < explanation["ttft_s"] < explanation["e2e_s"] < 10
    assert explanation["queue_s"] + explanation["prefill_s"] == pytest.approx(explanation["ttft_s"], abs=1e-5)
    assert explanation["ttft_s"] + explanation["decode_s"] <= explanation["e2e_s"] + 1e-5
    assert explanation["tpot_s"] == pytest.approx(explanation["decode_s"] / 29, abs=1e-5)


def test_preemptions_are_counted() -> None:
    server = TinyServer(num_blocks=20)
    try:
        body = {"prompt": [fresh(16) for _ in range(8)], "max_tokens": 60, "explain": True}
        answer = server.http.post("/v1/completions", json=body).json()
        explanation = answer["usage"]["headrace"]["prompts"]
        assert len(explanation) == 8
        assert sum(one["preemptions"] for one in explanation) == server.stats().scheduler.preemptions > 0
    finally:
        server.close()


def test_only_on_request(tiny: TinyServer) -> None:
    for body in ({}, {"explain": False}, {"explain": None}):
        answer = tiny.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 2} | body).json()
        assert "headrace" not in answer["usage"]
    refused = tiny.http.post("/v1/completions", json={"prompt": [5], "explain": "yes"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "explain"


def events(server: TinyServer, route: str, body: dict[str, object]) -> Iterator[dict[str, Any]]:
    with server.http.stream("POST", route, json=body) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


CHAT = [{"role": "user", "content": "Tell me about the mill and the fox"}]
ROUTES: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "Once upon a time there was a mill", "max_tokens": 3},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 3},
    "/v1/responses": {"input": "Tell me about the mill and the fox", "max_output_tokens": 3},
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_every_route_that_generates_explains(tiny: TinyServer, route: str, stream: bool) -> None:
    body = ROUTES[route] | {"explain": True, "stream": stream}
    if not stream:
        usage = tiny.http.post(route, json=body).json()["usage"]
    else:
        last = list(events(tiny, route, body))[-1]
        usage = last.get("response", last)["usage"]
    (explanation,) = usage["headrace"]["prompts"]
    assert set(explanation) == FIELDS and explanation["output_tokens"] == 3


def test_a_stream_without_it_keeps_its_shape(tiny: TinyServer) -> None:
    chunks = list(events(tiny, "/v1/completions", {"prompt": [5], "max_tokens": 2, "stream": True}))
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


# ---- Prompts of other callers are not revealed ----


def salted(server: TinyServer) -> str:
    """What a caller learns about a prompt that was sent under another salt before."""
    prompt = fresh(20)
    explained(server, prompt, cache_salt="mine")
    explanation = explained(server, prompt, cache_salt="yours")
    assert explanation["cached_tokens"] == 0
    return str(explanation["cache_miss"])


def test_prompts_under_other_salts_count_as_never_seen(tiny: TinyServer) -> None:
    assert salted(tiny) == explained(tiny, fresh(20))["cache_miss"] == "never seen"


def test_a_planted_leak_is_noticed(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(miss: CacheMiss | None) -> str | None:
        return None if miss is None else f"{miss.reason}: {miss.detail}"

    monkeypatch.setattr(request_metrics, "_reason", leaking)
    assert salted(tiny) != "never seen"


def learned(change: Callable[[list[int]], list[int]]) -> str:
    """What the owner of one key learns about a prompt that is like the other one's."""
    server = TinyServer(traffic=keyed(Caller("ann"), Caller("bob")))
    try:
        prompt = fresh(40)
        explained_to("ann", server, prompt)
        return explained_to("bob", server, change(prompt))
    finally:
        server.close()


def explained_to(name: str, server: TinyServer, prompt: list[int]) -> str:
    body = {"prompt": prompt, "max_tokens": 2, "explain": True}
    answer = server.http.post("/v1/completions", json=body, headers=bearer(name))
    (explanation,) = answer.json()["usage"]["headrace"]["prompts"]
    assert explanation["cached_tokens"] == 0
    return str(explanation["cache_miss"])


def test_prompts_of_other_keys_are_never_compared_with() -> None:
    assert learned(lambda prompt: prompt) == "never seen"
    assert learned(lambda prompt: [*prompt[:12], 99, *prompt[13:]]) == "never seen"
    assert learned(lambda prompt: prompt[:5]) == f"below one block: a block is {BLOCK} tokens"
