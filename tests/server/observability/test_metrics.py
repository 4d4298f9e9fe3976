"""/metrics against the clients' counts: counts exactly, times between bounds that the clients' clocks give."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.server.requests import record as record_module
from headrace.server.requests.tallies import Tallies
from tests.server.conftest import ServeProcess, TinyServer
from tests.server.observability.scrape import PREFIX, Scrape
from tests.serving.tiny_engine import FAIL
from tests.waiting import LONG_S

TIMES = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds",
)  # fmt: skip
SLACK_S = 0.002
"""Two processes' views of one event differ by at most about this, per request, on a machine that is not idle."""


class Client:
    """Counts and times what it sends and gets."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.answers: list[dict[str, Any]] = []
        self.seconds: list[float] = []
        self.first_s: list[float] = []

    def whole(self, **body: object) -> dict[str, Any]:
        begun = time.monotonic()
        answer = self._http.post("/v1/completions", json=body).json()
        self.seconds.append(time.monotonic() - begun)
        self.answers.append(answer)
        return dict(answer)

    def streamed(self, **body: object) -> None:
        begun = time.monotonic()
        first = 0.0
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer: dict[str, Any] = {"choices": []}
        with self._http.stream("POST", "/v1/completions", json=body) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    first = first or time.monotonic() - begun
                    chunk = json.loads(line.removeprefix("data: "))
                    answer["usage"] = chunk["usage"]
                    answer["choices"] += [one for one in chunk["choices"] if one["finish_reason"]]
        self.seconds.append(time.monotonic() - begun)
        self.first_s.append(first)
        self.answers.append(answer)

    def used(self, *path: str) -> int:
        """A number of the usage block, summed over all answers."""
        total = 0
        for answer in self.answers:
            found: Any = answer["usage"]
            for part in path:
                found = found[part]
            total += int(found)
        return total

    @property
    def reasons(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for answer in self.answers:
            for choice in answer["choices"]:
                found[choice["finish_reason"]] = found.get(choice["finish_reason"], 0) + 1
        return found


@pytest.fixture
def http(tale: ServeProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tale.url, timeout=60) as client:
        yield client


def known_work(http: httpx.Client) -> Client:
    client = Client(http)
    story = "Once upon a time there was a fox who lived beside a mill. " * 5
    for number in range(3):
        client.whole(prompt=f"{story}{number}", max_tokens=7 + number, ignore_eos=True)
        client.streamed(prompt=f"{story}{number}", max_tokens=20, ignore_eos=True)
    client.whole(prompt=["One fox", "Two foxes and a bear"], n=2, max_tokens=5, ignore_eos=True)
    client.streamed(prompt="The duck wanted a drum", n=3, max_tokens=6, ignore_eos=True)
    client.whole(prompt="A bear went", max_tokens=200, stop=["e"])
    return client


def test_counts_equal_the_clients_counts(http: httpx.Client) -> None:
    before = Scrape.take(http)
    client = known_work(http)
    seen = Scrape.since_then(http, before, len(client.answers))
    prompts, completions = 10, 6 + 4 + 3 + 1
    computed = client.used("prompt_tokens") - client.used("prompt_tokens_details", "cached_tokens")
    assert seen["prompt_tokens_total"] == client.used("prompt_tokens")
    assert seen["generation_tokens_total"] == client.used("completion_tokens")
    assert seen["prompt_tokens_cached_total"] == client.used("prompt_tokens_details", "cached_tokens") > 0
    assert seen.under("request_success_total", "finished_reason") == client.reasons
    assert set(client.reasons) == {"length", "stop"}
    assert seen.histogram("request_prompt_tokens") == (prompts, client.used("prompt_tokens"))
    assert seen.histogram("request_prefill_kv_computed_tokens") == (prompts, computed)
    assert seen.histogram("request_generation_tokens") == (completions, client.used("completion_tokens"))
    assert seen.histogram("request_params_n") == (prompts, 6 + 2 + 2 + 3 + 1)
    assert seen.histogram("request_params_max_tokens") == (prompts, 7 + 8 + 9 + 60 + 10 + 6 + 200)
    stopped = client.answers[-1]["usage"]["completion_tokens"]
    assert seen.histogram("request_max_num_generation_tokens") == (prompts, 24 + 60 + 10 + 6 + stopped)
    routes = {dict(labels)["route"]: value for (name, labels), value in seen.samples.items()
              if name == f"{PREFIX}http_requests_total" and value}  # fmt: skip
    assert routes["/v1/completions"] == len(client.answers)


def test_the_engine_counts_the_same(http: httpx.Client) -> None:
    before = Scrape.take(http)
    client = known_work(http)
    seen = Scrape.since_then(http, before, len(client.answers))
    steps, scheduled = seen.histogram("iteration_tokens_total")
    cached = client.used("prompt_tokens_details", "cached_tokens")
    # Every token is computed once, but the last of each completion; the n completions of a prompt share its last block.
    least = client.used("prompt_tokens") - cached + client.used("completion_tokens") - 14
    assert least <= scheduled <= least + 7 * 64
    assert 20 < steps <= scheduled
    assert seen["prefix_cache_hits_total"] >= cached
    assert seen["prefix_cache_queries_total"] >= client.used("prompt_tokens")
    assert sum(seen.under("prefix_cache_lookups_total", "reason").values()) >= 10
    now = Scrape.take(http)
    assert now["num_requests_running"] == now["num_requests_waiting"] == now["kv_cache_usage_perc"] == 0
    assert now.under("engine_state", "state") == {"ready": 1}
    assert now["engine_restarts_total"] == 0
    assert now["queue_completions"] == now["queue_tokens"] == 0
    assert now["queue_max_completions"] == 2048


def test_times_agree_with_the_clients_clocks(http: httpx.Client) -> None:
    before = Scrape.take(http)
    client = known_work(http)
    seen = Scrape.since_then(http, before, len(client.answers))
    sums = {name: seen.histogram(name) for name in TIMES}
    requests, tokens = len(client.answers), client.used("completion_tokens")
    assert {name: count for name, (count, _) in sums.items()} == {
        "time_to_first_token_seconds": requests,
        "inter_token_latency_seconds": tokens - 14,
        "e2e_request_latency_seconds": requests,
        "request_time_per_output_token_seconds": 10,
        "request_queue_time_seconds": 10,
        "request_prefill_time_seconds": 10,
        "request_decode_time_seconds": 10,
        "request_inference_time_seconds": 10,
    }
    seconds = {name: total for name, (_, total) in sums.items()}
    slack = SLACK_S * requests
    # A client waits for the server, so nothing on the server's side takes longer than the client measured.
    assert 0 < seconds["e2e_request_latency_seconds"] < sum(client.seconds)
    assert seconds["time_to_first_token_seconds"] < seconds["e2e_request_latency_seconds"]
    inference = seconds["request_prefill_time_seconds"] + seconds["request_decode_time_seconds"]
    assert seconds["request_inference_time_seconds"] == pytest.approx(inference)
    # One request has two prompts, which run at the same time.
    assert (
        inference + seconds["request_queue_time_seconds"]
        < 1.5 * seconds["e2e_request_latency_seconds"] + slack
    )
    assert seconds["request_time_per_output_token_seconds"] < seconds["request_decode_time_seconds"]


def test_embeddings_count_as_prompts(http: httpx.Client) -> None:
    before = Scrape.take(http)
    inputs = ["A fox beside a mill", "A duck with a drum", "A fox beside a mill"]
    usage = http.post("/v1/embeddings", json={"input": inputs}).json()["usage"]
    seen = Scrape.take(http).since(before)
    assert seen["prompt_tokens_total"] == usage["prompt_tokens"] > 0
    assert seen["prompt_tokens_cached_total"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert seen["generation_tokens_total"] == 0 and not seen.under("request_success_total", "finished_reason")


def test_first_tokens_of_streams(http: httpx.Client) -> None:
    """Streams alone: what the server calls TTFT is a little less than what their readers see."""
    before, client = Scrape.take(http), Client(http)
    for number in range(5):
        client.streamed(prompt=f"{number} ducks went to the mill", max_tokens=30, ignore_eos=True)
    seen = Scrape.since_then(http, before, 5)
    _, ttft = seen.histogram("time_to_first_token_seconds")
    assert 0.1 * sum(client.first_s) < ttft < sum(client.first_s)
    _, itl = seen.histogram("inter_token_latency_seconds")
    _, e2e = seen.histogram("e2e_request_latency_seconds")
    assert 0.6 * e2e < ttft + itl < e2e


def test_a_planted_double_count_is_noticed(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison of counts would fail if the server counted a token twice."""
    body = {"prompt": [5, 6, 7], "max_tokens": 9}

    def counted() -> tuple[float, int]:
        before = Scrape.take(tiny.http)
        answer = tiny.http.post("/v1/completions", json=body).json()
        seen = Scrape.take(tiny.http).since(before)
        return seen["generation_tokens_total"], answer["usage"]["completion_tokens"]

    assert counted() == (9, 9)
    on_delta = record_module.RequestRecord.on_delta

    def twice(record: record_module.RequestRecord, number: int, delta: Any) -> None:
        on_delta(record, number, delta)
        record.tallies.generation_tokens += len(delta.token_ids)

    monkeypatch.setattr(record_module.RequestRecord, "on_delta", twice)
    assert counted() == (18, 9)


