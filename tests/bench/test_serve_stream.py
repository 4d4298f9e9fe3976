"""Streams in pieces cut anywhere, and streams that end early, are malformed, or contradict themselves."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.serving.http_client import Address, Connection, HttpError, Pool, request_bytes
from headrace.bench.serving.stream import EventBody, StreamError, error_message, read_stream
from headrace.errors import ConfigError
from tests.bench.scripted_server import events, piece, usage


def body_of(data: bytes, cuts: list[int] | None = None) -> EventBody:
    body = EventBody()
    edges = [0, *sorted(cuts or []), len(data)]
    for number, (low, high) in enumerate(itertools.pairwise(edges)):
        body.feed(float(number), data[low:high])
    return body


WHOLE = events(piece("one"), piece(" two"), piece("", "stop"), usage(7, 2))


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12), st.booleans())
def test_a_stream_cut_anywhere(cuts: list[int], carriage_returns: bool) -> None:
    data = WHOLE.replace(b"\n", b"\r\n") if carriage_returns else WHOLE
    found = read_stream(body_of(data, cuts), 2)
    assert (found.text, found.prompt_tokens, found.output_tokens, found.counted) == ("one two", 7, 2, True)
    assert len(found.times) == 2 and found.times[0] <= found.times[1]


def test_times_are_those_of_the_pieces() -> None:
    first, second = WHOLE.index(b"\n\n") + 2, WHOLE.index(b'"stop"')
    assert read_stream(body_of(WHOLE, [first, second]), 2).times == (0.0, 1.0)


def test_chats_reasoning_comments_and_names() -> None:
    def said(**delta: str) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    data = b": ping\n\nevent: chunk\n" + events(
        said(role="assistant", content=""), said(reasoning_content="hm"), said(content="ok"), end
    )
    found = read_stream(body_of(data), 9)
    assert (found.text, found.output_tokens, found.counted, found.prompt_tokens) == ("hmok", 2, False, None)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the stream is empty"),
        (events(piece("a"), done=False), "ended early: without .DONE."),
        (events(piece("a")), "without a finish_reason"),
        (events(b'{"choices": ['), "an event is not JSON"),
        (events(b'{}, {"a": 1'), "an event is not JSON"),
        (events(b"1, 2"), "an event is not JSON"),
        (events([1]), "an event holds no object"),
        (events({"error": {"message": "it broke"}}), "ended with an error: it broke"),
        (events(piece("a"), {"error": {"message": "it broke"}}, done=False), "ended with an error: it broke"),
        (events({"hello": 1}), "an event has no choices"),
        (events({"choices": [3]}), "a choice is not an object"),
        (events({"choices": [{"index": 0}]}), "neither text nor delta"),
        (events({"choices": [{"text": 5}]}), "is not text"),
        (events(piece("a", "stop"), usage(3, 11)), "counts 11 tokens, but at most 10 were requested"),
        (events(piece("a"), piece("b", "stop"), usage(3, 1)), "counts 1 tokens, but sent 2 pieces"),
        (events(piece("a", "stop"), usage(3, -1)), "gives no completion_tokens"),
        (events(piece("a", "stop"), {"choices": [], "usage": {"prompt_tokens": "3"}}), "gives no prompt_tokens"),
        (events(piece("a", "stop")) + events(piece("b", "stop")), "continues after .DONE."),
    ],
)  # fmt: skip
def test_inconsistent_streams_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(StreamError, match=said) as raised:
        read_stream(body_of(data), 10)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


def test_messages_of_answers_that_are_no_stream() -> None:
    assert error_message(400, b'{"error": {"message": "too long"}}') == "HTTP 400: too long"
    assert error_message(502, b"<html>\nBad\nGateway") == "HTTP 502: <html> Bad Gateway"
    assert error_message(500, b"") == "HTTP 500: empty body"


# ---- HTTP ----


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


async def ask(pieces: list[bytes], end: bool = False) -> tuple[int, bytes, Connection]:
    connection, body = Connection(), EventBody()
    connection.connection_made(Wire())
    asking = asyncio.ensure_future(connection.ask(b"", body))
    await asyncio.sleep(0)
    for data in pieces:
        connection.data_received(data)
    if end:
        connection.connection_lost(None)
    head = await asking
    return head.status, body.data, connection


_CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = _CHUNKED_HEAD + b"4\r\nabcd\r\n1;x=y\r\n \r\nA\r\n0123456789\r\n0\r\n\r\n"


@given(st.lists(st.integers(0, len(CHUNKED)), max_size=20))
def test_chunks_cut_anywhere(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(CHUNKED)]
    pieces = [CHUNKED[low:high] for low, high in itertools.pairwise(edges) if high > low]
    status, data, connection = asyncio.run(ask(pieces))
    assert (status, data, connection.open) == (200, b"abcd 0123456789", True)


def test_other_lengths() -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    assert asyncio.run(ask([plain[:20], plain[20:]]))[:2] == (200, b"abc")
    to_the_end = [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 Not Found\r\n\r\nno", b"thing"]
    assert asyncio.run(ask(to_the_end, end=True))[:2] == (404, b"nothing")
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    assert not asyncio.run(ask([closing]))[2].open


@pytest.mark.parametrize(
    ("pieces", "end", "said"),
    [
        ([b"220 mail.example.com ESMTP\r\n"], False, "not HTTP"),
        ([b"HTTP/1.1 OK\r\n\r\n"], False, "not HTTP"),
        ([b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000], False, "not HTTP"),
        ([], True, "closed without an answer"),
        ([CHUNKED[:60]], True, "closed in the middle"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"], True, "closed in the middle"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -9\r\n\r\n"], False, "impossible length"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc"], False, "longer than its Content-Length"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], False, "impossible length"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n"], False, "longer than its size"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 2000], False, "has no size"),
    ],
)  # fmt: skip
def test_not_an_http_answer(pieces: list[bytes], end: bool, said: str) -> None:
    with pytest.raises(HttpError, match=said):
        asyncio.run(ask(pieces, end))


def test_addresses() -> None:
    address = Address.of("https://[::1]:9000/base/")
    assert (address.host, address.port, address.path, address.authority) == (
        "::1",
        9000,
        "/base",
        "[::1]:9000",
    )
    assert Address.of("http://x").authority == "x" and Address.of("https://x").port == 443
    assert request_bytes(address, "GET", "/v1/models", api_key="k").startswith(
        b"GET /base/v1/models HTTP/1.1\r\n"
    )
    for url in ("127.0.0.1:8000", "ftp://x", "http://", "http://x:99999", ""):
        with pytest.raises(ConfigError, match="--base-url"):
            Address.of(url)


def test_no_server_at_the_address() -> None:
    async def run() -> None:
        await Pool(Address.of("http://127.0.0.1:1")).ask(b"", EventBody())

    with pytest.raises(HttpError, match=r"no connection to 127\.0\.0\.1:1"):
        asyncio.run(run())
