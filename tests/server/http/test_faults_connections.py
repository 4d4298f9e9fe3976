"""Callers who take forever to send or to read, who send too much, or who are too many."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from headrace.server.http.connection import ConnectionLimits
from tests.server.conftest import TinyServer
from tests.server.raw_http import answer, connect, dribble, ended, post, read_all, works
from tests.waiting import LONG_S, until

PATIENCE_S = 0.5
LIMITS = ConnectionLimits(
    max_connections=240, header_timeout_s=PATIENCE_S, body_timeout_s=PATIENCE_S,
    keep_alive_timeout_s=1, slow_reader_timeout_s=PATIENCE_S,
)  # fmt: skip
HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"
STREAM = {"prompt": [1], "max_tokens": 500, "stream": True, "logprobs": 5, "n": 8}


@pytest.fixture(scope="module")
def strict() -> Iterator[TinyServer]:
    """A server without patience; a stream of 500 tokens takes it five seconds."""
    server = TinyServer(LIMITS, step_s=0.01)
    yield server
    server.close()


@pytest.fixture(scope="module")
def patient() -> Iterator[TinyServer]:
    """The same without timeouts: tests must be able to distinguish it from `strict`."""
    server = TinyServer(ConnectionLimits(10_000, 2**24, 600, 600, 600, 600), step_s=0.01)
    yield server
    server.close()


# ---- Slow senders ----


def test_a_head_that_never_ends(strict: TinyServer) -> None:
    with connect(strict.url) as caller:
        assert dribble(caller, HEAD + b"X-Slow: " + b"x" * 1000, 0.05)
        refusal = answer(caller)
        assert (refusal.status, refusal.error["code"], refusal.closed) == (408, "request_timeout", True)
        assert ended(caller)


def test_a_body_that_never_ends(strict: TinyServer) -> None:
    with connect(strict.url) as caller:
        request = post({"prompt": [1] * 500})
        caller.sendall(request[:-1000])
        assert dribble(caller, request[-1000:], 0.05)
        assert answer(caller).status == 408
        assert ended(caller)


def test_a_server_without_timeouts_waits(patient: TinyServer) -> None:
    """The proof that the two tests above measure the limits."""
    with connect(patient.url) as slow_head, connect(patient.url) as slow_body:
        slow_head.sendall(HEAD)
        slow_body.sendall(post({"prompt": [1]})[:-5])
        assert not ended(slow_head, 2 * PATIENCE_S)
        assert not ended(slow_body, 0.1)


def test_a_silent_connection(strict: TinyServer) -> None:
    with connect(strict.url) as caller:
        assert ended(caller)


def test_an_idle_connection(strict: TinyServer) -> None:
    with connect(strict.url) as caller:
        for _ in range(2):
            caller.sendall(HEAD + b"\r\n")
            reply = answer(caller)
            assert reply.status == 200 and not reply.closed
            caller.sendall(b"\r\n")  # a line too many does no harm, and keeps nothing open
            time.sleep(0.3)
        assert ended(caller)


def test_a_next_request_that_never_ends(strict: TinyServer) -> None:
    with connect(strict.url) as caller:
        caller.sendall(HEAD + b"\r\n")
        assert answer(caller).status == 200
        assert dribble(caller, HEAD + b"X-Slow: " + b"x" * 1000, 0.05)
        assert answer(caller).status == 408


def test_pipelined_requests(strict: TinyServer) -> None:
    """The head of the second may take its time while the first is being answered."""
    first = post({"prompt": [1], "max_tokens": 100})  # a second
    with connect(strict.url) as caller:
        caller.sendall(first + HEAD)
        assert answer(caller).status == 200
        caller.sendall(b"\r\n")
        assert answer(caller).status == 200
    with connect(strict.url) as caller:
        caller.sendall(first + HEAD + b"\r\n" + first[:-5])
        assert [answer(caller).status for _ in range(3)] == [200, 200, 408]


def test_too_many_pipelined_requests(strict: TinyServer) -> None:
    first = post({"prompt": [1], "max_tokens": 400})
    for count, served in ((90, True), (5000, False)):
        with connect(strict.url) as caller, contextlib.suppress(ConnectionError):
            caller.sendall(first + (HEAD + b"\r\n") * count)
            assert ended(caller, 1 if served else LONG_S) is not served
        until(lambda: strict.idle)


def test_many_slow_senders_block_no_other_client(strict: TinyServer) -> None:
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(connect(strict.url)) for _ in range(200)]
        pieces = (HEAD, post({"prompt": [1]})[:-9])
        for index, caller in enumerate(callers):
            caller.sendall(pieces[index % 2])
        for _ in range(5):
            works(strict)
            for caller in callers:
                with contextlib.suppress(OSError):
                    caller.send(b"x")
        until(lambda: len(strict.connections) <= 1)  # the client's own
    works(strict)


# ---- Too much ----


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * 10_000_000,
        b"GET /health HTTP/1.1\r\n" + b"X-Short: y\r\n" * 800_000,
        b"GET /" + b"x" * 10_000_000 + b" HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\n" + b"x" * 10_000_000,
        b"GET /health HTTP/1.1\r\nX-Long: " + b"x" * 66_000 + b"\r\n\r\n",
    ],
    ids=["one long", "many", "path", "name", "just too long"],
)  # fmt: skip
def test_a_head_too_large(strict: TinyServer, head: bytes) -> None:
    with connect(strict.url) as caller:
        with contextlib.suppress(ConnectionError):
            caller.sendall(head)
        refusal = answer(caller)
        assert refusal.status == 431 and refusal.closed
        assert "larger than 65536 bytes" in refusal.error["message"]
    works(strict)


def test_a_large_head_within_the_limit(strict: TinyServer) -> None:
    with connect(strict.url) as caller:
        caller.sendall(HEAD + b"X-Long: " + b"x" * 60_000 + b"\r\n\r\n")
        assert answer(caller).status == 200


def test_a_limit_of_megabytes_lets_a_large_head_through(patient: TinyServer) -> None:
    with connect(patient.url) as caller:
        caller.sendall(HEAD + b"X-Long: " + b"x" * 1_000_000 + b"\r\n\r\n")
        assert answer(caller).status == 200


def test_invalid_requests(strict: TinyServer) -> None:
    for noise in (
        b"\x16\x03\x01\x02\x00\x01",
        b"GET\r\n\r\n",
        b"FOO / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ):
        with connect(strict.url) as caller:
            caller.sendall(noise)
            refusal = answer(caller)
            assert refusal.status == 400 and refusal.error["type"] == "invalid_request_error"
            assert ended(caller)
    works(strict)


def test_too_many_connections(strict: TinyServer) -> None:
    until(lambda: len(strict.connections) <= 1)
    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(connect(strict.url)) for _ in range(LIMITS.max_connections)]
        until(lambda: len(strict.connections) >= LIMITS.max_connections)
        late = [stack.enter_context(connect(strict.url)) for _ in range(3)]
        for caller in late:
            refusal = answer(caller)
            assert refusal.status == 503 and refusal.headers["retry-after"] == "1"
            assert refusal.error["code"] == "too_many_connections"
            assert ended(caller)
        callers[-2].sendall(HEAD + b"\r\n")  # those that are in are served
        assert answer(callers[-2]).status == 200
    until(lambda: len(strict.connections) <= 1)
    works(strict)


# ---- Slow readers ----


def test_a_stalled_reader(strict: TinyServer) -> None:
    """The request is aborted, its blocks are freed, and no other client is affected."""
    until(lambda: strict.idle)
    before = strict.stats().scheduler.output_tokens
    with connect(strict.url, receive_buffer=4096) as caller:
        caller.sendall(post(STREAM))
        assert caller.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: strict.stats().running == 8)
        works(strict)
        until(lambda: strict.idle)
        assert strict.stats().scheduler.output_tokens - before < 8 * 450
        until(lambda: len(strict.connections) <= 1)
        assert not read_all(caller).endswith(b"[DONE]\n\n")


def test_a_reader_that_never_reads_the_end_of_an_answer(strict: TinyServer) -> None:
    """Answers that are complete for the server, and that the system cannot send."""
    until(lambda: not strict.connections)
    with connect(strict.url, receive_buffer=2048) as caller:
        for _ in range(60):
            caller.sendall(post({"prompt": [1] * 400, "max_tokens": 2, "logprobs": 64, "n": 8}))
        until(lambda: len(strict.connections) == 1)
        until(lambda: not strict.connections)
    until(lambda: strict.idle)


def test_a_server_without_timeouts_keeps_a_stalled_reader(patient: TinyServer) -> None:
    with connect(patient.url, receive_buffer=4096) as caller:
        caller.sendall(post(STREAM))
        until(lambda: patient.stats().running == 8)
        time.sleep(2 * PATIENCE_S)
        assert patient.stats().running == 8
    until(lambda: patient.idle)


def test_a_slow_reader_is_served(strict: TinyServer) -> None:
    with connect(strict.url, receive_buffer=65_536) as caller:
        caller.sendall(post(STREAM | {"max_tokens": 150, "n": 1}))
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            data += caller.recv(16_384)
            time.sleep(0.01)
        assert data.count(b"data: ") == 151  # one a token, and the end
