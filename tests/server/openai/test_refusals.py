"""What a server must survive: bad bodies, too much of everything, callers who leave, an engine that dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from headrace.server.http import errors
from headrace.server.http.errors import describe
from tests.server.conftest import MAX_BODY_BYTES, MAX_IN_FLIGHT, TinyServer
from tests.serving.tiny_engine import CRASH, FAIL
from tests.waiting import until


def post(tiny: TinyServer, body: bytes, path: str = "/v1/completions", **headers: str) -> tuple[int, Any]:
    answer = tiny.http.post(path, content=body, headers={"Content-Type": "application/json"} | headers)
    return answer.status_code, answer.json()


BAD = [
    b"", b"{", b"[]", b"7", b"null", b'"x"', b"\xff\xfe", b"[" * 50_000, b'{"a":' * 20_000, b"{}",
    b'{"prompt": 1' + b"0" * 5000 + b"}",
    b'{"prompt": null}', b'{"prompt": []}', b'{"prompt": {}}', b'{"prompt": [1, "a"]}', b'{"prompt": ["a", 1]}',
    b'{"prompt": [[1], "a"]}', b'{"prompt": [1.5]}', b'{"prompt": [true]}', b'{"prompt": [-1]}',
    b'{"prompt": [2048]}', b'{"prompt": [99999999999999999999999]}', b'{"prompt": [[]]}',
    b'{"prompt": "\\ud800"}', b'{"prompt": [1], "user": "\\ud800"}', b'{"prompt": [1], "stop": "\\ud800"}',
    b'{"prompt": [1], "model": 7}', b'{"prompt": [1], "stop": [""]}', b'{"prompt": [1], "stop": [1]}',
    b'{"prompt": [1], "stop": {"a": 1}}', b'{"prompt": [1], "stop_token_ids": [2048]}',
    b'{"prompt": [1], "allowed_token_ids": []}', b'{"prompt": [1], "logit_bias": [1]}',
    b'{"prompt": [1], "logit_bias": {"x": 1}}', b'{"prompt": [1], "logit_bias": {"5": "x"}}',
    b'{"prompt": [1], "logit_bias": {"5": 1e999}}', b'{"prompt": [1], "logit_bias": {"9999": 1}}',
    b'{"prompt": [1], "max_tokens": 0}', b'{"prompt": [1], "max_tokens": 1.5}', b'{"prompt": [1], "max_tokens": 512}',
    b'{"prompt": [1], "min_tokens": 20, "max_tokens": 10}', b'{"prompt": [1], "stream": "yes"}',
    b'{"prompt": [1], "stream_options": {"include_usage": true}}', b'{"prompt": [1], "echo": 1}',
    b'{"prompt": [1], "suffix": "x"}', b'{"prompt": [1], "best_of": 3}',
    b'{"prompt": [1], "cache_salt": "' + b"x" * 1100 + b'"}', b'{"prompt": [1], "priority": 1e300}',
    *(
        json.dumps({"prompt": [1], name: value}).encode()
        for name, values in {
            "n": [0, 129, "2", True],
            "temperature": [-1, 101, float("nan"), float("inf"), "1"],
            "top_p": [0, 1.1, float("nan")],
            "top_k": [-2, 2**40, 0.5],
            "min_p": [-0.1, 1.1],
            "seed": [2**63, -(2**63) - 1, "x"],
            "presence_penalty": [2.1, -2.1],
            "frequency_penalty": [2.1, float("nan")],
            "repetition_penalty": [0, 1e-38, 101],
            "logprobs": [-1, 65],
        }.items()
        for value in values
    ),
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_bad_bodies(tiny: TinyServer, body: bytes) -> None:
    status, answer = post(tiny, body)
    assert status == 400
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and 5 < len(error["message"]) <= 2000


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"prompt": "\xff"}', "the body is not UTF-8 text: invalid start byte at byte 12"),
        (b"[" * 50_000, "the body is nested too deep"),
        (b'{"prompt": 1' + b"0" * 5000 + b"}", "the body is not valid JSON: it cannot be parsed, for example because"),
        (b'{"prompt": [1], "model": "' + b"x" * 5000 + b'"}', "model: string should have at most"),
    ],
)  # fmt: skip
def test_a_fault_of_the_parser_is_named(tiny: TinyServer, body: bytes, said: str) -> None:
    status, answer = post(tiny, body)
    assert status == 400 and answer["error"]["code"] == "invalid_request"
    assert answer["error"]["message"].startswith(said)


def test_a_million_errors_are_reported_as_one(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation stops at the first fault: the work does not grow with their number."""
    found: list[int] = []

    def count(faults: Sequence[Any]) -> tuple[str, str | None]:
        found.append(len(faults))
        return describe(faults)

    monkeypatch.setattr(errors, "describe", count)
    for field in ("prompt", "stop", "stop_token_ids", "messages"):
        body = json.dumps({"prompt": [1], field: [[]] * 20_000}).encode()
        path = "/v1/chat/completions" if field == "messages" else "/v1/completions"
        status, answer = post(tiny, body, path)
        assert status == 400 and len(answer["error"]["message"]) < 300
    assert found == [1, 1, 1, 1]