@pytest.mark.parametrize("openmetrics", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_scrape_during_load_can_be_parsed(tiny: TinyServer, openmetrics: bool) -> None:
    def load() -> None:
        for number in range(6):
            tiny.http.post("/v1/completions", json={"prompt": [number + 1] * 60, "max_tokens": 100, "n": 3})

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    busy = 0.0
    last = Scrape({})
    while any(thread.is_alive() for thread in threads):
        now = Scrape.take(tiny.http, openmetrics)
        busy = max(busy, now["num_requests_running"])
        counters = [key for key in now.samples if key[0].endswith(("_total", "_count", "_bucket"))]
        fell = [key for key in counters if now.samples[key] < last.samples.get(key, 0)]
        assert not fell
        last = now
    assert busy > 1 and 0 <= last["kv_cache_usage_perc"] <= 1
    assert tiny.idle


def test_a_disconnect_counts_as_an_abort(tiny: TinyServer) -> None:
    before = Scrape.take(tiny.http)
    body = {"prompt": [3] * 10, "max_tokens": 400, "stream": True}
    with tiny.http.stream("POST", "/v1/completions", json=body) as response:
        for number, _ in enumerate(response.iter_lines()):
            if number > 20:
                break
    deadline = time.monotonic() + LONG_S
    while not (seen := Scrape.take(tiny.http).since(before)).under(
        "request_success_total", "finished_reason"
    ):
        assert time.monotonic() < deadline
    assert seen.under("request_success_total", "finished_reason") == {"abort": 1}
    assert seen["prompt_tokens_total"] == 10
    assert 10 <= seen["generation_tokens_total"] < 400
    assert seen.histogram("request_generation_tokens") == (1, seen["generation_tokens_total"])


def test_failures_and_refusals(tiny: TinyServer) -> None:
    before = Scrape.take(tiny.http)
    assert tiny.http.post("/v1/completions", json={"prompt": [FAIL], "max_tokens": 4}).status_code == 500
    late = {"prompt": [1], "max_tokens": 400, "timeout": 0.05}
    assert tiny.http.post("/v1/completions", json=late).status_code == 504
    assert tiny.http.post("/v1/completions", json={"prompt": [1] * 600}).status_code == 400
    assert tiny.http.post("/v1/completions", json={"prompt": []}).status_code == 400
    assert tiny.http.get("/nowhere/at/all").status_code == 404
    seen = Scrape.take(tiny.http).since(before)
    assert seen.under("request_success_total", "finished_reason") == {"error": 1, "timeout": 1}
    statuses = seen.under("http_requests_total", "status")
    assert {status: statuses.get(status) for status in ("400", "404", "500", "504")} == {
        "400": 2, "404": 1, "500": 1, "504": 1,
    }  # fmt: skip
    assert seen.get("http_requests_total", route="none", method="GET", status="404") == 1


def test_all_of_the_tallies_are_shown(tiny: TinyServer) -> None:
    """A tally that no metric reads would be counted for nothing."""
    read: set[str] = set()

    class Watched:
        def __getattribute__(self, name: str) -> object:
            read.add(name)
            return getattr(TALLIES, name)

    TALLIES = Tallies()
    monitor = tiny.app.state.monitor
    sources = monitor.sources
    try:
        object.__setattr__(sources, "tallies", Watched())
        monitor.read()
    finally:
        object.__setattr__(sources, "tallies", monitor.tallies)
    assert read >= vars(TALLIES).keys() - {"recent_ttft", "recent_itl"}  # which GET /live shows
