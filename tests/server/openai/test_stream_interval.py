"""With a stream interval, tokens of several steps travel in one event; without one, each travels by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.server_metrics import ServerMetrics
from tests.server.conftest import TinyServer

TOKENS = 40


def events(server: TinyServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = server.http.post("/v1/completions", json=body | {"stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("interval_s", "count"), [(10.0, 2), (0.0, TOKENS)])
def test_events_of_a_stream(interval_s: float, count: int) -> None:
    """The interval outlasts the answer: the first token comes at once, and the rest with the last."""
    server = TinyServer(stream_interval_s=interval_s)
    try:
        body = {"prompt": [7], "max_tokens": TOKENS, "logprobs": 1, "stop": ["never"]}
        before = ServerMetrics(server.http.get("/metrics").text)
        choices = [event["choices"][0] for event in events(server, body)]
        after = ServerMetrics(server.http.get("/metrics").text)
        whole = server.http.post("/v1/completions", json=body).json()["choices"][0]
    finally:
        server.close()
    assert len(choices) == count
    assert "".join(one["text"] for one in choices) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [value for one in choices for value in one["logprobs"][name]] == values
    gaps = "inter_token_latency_seconds_count"
    assert after.value(gaps) - before.value(gaps) == count - 1, "a gap for each event, none of zero length"