def test_streams_are_refused_before_they_begin(tiny: TinyServer) -> None:
    with pytest.raises(openai.BadRequestError):
        tiny.openai.completions.create(model="tiny", prompt=[5000], stream=True)


def test_prompts_too_long(tiny: TinyServer) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        tiny.openai.completions.create(model="tiny", prompt=[1] * 512, max_tokens=1)
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model(tiny: TinyServer) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        tiny.openai.completions.create(model="other", prompt="x")
    assert caught.value.code == "model_not_found"


def test_bodies_too_large(tiny: TinyServer) -> None:
    status, answer = post(tiny, b" " * (MAX_BODY_BYTES + 1))
    assert status == 413 and answer["error"]["code"] == "request_too_large"

    def parts() -> Any:
        for _ in range(20):
            yield b" " * (MAX_BODY_BYTES // 10)

    answer = tiny.http.post("/v1/completions", content=parts(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413  # found while it is read: its length was not announced
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405), ("DELETE", "/health", 405)],
)
def test_other_paths(tiny: TinyServer, method: str, path: str, status: int) -> None:
    answer = tiny.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_too_many_at_once(tiny: TinyServer) -> None:
    prompts = [[1]] * (MAX_IN_FLIGHT + 1)
    answer = tiny.http.post("/v1/completions", json={"prompt": prompts, "max_tokens": 300})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "rate_limit_error"
    until(lambda: tiny.idle)  # those that had been accepted were taken back


def test_one_sequence_that_fails(tiny: TinyServer) -> None:
    with pytest.raises(openai.InternalServerError, match="failed this sequence"):
        tiny.openai.completions.create(model="tiny", prompt=[FAIL])
    with pytest.raises(openai.APIError, match="failed this sequence"):
        list(tiny.openai.completions.create(model="tiny", prompt=[FAIL], stream=True))
    # The other prompts of the same request end with it.
    with pytest.raises(openai.InternalServerError):
        tiny.openai.completions.create(model="tiny", prompt=[[1], [FAIL], [2]], max_tokens=400)
    until(lambda: tiny.idle)
    assert tiny.openai.completions.create(model="tiny", prompt=[1], max_tokens=1).choices


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompts", [[[1]], [[1], [2], [3]]])
def test_a_disconnect_frees_the_cache(tiny: TinyServer, stream: bool, prompts: list[list[int]]) -> None:
    until(lambda: tiny.idle)
    body = json.dumps({"prompt": prompts, "max_tokens": 500, "stream": stream, "n": 2}).encode()
    host, port = tiny.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as caller:
        caller.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        until(lambda: tiny.stats().running == 2 * len(prompts))
        if stream:
            assert caller.recv(100).startswith(b"HTTP/1.1 200")
    before = tiny.stats().scheduler.output_tokens
    until(lambda: tiny.idle)
    assert tiny.stats().scheduler.output_tokens - before < 300 * len(prompts)


def test_a_dead_engine(doomed: TinyServer) -> None:
    outcomes: list[object] = []

    def stream() -> None:
        try:
            outcomes.append(
                list(doomed.openai.completions.create(model="tiny", prompt=[1], max_tokens=400, stream=True))
            )
        except openai.APIError as error:
            outcomes.append(error)

    def whole() -> None:
        try:
            outcomes.append(doomed.openai.completions.create(model="tiny", prompt=[1], max_tokens=400))
        except openai.APIError as error:
            outcomes.append(error)

    callers = [threading.Thread(target=target) for target in (stream, whole, stream)]
    for caller in callers:
        caller.start()
    until(lambda: doomed.stats().running == 3)
    os.kill(doomed.client.pid, signal.SIGKILL)
    for caller in callers:
        caller.join(60)
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert isinstance(outcome, openai.APIError) and "killed by SIGKILL" in str(outcome)
    assert doomed.http.get("/health").status_code == 503
    with pytest.raises(openai.InternalServerError) as caught:
        doomed.openai.completions.create(model="tiny", prompt=[1])
    assert caught.value.status_code == 503 and caught.value.code == "engine_dead"


def test_a_crashing_executor(doomed: TinyServer) -> None:
    with pytest.raises(openai.InternalServerError, match="ended in a step that failed"):
        doomed.openai.completions.create(model="tiny", prompt=[CRASH])
    assert doomed.http.get("/health").json()["status"] == "engine dead"
