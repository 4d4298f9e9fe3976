"""Charges and counts of keys: computed tokens, and those in answers. One definition everywhere."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from headrace.server.access.keys import Caller
from headrace.server.access.rate_limit import RateLimiter
from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TALE, TinyServer
from tests.server.keyring import bearer, complete, keyed, secret
from tests.server.observability.scrape import Scrape
from tests.waiting import until

ANN = Caller("ann", tokens_per_minute=100_000, admin=True)
SLOW_PREFILL = {"step_s": 0.01, "max_num_batched_tokens": 16}


def send(server: TinyServer, path: str, body: dict[str, Any], name: str) -> socket.socket:
    """A request on a connection of its own, which may be closed at any time."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    caller = socket.create_connection((host, int(port)))
    caller.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {secret(name)}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return caller


def charged(server: TinyServer, caller: Caller) -> float:
    """Tokens that are lacking in the key's bucket now, and what it has got back meanwhile at the most."""
    assert caller.tokens_per_minute is not None
    (limit,) = server.traffic.limiter.limits(caller)
    return caller.tokens_per_minute - limit.remaining


@pytest.mark.parametrize("path", ["/v1/completions", pytest.param("/v1/embeddings", marks=pytest.mark.long)])
def test_a_disconnect_before_the_first_token_is_charged_for_computed_tokens(path: str) -> None:
    caller = Caller("ann", tokens_per_minute=10_000, admin=True)
    server = TinyServer(traffic=keyed(caller), **SLOW_PREFILL)
    try:
        prompts = 5
        for number in range(prompts):
            prompt = [number + 1] * 400
            body = {"input": prompt} if path.endswith("embeddings") else {"prompt": prompt, "max_tokens": 50}
            before = server.stats().scheduler.scheduled_tokens
            with send(server, path, body, "ann"):
                until(lambda before=before: server.stats().scheduler.scheduled_tokens > before + 150)  # type: ignore[misc]
            until(lambda: server.idle)
        scheduler = server.stats().scheduler
        assert scheduler.output_tokens == 0, "a client got a token before it left"
        assert 150 * prompts < scheduler.scheduled_tokens < 400 * prompts
        used = server.traffic.usage.of("ann")
        until(lambda: used.prompt_tokens == scheduler.scheduled_tokens)
        assert used.completion_tokens == 0
        seen = Scrape.of(server.http.get("/metrics", headers=bearer("ann")).text)
        assert seen["prompt_tokens_total"] == scheduler.scheduled_tokens
        # Some seconds have passed, in which a part came back.
        assert 0 < charged(server, caller) <= scheduler.scheduled_tokens
        admission = server.traffic.admission
        assert admission is not None and (admission.completions, admission.tokens) == (0, 0)
    finally:
        server.close()


def test_a_disconnect_in_the_queue_is_not_charged() -> None:
    server = TinyServer(traffic=keyed(ANN), max_num_seqs=1, step_s=0.01)
    try:
        with send(server, "/v1/completions", {"prompt": [1], "max_tokens": 400}, "ann"):
            until(lambda: server.stats().running == 1)
            with send(server, "/v1/completions", {"prompt": [2] * 300, "max_tokens": 5}, "ann"):
                until(lambda: server.stats().waiting == 1)
            until(lambda: server.stats().waiting == 0)
            assert server.stats().running == 1
        until(lambda: server.idle)
        used = server.traffic.usage.of("ann")
        until(lambda: used.prompt_tokens == 1 and used.completion_tokens > 0)
        assert used.completion_tokens == server.stats().scheduler.output_tokens
    finally:
        server.close()


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_stop_string_counts_the_same_in_answers_usage_and_metrics(stream: bool) -> None:
    """News of several steps travels together, so the engine runs past the stop string before it hears of it."""
    tokenizer = Tokenizer.from_folder(TALE)
    server = TinyServer(traffic=keyed(ANN), step_s=0.0005, stream_interval_s=0.02)
    answers: list[dict[str, int]] = []
    try:
        for start in range(300, 330):
            body = {
                "prompt": [start],
                "max_tokens": 100,
                "stop": [tokenizer.decode([start + 9])],
                "stream": stream,
            }
            body |= {"stream_options": {"include_usage": True}} if stream else {}
            answer = complete(server, "ann", **body)
            assert answer.status_code == 200, answer.text
            answers.append(usage_of(answer, stream))
        until(lambda: server.idle)
        reported = sum(answer["completion_tokens"] for answer in answers)
        assert server.stats().scheduler.output_tokens > reported, "the engine never ran past a stop string"
        used = server.traffic.usage.of("ann")
        assert used.completion_tokens == reported
        assert used.prompt_tokens == sum(answer["prompt_tokens"] for answer in answers)
        seen = Scrape.of(server.http.get("/metrics", headers=bearer("ann")).text)
        assert seen.get("key_generation_tokens_total", key="ann") == reported
        assert seen["generation_tokens_total"] == reported
        assert seen.histogram("request_generation_tokens") == (len(answers), reported)
    finally:
        server.close()


