"""Requests that two readers would read differently, odd targets and headers: one reading, or none."""

from __future__ import annotations

import json

import pytest

from tests.server.conftest import TinyServer
from tests.server.leaks import leaks
from tests.server.raw_http import Answer, answer, connect, ended, post, works

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Hidden: yes\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def exchange(tiny: TinyServer, sent: bytes) -> tuple[Answer, bool]:
    """(the answer, the connection ends behind it)."""
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
    "space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded": POST + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "bare carriage return": POST + b"X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "zero byte": POST + b"X: a\x00b\r\nContent-Length: 2\r\n\r\n{}" + HIDDEN,
    "chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" + HIDDEN,
    "chunk size too large": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}" + HIDDEN,
    "chunk longer than told": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n" + HIDDEN,
}  # fmt: skip


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_what_is_ambiguous_is_refused_and_nothing_behind_it_read(tiny: TinyServer, kind: str) -> None:
    refusal, closed = exchange(tiny, AMBIGUOUS[kind])
    assert refusal.status == 400 and refusal.error["type"] == "invalid_request_error"
    assert closed and refusal.closed
    works(tiny)


def test_the_hidden_request_would_be_answered(tiny: TinyServer) -> None:
    """The proof that the test above can fail: behind a request with one meaning, the next one is served."""
    with connect(tiny.url) as caller:
        caller.sendall(POST + b"Content-Length: 2\r\n\r\n{}" + HIDDEN)
        assert answer(caller).status == 400 and b"tiny" in answer(caller).body


def test_an_upgrade_hides_nothing(tiny: TinyServer) -> None:
    """Nothing here upgrades; what follows is no new protocol's."""
    body = json.dumps({"prompt": [1], "max_tokens": 1}).encode()
    for protocol in (b"websocket", b"h2c", b"TLS/1.0"):
        head = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\nContent-Length: %d\r\n\r\n" % len(body)
        with connect(tiny.url) as caller:
            caller.sendall(POST + head + body)
            assert answer(caller).status in (200, 400)
    works(tiny)


@pytest.mark.parametrize(
    "target",
    [b"*", b"//evil.example/health", b"evil.example:443", b"http://evil.example:99999/", b"/%", b"/%zz", b"/\xff", b"?",
     b"/a b", b"/health#x", b"http://", b"/health?%ff=\x01"],
)  # fmt: skip
def test_odd_targets(tiny: TinyServer, target: bytes) -> None:
    for method in (b"GET", b"CONNECT", b"OPTIONS"):
        with connect(tiny.url) as caller:
            caller.sendall(method + b" " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = answer(caller)
            allowed = (200,) if target == b"/health#x" and method == b"GET" else ()
            assert got.status in (400, 404, 405, *allowed), (method, target, got)
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
    streamed = post({"prompt": [1], "max_tokens": 2, "stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0")
    with connect(tiny.url) as caller:
        caller.sendall(streamed)
        data = b""
        while piece := caller.recv(65_536):
            data += piece
    assert data.startswith(b"HTTP/1.1 200") and b"data: [DONE]" in data


@pytest.mark.parametrize(
    "header",
    [b"", b": a", b"na me: a", b"na\tme: a", b"n\xc3\xa9: a", b"n\x00: a", b"a: \x01", b"a: \x7f", b"a", b"(a): b"],
)  # fmt: skip
def test_odd_headers(tiny: TinyServer, header: bytes) -> None:
    """They are refused, or carried along and looked at by nobody."""
    with connect(tiny.url) as caller:
        caller.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + header + b"\r\n\r\n")
        got = answer(caller)
        assert got.status in (200, 400) and b"\x00" not in got.body
    works(tiny)


def test_headers_are_said_again_to_nobody(tiny: TinyServer) -> None:
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
def test_no_path_leads_out_of_the_page(tiny: TinyServer, path: bytes) -> None:
    """Over a bare socket: clients tidy paths up before they send them."""
    got, _ = exchange(tiny, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert got.status == 404 and got.error["message"] and leaks(got.body.decode()) == []


def test_a_path_inside_is_served(tiny: TinyServer) -> None:
    for path in (b"/page/app.js", b"/page/%61pp.js"):
        got, _ = exchange(tiny, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert got.status == 200 and got.headers["content-type"].startswith("text/javascript")
