"""Counts are exact in a crowd, too, with callers who leave in between."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from tests.server.conftest import TinyServer
from tests.server.observability.scrape import Scrape
from tests.waiting import LONG_S

CALLERS, REQUESTS = 24, 8


class Crowd:
    """Threads that send all kinds of requests, and add up what they get."""

    def __init__(self, server: TinyServer, leaving: bool) -> None:
        self.statuses: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._server, self._leaving = server, leaving
        self._lock = threading.Lock()
        threads = [threading.Thread(target=self._call, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)

    def _call(self, number: int) -> None:
        dice = random.Random(number)
        with httpx.Client(base_url=self._server.url, timeout=60) as http:
            for _ in range(REQUESTS):
                body = {"prompt": [dice.randrange(1, 1900) for _ in range(dice.choice([3, 20, 45]))],
                        "max_tokens": dice.randrange(1, 30), "n": dice.choice([1, 1, 3])}  # fmt: skip
                kind = dice.choice(["whole", "stream", "refused", *(["leave"] if self._leaving else [])])
                if kind == "whole":
                    self._note(http.post("/v1/completions", json=body))
                elif kind == "refused":
                    self._note(http.post("/v1/completions", json=body | {"prompt": [1] * 600}))
                elif kind == "stream":
                    self._read(http, body)
                else:
                    self._leave(http, body | {"max_tokens": 400})

    def _note(self, answer: httpx.Response) -> None:
        with self._lock:
            self.statuses[str(answer.status_code)] += 1
            if answer.status_code == 200:
                self._add(answer.json()["usage"])
                self.reasons.update(choice["finish_reason"] for choice in answer.json()["choices"])

    def _read(self, http: httpx.Client, body: dict[str, object]) -> None:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
        with self._lock:
            self.statuses["200"] += 1
            self._add(chunks[-1]["usage"])
            ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
            self.reasons.update(reason for reason in ends if reason)

    def _leave(self, http: httpx.Client, body: dict[str, object]) -> None:
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
            next(answer.iter_lines())
        with self._lock:
            self.statuses["200"] += 1
            self.reasons["abort"] += int(str(body["n"]))

    def _add(self, usage: dict[str, int]) -> None:
        self.tokens.update({name: usage[f"{name}_tokens"] for name in ("prompt", "completion")})


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    server = TinyServer(num_blocks=64)  # not enough for all of them
    yield server
    server.close()


def quiet(server: TinyServer) -> Scrape:
    """A scrape after all clients have disconnected."""
    deadline = time.monotonic() + LONG_S
    while not server.idle or Scrape.take(server.http)["queue_completions"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)  # the last clients' connections are closed after their work
    return Scrape.take(server.http)


def test_many_clients_that_stay(server: TinyServer) -> None:
    before = quiet(server)
    crowd = Crowd(server, leaving=False)
    seen = quiet(server).since(before)
    assert seen["prompt_tokens_total"] == crowd.tokens["prompt"]
    assert seen["generation_tokens_total"] == crowd.tokens["completion"]
    assert seen.under("request_success_total", "finished_reason") == crowd.reasons
    statuses = seen.under("http_requests_total", "status")
    assert statuses["400"] == crowd.statuses["400"] > 0
    posts = sum(
        value for (name, labels), value in seen.samples.items()
        if name == "headrace:http_requests_total" and ("route", "/v1/completions") in labels
    )  # fmt: skip
    assert posts == CALLERS * REQUESTS
    assert seen.histogram("e2e_request_latency_seconds")[0] == crowd.statuses["200"]


@pytest.mark.long
def test_many_clients_of_which_some_disconnect(server: TinyServer) -> None:
    before = quiet(server)
    crowd = Crowd(server, leaving=True)
    seen = quiet(server).since(before)
    assert crowd.reasons["abort"] > 10
    ended = seen.under("request_success_total", "finished_reason")
    assert sum(ended.values()) == crowd.reasons.total()
    # Who leaves while the last tokens are on their way has a finished request.
    assert 0 < ended["abort"] <= crowd.reasons["abort"]
    assert ended["length"] >= crowd.reasons["length"]
    assert seen["generation_tokens_total"] > crowd.tokens["completion"]  # and what those got who left
    assert seen.histogram("e2e_request_latency_seconds")[0] == crowd.statuses["200"]
    now = quiet(server)
    assert now["num_requests_running"] == now["num_requests_waiting"] == now["kv_cache_usage_perc"] == 0


def test_preemptions_and_evictions() -> None:
    server = TinyServer(num_blocks=20)
    try:
        before = Scrape.take(server.http)
        body = {"prompt": [[number] * 16 for number in range(1, 9)], "max_tokens": 60, "explain": True}
        prompts = server.http.post("/v1/completions", json=body).json()["usage"]["headrace"]["prompts"]
        seen, stats = Scrape.take(server.http).since(before), server.stats()
        assert seen["num_preemptions_total"] == sum(one["preemptions"] for one in prompts) > 0
        assert stats.cache is not None
        assert seen["prefix_cache_evictions_total"] == stats.cache.evictions > 0
        assert seen["prefix_cache_queries_total"] == stats.cache.queries
        assert seen["prefix_cache_hits_total"] == stats.cache.hits
        assert seen.under("prefix_cache_lookups_total", "reason") == stats.cache.misses
        assert seen.histogram("iteration_tokens_total") == (
            stats.scheduler.steps,
            stats.scheduler.scheduled_tokens,
        )
    finally:
        server.close()