def usage_of(answer: httpx.Response, stream: bool) -> dict[str, int]:
    if not stream:
        counts: dict[str, int] = answer.json()["usage"]
        return counts
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    counts = events[-1]["usage"]
    return counts


def test_output_beyond_the_estimate_is_charged_as_it_is_generated() -> None:
    caller = Caller("ann", tokens_per_minute=60_000, admin=True)
    server = TinyServer(traffic=keyed(caller), step_s=0.005)
    try:
        admission = server.traffic.admission
        assert admission is not None
        expected = server.traffic.estimate.tokens
        with send(
            server, "/v1/completions", {"prompt": [1] * 10, "max_tokens": 450, "ignore_eos": True}, "ann"
        ):
            until(lambda: admission.tokens > 0)
            assert admission.tokens == 10 + expected
            until(lambda: server.stats().scheduler.output_tokens > 3 * expected)
            assert 10 + 3 * expected <= admission.tokens <= 10 + 450 + 64
            assert server.stats().running == 1
        until(lambda: server.idle and admission.tokens == 0)
    finally:
        server.close()


class Waits:
    """Waiting times that requests got for their key's tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds: list[float] = []
        reserve = RateLimiter.reserve_tokens

        def noted(*args: Any, **kwargs: Any) -> float:
            self.seconds.append(reserve(*args, **kwargs))
            return self.seconds[-1]

        monkeypatch.setattr(RateLimiter, "reserve_tokens", noted)


def test_a_key_over_its_rate_waits_for_a_short_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    server = TinyServer(traffic=keyed(Caller("ann", tokens_per_minute=1200)))
    try:
        assert complete(server, "ann", prompt=[1] * 400, max_tokens=110).status_code == 200
        assert complete(server, "ann", prompt=[1] * 400, max_tokens=110).status_code == 200
        assert complete(server, "ann", prompt=[1] * 200, max_tokens=20).status_code == 200
        assert waits.seconds[:2] == [0, 0] and 0 < waits.seconds[2] <= 2.1
        answer = complete(server, "ann", prompt=[1] * 400, max_tokens=110)
        assert answer.status_code == 429 and 10 < int(answer.headers["retry-after"]) < 60
        assert server.traffic.usage.of("ann").refused == {"rate_limit_exceeded": 1}
    finally:
        server.close()


def test_a_disconnect_while_waiting_for_tokens_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    caller = Caller("ann", tokens_per_minute=600)
    server = TinyServer(traffic=keyed(caller))
    try:
        assert complete(server, "ann", prompt=[1] * 500, max_tokens=10).status_code == 200
        admission, before = server.traffic.admission, server.stats().scheduler.scheduled_tokens
        assert admission is not None
        with send(server, "/v1/completions", {"prompt": [1] * 150, "max_tokens": 20}, "ann"):
            until(lambda: len(waits.seconds) == 2)
            assert waits.seconds[1] > 5 and admission.completions == 1
        until(lambda: admission.completions == 0)
        assert charged(server, caller) <= 510
        assert server.idle and server.stats().scheduler.scheduled_tokens == before
    finally:
        server.close()
