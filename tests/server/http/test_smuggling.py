"""Requests that two readers would read differently, odd targets and headers: one reading, or none."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from headrace.server.access.keys import Caller
from tests.server.conftest import TinyServer
from tests.server.keyring import keyed, secret
from tests.server.leaks import leaks
from tests.server.raw_http import Answer, answer, connect, ended, post, read_all, works
from tests.waiting import until

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Hidden: yes\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def exchange(tiny: TinyServer, sent: bytes) -> tuple[Answer, bool]:
    """(the answer, the connection ends after it)."""
    with connect(tiny.url) as caller:
        caller.sendall(sent)
        first = answer(caller)
        return first, ended(caller, 0.3)


AMBIGUOUS = {
    "both": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "both the other way": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 80\r\n\r\n{}" + HIDDEN,
    "a list of lengths": POST + b"Content-Length: 2, 80\r\n\r\n{}" + HIDDEN,
    "signed": POST + b"Content-Length: +2\r\n\r\n{}" + HIDDEN,
    "negative": POST + b"Content-Length: -2\r\n\r\n{}" + HIDDEN,
    "hexadecimal": POST + b"Content-Length: 0x2\r\n\r\n{}" + HIDDEN,
    "huge": POST + b"Content-Length: 99999999999999999999999\r\n\r\n{}" + HIDDEN,
    "no length": POST + b"Content-Length: \r\n\r\n{}" + HIDDEN,
    "chunked, not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    "another coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "two hosts": POST + b"Host: other\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "no host": POST.replace(b"Host: localhost\r\n", b"") + b"Content-Length: 2\r\n\r\n{}" + HIDDEN,
    "HTTP/0.9": b"GET /health\r\n\r\n" + HIDDEN,
    "line feeds": POST.replace(b"\r\n", b"\n") + b"Content-Length: 2\n\n{}" + HIDDEN,
    "a line feed after a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\n0\r\n\r\n" + HIDDEN,
    "a line feed in a chunk extension": POST + b"Transfer-Encoding: chunked\r\n\r\n2;a\nb\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded": POST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "bare carriage return": POST + b"X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "zero byte": POST + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk size too large": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}" + HIDDEN,
    "chunk longer than stated": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n" + HIDDEN,
}  # fmt: skip


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_ambiguous_requests_are_refused_and_nothing_after_them_is_read(tiny: TinyServer, kind: str) -> None:
    refusal, closed = exchange(tiny, AMBIGUOUS[kind])
    assert refusal.status == 400 and refusal.error["type"] == "invalid_request_error"
    assert closed and refusal.closed
    works(tiny)


def test_the_hidden_request_would_be_answered(tiny: TinyServer) -> None:
    """Proof that the test above can fail: after an unambiguous request, the next one is served."""
    with connect(tiny.url) as caller:
        caller.sendall(POST + b"Content-Length: 2\r\n\r\n{}" + HIDDEN)
        assert answer(caller).status == 400 and b"tiny" in answer(caller).body


UPGRADES = {
    "Java": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n",
    "websocket": b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "any token": b"Upgrade: TLS/1.0, foo/2\r\nConnection: keep-alive, upgrade\r\n",
}


def prompted(upgrade: bytes, chunked: bool) -> tuple[bytes, bytes]:
    """(head, body) of a completion request that asks for another protocol."""
    body = json.dumps({"model": "tiny", "prompt": [7, 8, 9], "max_tokens": 1}).encode()
    if chunked:
        parts = b"%x\r\n%b\r\n" % (10, body[:10]) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) - 10, body[10:])
        return POST + upgrade + b"Transfer-Encoding: chunked\r\n\r\n", parts
    return POST + upgrade + b"Content-Length: %d\r\n\r\n" % len(body), body


def prompt_tokens(got: Answer) -> int:
    assert got.status == 200, got
    return int(json.loads(got.body)["usage"]["prompt_tokens"])


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_an_upgrade_is_ignored_and_the_body_read(tiny: TinyServer, upgrade: str, chunked: bool) -> None:
    """The head and the body together, and the body in a later packet; one answer each, and the connection lives."""
    head, body = prompted(UPGRADES[upgrade], chunked)
    with connect(tiny.url) as caller:
        caller.sendall(head + body)
        assert prompt_tokens(answer(caller)) == 3
        caller.sendall(head)
        assert not ended(caller, 0.05)  # nothing comes before the body
        caller.settimeout(10)
        caller.sendall(body)
        assert prompt_tokens(answer(caller)) == 3
        caller.sendall(head + body + HEALTH)  # pipelined: the next request is a request
        assert prompt_tokens(answer(caller)) == 3
        assert json.loads(answer(caller).body)["status"] == "ok"
        assert not ended(caller, 0.05)


@pytest.mark.parametrize("chunked", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_upgrade_split_at_every_byte(tiny: TinyServer, chunked: bool) -> None:
    head, body = prompted(UPGRADES["Java"], chunked)
    whole = head + body
    with connect(tiny.url) as caller:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(whole)):
            caller.sendall(whole[:cut])
            tiny.call(_turns(tiny))  # so that both pieces are read apart
            caller.sendall(whole[cut:])
            assert prompt_tokens(answer(caller)) == 3, cut
        assert not ended(caller, 0.05)


async def _turns(tiny: TinyServer) -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_an_upgrade_without_a_body(tiny: TinyServer) -> None:
    with connect(tiny.url) as caller:
        for _ in range(3):
            caller.sendall(
                b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + UPGRADES["websocket"] + b"\r\n" + HEALTH
            )
            assert [json.loads(answer(caller).body)["status"] for _ in range(2)] == ["ok", "ok"]
        assert not ended(caller, 0.05)


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_an_upgrade_does_not_relax_other_checks(tiny: TinyServer, kind: str) -> None:
    head, rest = AMBIGUOUS[kind].split(b"\r\n", 1)
    refusal, closed = exchange(tiny, head + b"\r\n" + UPGRADES["websocket"] + rest)
    assert refusal.status == 400 and closed


def test_trailers_are_not_headers() -> None:
    """A proxy that checks or sets headers sees none of what comes after the body."""
    body = json.dumps({"model": "tiny", "prompt": [7, 8, 9], "max_tokens": 1}).encode()
    head = POST + b"Transfer-Encoding: chunked\r\n"
    chunks = b"\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
    key = b"Authorization: Bearer " + secret("a").encode() + b"\r\n"
    server = TinyServer(traffic=keyed(Caller("a")))
    try:
        with connect(server.url) as caller:
            caller.sendall(head + key + chunks + b"X: y\r\n\r\n")
            assert prompt_tokens(answer(caller)) == 3
            caller.sendall(head + chunks + key + b"\r\n")
            assert answer(caller).status == 401
    finally:
        server.close()


def test_trailers_count_as_head(tiny: TinyServer) -> None:
    trailers = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 1000) for number in range(200))
    with connect(tiny.url) as caller:
        caller.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + trailers + b"\r\n")
        assert answer(caller).status == 431
    works(tiny)


def test_a_compressed_body_is_415(tiny: TinyServer) -> None:
    refusal, closed = exchange(tiny, POST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}")
    assert refusal.status == 415 and refusal.error["code"] == "unsupported_media_type" and closed


def test_an_encoded_slash_separates_nothing(tiny: TinyServer) -> None:
    got, _ = exchange(tiny, b"GET /v1%2Fmodels HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert got.status == 404


def test_nothing_is_read_after_connect(tiny: TinyServer) -> None:
    with connect(tiny.url) as caller:
        caller.sendall(
            b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n" + HIDDEN
        )
        answers = read_all(caller)
    assert answers.count(b"HTTP/1.1 ") == 1 and b"tiny" not in answers


@pytest.mark.parametrize(
    ("target", "get", "others"),
    [(b"/health#x", 200, 405)]
    + [(target, 404, 404) for target in (b"*", b"//evil.example/health", b"/%", b"/%zz")]
    + [
        (target, 400, 400)
        for target in (b"evil.example:443", b"http://evil.example:99999/", b"/\xff", b"?", b"/a b", b"http://",
                       b"/health?%ff=\x01")
    ],
)  # fmt: skip
def test_odd_targets(tiny: TinyServer, target: bytes, get: int, others: int) -> None:
    for method, status in ((b"GET", get), (b"CONNECT", others), (b"OPTIONS", others)):
        with connect(tiny.url) as caller:
            caller.sendall(method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = answer(caller)
            assert got.status == status, (method, got)
            assert leaks(got.body.decode()) == []
    works(tiny)


def test_an_absolute_target_is_this_server(tiny: TinyServer) -> None:
    """As RFC 9112 has it; nothing is fetched from elsewhere. What the Host header says is checked."""
    got, _ = exchange(tiny, b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert got.status == 200 and json.loads(got.body)["status"]


def test_http_1_0_is_served_once(tiny: TinyServer) -> None:
    body = post({"prompt": [1], "max_tokens": 2}).replace(b"HTTP/1.1", b"HTTP/1.0")
    for request in (HEALTH.replace(b"1.1", b"1.0", 1), body):
        got, closed = exchange(tiny, request)
        assert got.status == 200 and closed


def test_http_1_0_gets_no_chunks(tiny: TinyServer) -> None:
    streamed = post({"prompt": [1], "max_tokens": 2, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    with connect(tiny.url) as caller:
        caller.sendall(streamed)
        head, _, body = read_all(caller).partition(b"\r\n\r\n")
    assert (
        head.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in head and b"connection: close" in head
    )
    events = body.decode().strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events) and events[-1] == "data: [DONE]"
    assert json.loads(events[0].removeprefix("data: "))["object"] == "text_completion"


# ---- Callers that send no more, and wait ----


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_connection_is_answered(tiny: TinyServer, version: bytes, stream: bool) -> None:
    request = post({"prompt": [1], "max_tokens": 100, "stream": stream, "ignore_eos": True}) + HEALTH
    with connect(tiny.url) as caller:
        caller.sendall(request.replace(b"HTTP/1.1", b"HTTP/" + version))
        caller.shutdown(socket.SHUT_WR)
        data = read_all(caller)
    while data.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
        assert version == b"1.1"
        data = data.partition(b"\r\n\r\n")[2]
    assert data.startswith(b"HTTP/1.1 200")
    assert (b"[DONE]" in data) if stream else (b'"completion_tokens":100' in data)
    assert data.count(b"HTTP/1.1 200") == (
        2 if version == b"1.1" else 1
    )  # what was pipelined is answered, too
    until(lambda: tiny.idle)


def test_a_half_closed_connection_with_half_a_request_is_closed(tiny: TinyServer) -> None:
    for sent in (HEALTH[:-4], post({"prompt": [1]})[:-3], b""):
        with connect(tiny.url) as caller:
            caller.sendall(sent)
            caller.shutdown(socket.SHUT_WR)
            assert read_all(caller) == b""


def test_complete_requests_before_half_a_request_are_answered(tiny: TinyServer) -> None:
    whole = post({"prompt": [1], "max_tokens": 60, "ignore_eos": True})
    for half in (b"POST /v1", whole[:-3]):
        with connect(tiny.url) as caller:
            caller.sendall(whole + HEALTH + half)
            caller.shutdown(socket.SHUT_WR)
            data = read_all(caller)
        assert data.count(b"HTTP/1.1 200") == 2 and b'"completion_tokens":60' in data, half
    until(lambda: tiny.idle)


@pytest.mark.parametrize("kind", ["HTTP/1.1", "HTTP/1.0", "pipelined"])
def test_a_disconnect_is_noticed_before_the_answer(doomed: TinyServer, kind: str) -> None:
    """Its FIN resembles a half-close."""
    request = post({"prompt": [1], "max_tokens": 500, "ignore_eos": True})  # 5 s of work
    if kind == "HTTP/1.0":
        request = request.replace(b"HTTP/1.1", b"HTTP/1.0")
    with connect(doomed.url) as caller:
        caller.sendall(request * (3 if kind == "pipelined" else 1))
        until(lambda: doomed.stats().running == 1)
    until(lambda: doomed.idle and not doomed.connections[1:])
    assert 0 < doomed.stats().scheduler.output_tokens < 450


def test_http_1_0_ignores_expect(tiny: TinyServer) -> None:
    request = post({"prompt": [1], "max_tokens": 1}).replace(b"HTTP/1.1", b"HTTP/1.0")
    head, _, body = request.partition(b"\r\n\r\n")
    with connect(tiny.url) as caller:
        caller.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert not ended(caller, 0.2)  # nothing comes
        caller.settimeout(10)
        caller.sendall(body)
        assert answer(caller).status == 200
    with connect(tiny.url) as caller:
        caller.sendall(head.replace(b"HTTP/1.0", b"HTTP/1.1") + b"\r\nExpect: 100-continue\r\n\r\n")
        assert caller.recv(100).startswith(b"HTTP/1.1 100 Continue")


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/version", "/metrics", "/v1/models", "/", "/live", "/page/app.js"]
)
def test_head_is_get_without_a_body(tiny: TinyServer, path: str) -> None:
    with connect(tiny.url) as caller:
        for _ in range(2):
            caller.sendall(b"HEAD " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += caller.recv(1)
            assert head.startswith(b"HTTP/1.1 200"), path
        assert not ended(caller, 0.05)


@pytest.mark.parametrize(
    "header",
    [b": a", b"na me: a", b"na\tme: a", b"n\xc3\xa9: a", b"n\x00: a", b"a: \x01", b"a: \x7f", b"a", b"(a): b"],
)  # fmt: skip
def test_odd_headers_are_refused(tiny: TinyServer, header: bytes) -> None:
    with connect(tiny.url) as caller:
        caller.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
        got = answer(caller)
        assert got.status == 400 and b"\x00" not in got.body
    works(tiny)


def test_request_headers_are_not_echoed(tiny: TinyServer) -> None:
    odd = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a%0d%0aSet-Cookie: b\r\nOrigin: \xff\r\n\r\n"
    got, _ = exchange(tiny, odd)
    assert "set-cookie" not in got.headers and "set-cookie" not in str(got.headers).lower()


# ---- Files ----

OUTSIDE = [
    b"/page/..%2f..%2fapp.py", b"/page/%2e%2e/app.py", b"/page/%2e%2e%2fapp.py", b"/page/..\\app.py",
    b"/page/..%5capp.py", b"/page/%252e%252e%252fapp.py", b"/page/.%00./app.py", b"/page/app.js%00.py",
    b"/page/%c0%ae%c0%ae/app.py", b"/page//etc/passwd", b"/page/%2fetc%2fpasswd", b"/page/../../../../etc/passwd",
    b"/page/./../app.py", b"/page/file:%2f%2f%2fetc%2fpasswd", b"/page/~root", b"/page/C:%5cwindows",
    b"/page/app.js%2f..%2f..%2fapp.py", b"/page/.", b"/page/..", b"/page/", b"/page/APP.JS",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_outside_the_pages_folder(tiny: TinyServer, path: bytes) -> None:
    """Over a bare socket: clients tidy paths up before they send them."""
    got, _ = exchange(tiny, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert got.status == 404 and got.error["message"] and leaks(got.body.decode()) == []


def test_a_path_inside_is_served(tiny: TinyServer) -> None:
    for path in (b"/page/app.js", b"/page/%61pp.js"):
        got, _ = exchange(tiny, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert got.status == 200 and got.headers["content-type"].startswith("text/javascript")
