"""Headers of every answer: no type sniffing, no caching, no version, and a request id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import FastAPI, Response
from starlette.types import ASGIApp, Message, Scope

from headrace.server.http import errors
from headrace.server.http.headers import MAX_REQUEST_ID_CHARS, request_id
from headrace.server.observability.observer import Observer
from headrace.server.requests.tallies import Tallies
from headrace.server.ui import page
from tests.server.conftest import TinyServer
from tests.server.observability.test_logs import line_of, lines  # noqa: F401  # a fixture
from tests.server.raw_http import answer, connect
from tests.serving.tiny_engine import FAIL

MADE = re.compile(r"req_[0-9a-f]{32}")
BODY = {"prompt": [1], "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}

REQUESTS: dict[str, tuple[str, str, object]] = {
    "completion": ("POST", "/v1/completions", BODY),
    "stream": ("POST", "/v1/completions", BODY | {"stream": True}),
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "chat stream": ("POST", "/v1/chat/completions", CHAT | {"stream": True}),
    "response": ("POST", "/v1/responses", {"input": "a", "max_output_tokens": 3}),
    "response stream": ("POST", "/v1/responses", {"input": "a", "max_output_tokens": 3, "stream": True}),
    "stored response": ("GET", "/v1/responses/resp_0", None),
    "message": ("POST", "/v1/messages", CHAT),
    "message stream": ("POST", "/v1/messages", CHAT | {"stream": True}),
    "tokens of a message": ("POST", "/v1/messages/count_tokens", CHAT),
    "lines of a chat": ("POST", "/api/chat", {"messages": CHAT["messages"], "options": {"num_predict": 3}}),
    "lines of a text": ("POST", "/api/generate", {"prompt": "a", "options": {"num_predict": 3}}),
    "bad lines": ("POST", "/api/chat", {"messages": 7}),
    "vectors": ("POST", "/api/embed", {"input": "a"}),
    "a vector": ("POST", "/api/embeddings", {"prompt": "a"}),
    "a model": ("POST", "/api/show", {"model": "tiny"}),
    "local models": ("GET", "/api/tags", None),
    "loaded models": ("GET", "/api/ps", None),
    "version of the API": ("GET", "/api/version", None),
    "bad message": ("POST", "/v1/messages", {"messages": []}),
    "embedding": ("POST", "/v1/embeddings", {"input": "a"}),
    "tokens": ("POST", "/tokenize", {"prompt": "a"}),
    "text": ("POST", "/detokenize", {"tokens": [5]}),
    "models": ("GET", "/v1/models", None),
    "metrics": ("GET", "/metrics", None),
    "usage": ("GET", "/usage", None),
    "health": ("GET", "/health", None),
    "openapi": ("GET", "/openapi.json", None),
    "docs": ("GET", "/docs", None),
    "page": ("GET", "/", None),
    "script": ("GET", "/page/app.js", None),
    "bad body": ("POST", "/v1/completions", {"prompt": {}}),
    "no route": ("GET", "/nowhere", None),
    "wrong method": ("PUT", "/v1/models", None),
    "failure": ("POST", "/v1/completions", {"prompt": [FAIL]}),
    "too large": ("POST", "/v1/completions", {"prompt": "a" * 200_000}),
}


def faults(answer: httpx.Response) -> list[str]:
    """What is wrong with the headers of an answer."""
    headers, found = answer.headers, []
    if headers.get("x-content-type-options") != "nosniff":
        found.append("its type may be guessed")
    public = answer.request.url.path in ("/", "/docs") or answer.request.url.path.startswith("/page/")
    if headers.get("cache-control") != ("no-cache" if public and answer.status_code == 200 else "no-store"):
        found.append(f"it may be kept: {headers.get('cache-control')}")
    if "text/html" in headers.get("content-type", "") and "frame-ancestors 'none'" not in headers.get(
        "content-security-policy", ""
    ):
        found.append("it may be framed")
    if {"server", "x-powered-by", "via"} & set(headers):
        found.append("it says what made it")
    if not MADE.fullmatch(headers.get("x-request-id", "")):
        found.append("it has no name of ours")
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_headers_of_every_answer(tiny: TinyServer, name: str) -> None:
    method, path, body = REQUESTS[name]
    assert faults(tiny.http.request(method, path, json=body)) == []


def test_every_documented_route_is_asked(tiny: TinyServer) -> None:
    asked = {path for _, path, _ in REQUESTS.values()}
    documented = set(tiny.app.openapi()["paths"]) - {"/ready", "/version", "/live", "/v1/models/{name}"}
    assert {path.replace("{response_id}", "resp_0") for path in documented} <= asked
    for path in ("/ready", "/version", "/v1/models/tiny"):
        assert faults(tiny.http.get(path)) == []
    with tiny.http.stream("GET", "/live") as live:
        assert faults(live) == []


def test_invalid_requests_get_the_same_headers(tiny: TinyServer) -> None:
    with connect(tiny.url) as caller:
        caller.sendall(b"nonsense\r\n\r\n")
        headers = answer(caller).headers
    assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
    assert "server" not in headers


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-content-type-options", None), ("cache-control", "public"), ("server", "headrace/1"), ("x-request-id", "x")],
)  # fmt: skip
def test_the_check_finds_planted_headers(tiny: TinyServer, name: str, value: str | None) -> None:
    answer = tiny.http.get("/v1/models")
    assert faults(answer) == []
    answer.headers.pop(name, None)
    if value is not None:
        answer.headers[name] = value
    assert faults(answer)


def test_the_check_finds_a_page_that_may_be_framed(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = page.HEADERS["Content-Security-Policy"].replace("frame-ancestors 'none'; ", "")
    monkeypatch.setitem(page.HEADERS, "Content-Security-Policy", policy)
    assert faults(tiny.http.get("/")) == ["it may be framed"]


# ---- Names of requests ----


@pytest.mark.parametrize(
    "name", ["a", "7", "0af7651916cd43dd", "user@host:1/2+3=", "x" * MAX_REQUEST_ID_CHARS]
)
def test_a_plain_request_id_is_kept(tiny: TinyServer, name: str) -> None:
    for path in ("/v1/models", "/nowhere"):
        assert tiny.http.get(path, headers={"X-Request-Id": name}).headers["x-request-id"] == name


ODD = {
    "empty": b"", "long": b"x" * (MAX_REQUEST_ID_CHARS + 1), "space": b"a b", "tab": b"a\tb", "quote": b'a"b',
    "markup": b"<script>", "percent": b"%0d%0aSet-Cookie:a", "brace": b"{a}", "latin": b"\xe9", "utf-8": "é".encode(),
    "backslash": b"a\\b", "comma": b"a,b", "semicolon": b"a;b", "dollar": b"$(a)", "backtick": b"`a`",
}  # fmt: skip


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_request_id_is_replaced(tiny: TinyServer, kind: str) -> None:
    answer = tiny.http.get("/v1/models", headers={b"X-Request-Id": ODD[kind]})
    assert answer.status_code == 200 and MADE.fullmatch(answer.headers["x-request-id"])


def test_two_request_ids_are_ignored(tiny: TinyServer) -> None:
    answer = tiny.http.get("/health", headers=[("X-Request-Id", "a"), ("X-Request-Id", "a")])
    assert MADE.fullmatch(answer.headers["x-request-id"])


def test_requests_with_one_id_are_not_mixed_up(tiny: TinyServer) -> None:
    """The name is for people; what a request is to the engine is the server's own choice."""

    def ask(first: int) -> tuple[str, str]:
        body = {"prompt": [first], "max_tokens": 8, "logprobs": 0}
        got = tiny.http.post("/v1/completions", json=body, headers={"X-Request-Id": "same"})
        assert got.status_code == 200 and got.headers["x-request-id"] == "same"
        return got.json()["id"], got.json()["choices"][0]["text"]

    alone = [ask(first)[1] for first in range(100, 800, 50)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, range(100, 800, 50)))
    assert [text for _, text in together] == alone and len(set(alone)) > 10
    assert len({name for name, _ in together}) == len(together)


def test_the_log_has_the_request_id(tiny: TinyServer, lines: list[dict[str, object]]) -> None:  # noqa: F811
    tiny.http.post("/v1/completions", json=BODY, headers={"X-Request-Id": "order-7"})
    assert line_of(lines)["request_id"] == "order-7"


def headers_of(app: ASGIApp, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": "/fails",
        "query_string": b"",
        "headers": headers,
    }
    with contextlib.suppress(RuntimeError):  # raised again for the log, after the answer
        asyncio.run(app(scope, receive, send))
    assert json.loads(sent[1]["body"])["error"]["code"] == "internal_error"
    return list(sent[0]["headers"])


def test_internal_errors_get_the_same_headers() -> None:
    """An answer that is made outside of all middleware."""
    app = FastAPI()
    app.add_middleware(Observer, tallies=Tallies(), sinks=())
    errors.install(app)

    @app.get("/fails")
    async def fails() -> Response:
        raise RuntimeError("a bug")

    sent = headers_of(app, [(b"x-request-id", b"order-7")])
    assert (b"x-request-id", b"order-7") in sent and (b"cache-control", b"no-store") in sent


def test_new_request_ids_are_unique() -> None:
    assert len({request_id([]) for _ in range(1000)}) == 1000
