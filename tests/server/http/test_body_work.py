"""No body blocks the event loop for long: expensive ones are refused before they are parsed, the rest is fast."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.params import MAX_TOKEN_LIST
from headrace.server.http.body import COSTS, HARMLESS_BYTES, MAX_BODY_BYTES, MAX_WORK, BodyWork
from headrace.text.templates.messages import MAX_MESSAGES
from tests.server.conftest import TinyServer

LONGEST_S = 0.4
"""Most processor time that a body may take of the loop in one go. A tenth of a second was the aim on an idle machine;
without a limit of work it is seconds."""
TRIES = 5


COST = {sign: cost for signs, cost in COSTS.items() for sign in signs}


def reference(text: str) -> int:
    """The cost by one pass over the characters."""
    units, inside, escaped = 0, False, False
    for sign in text:
        if inside and escaped:
            escaped = False
        elif inside and sign == "\\":
            escaped = True
        elif sign == '"':
            inside = not inside
        elif not inside:
            units += COST.get(sign, 0)
    return units


texts = st.text(st.sampled_from('a"\\,:[{e.7\n\u00e9\u2222\U0001f600'), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
)
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=9)


def pieces(body: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = count = 0
    while at < len(body):
        size = sizes[count % len(sizes)]
        yield body[at : at + size]
        at, count = at + size, count + 1


@given(values, st.booleans(), cuts)
def test_values_are_counted_for_any_chunks(value: object, plain: bool, sizes: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=plain)
    whole, cut = BodyWork(), BodyWork()
    assert whole.add(text.encode()) == reference(text)
    for piece in pieces(text.encode(), sizes):
        cut.add(piece)
    assert cut.units == whole.units
    assert cut.add(b"") == whole.units


@given(values, st.sampled_from(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"]), cuts)
def test_other_encodings_are_counted_too(value: object, encoding: str, sizes: list[int]) -> None:
    text = json.dumps({"x": value}, ensure_ascii=False)
    work = BodyWork()
    for piece in pieces(text.encode(encoding), sizes):
        work.add(piece)
    assert work.units >= reference(text)


@pytest.mark.parametrize("at", [2**16 - 2, 2**16 - 1, 2**16, 2**16 + 1])
@pytest.mark.parametrize("escapes", [1, 2, 3, 4])
def test_escapes_at_the_end_of_a_piece(at: int, escapes: int) -> None:
    text = '"' + "a" * (at - 1) + "\\" * escapes + '",[1],"'
    assert BodyWork().add(text.encode()) == reference(text)


def test_a_small_body_is_harmless() -> None:
    for sign in COST:
        assert BodyWork().add(sign.encode() * HARMLESS_BYTES) <= MAX_WORK


def test_large_legitimate_bodies_are_accepted() -> None:
    turns = json.dumps([{"role": "assistant", "content": "one, two: [3]"}] * MAX_MESSAGES)
    ids = json.dumps([12345] * 300_000)
    bias = json.dumps({str(token): -99.5 for token in range(MAX_TOKEN_LIST)})
    for body in (turns, ids, bias):
        assert MAX_WORK / 3 < BodyWork().add(body.encode()) < MAX_WORK
    assert BodyWork().add(json.dumps({"prompt": '[{"a": 1.5}, ' * 1_000_000}).encode()) < 1000


# ---- At a server ----


@pytest.fixture(scope="module")
def roomy() -> Iterator[TinyServer]:
    server = TinyServer(max_body_bytes=MAX_BODY_BYTES, step_s=0.0)
    yield server
    server.close()


def full(head: bytes, unit: bytes, tail: bytes, share: float = 1.0) -> bytes:
    """A body of as many units as may be, by bytes and by work, or another share of that."""
    each = BodyWork().add(head + unit * 1000) - BodyWork().add(head)
    room = (MAX_BODY_BYTES - len(head) - len(tail)) // len(unit)
    if each:
        room = min(room, (MAX_WORK - BodyWork().add(head + tail)) * 1000 // each - 1)
    return head + unit * int(share * room) + tail


TURN = b'{"role":"user","content":"a"}'
PLAIN, CHAT = b'{"prompt":"a",', b'{"messages":[' + TURN + b"],"
BODIES: list[tuple[str, str, bytes, bytes, bytes]] = [
    ("text", "/v1/completions", b'{"prompt":"', b"hello, ", b'"}'),
    ("escapes", "/v1/completions", b'{"prompt":"', b"\\n", b'"}'),
    ("ids", "/v1/completions", b'{"prompt":[', b"1,", b"1]}"),
    ("embedded ids", "/v1/embeddings", b'{"input":[', b"1,", b"1]}"),
    ("messages", "/v1/chat/completions", b'{"messages":[', TURN + b",", TURN + b"]}"),
    ("lists", "/v1/completions", PLAIN + b'"x":[', b"[],", b"[]]}"),
    ("nested lists", "/v1/completions", PLAIN + b'"x":[', b"[[[[]]]],", b"[]]}"),
    ("floats", "/v1/completions", PLAIN + b'"x":[', b"1.5,", b"1]}"),
    ("long numbers", "/v1/completions", PLAIN + b'"x":[', b"1" * 4000 + b",", b"1]}"),
    ("a tool", "/v1/chat/completions", CHAT + b'"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[',
     b"1,", b"1]}}}]}"),
    ("a schema", "/v1/completions", PLAIN + b'"guided_json":{"a":[', b"1,", b"1]}}"),
]  # fmt: skip

SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as sock:
    sock.sendall(sys.stdin.buffer.read())
    print(sock.recv(100).split()[1].decode())
"""


def stall(server: TinyServer, path: str, body: bytes) -> tuple[float, int]:
    """The most processor time that the loop took at a stretch while another process sent this; and the status."""
    gaps: list[float] = []

    async def watch() -> None:
        last = time.thread_time()  # that of others is no fault of ours
        while True:
            await asyncio.sleep(0.001)
            gaps.append(time.thread_time() - last)
            last += gaps[-1]

    place = urlsplit(server.url)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    watching = asyncio.run_coroutine_threadsafe(watch(), server.loop)
    sent = subprocess.run(
        [sys.executable, "-c", SEND, str(place.hostname), str(place.port)],
        input=head.encode() + body, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    time.sleep(0.02)
    watching.cancel()
    return max(gaps), int(sent.stdout)


@pytest.mark.long  # asserts processor time
@pytest.mark.parametrize(("path", "parts"), [pytest.param(b[1], b[2:], id=b[0]) for b in BODIES])
def test_the_worst_bodies_are_quick(roomy: TinyServer, path: str, parts: tuple[bytes, bytes, bytes]) -> None:
    body = full(*parts)
    for _ in range(TRIES):  # where other processes share the cores, processor time varies, too
        took, status = stall(roomy, path, body)
        assert status == 400  # not 413: it was read
        if took < LONGEST_S:
            return
    raise AssertionError(f"the loop stood still for {took:.2f} s of its own time, {TRIES} times")


@pytest.mark.parametrize(
    ("path", "parts"), [pytest.param(b[1], b[2:], id=b[0]) for b in BODIES if "text" not in b[0]]
)
def test_no_more_is_read(roomy: TinyServer, path: str, parts: tuple[bytes, bytes, bytes]) -> None:
    read = roomy.http.post(path, content=full(*parts), headers={"Content-Type": "application/json"})
    assert read.status_code == 400 and "more values than" not in read.text
    body = full(*parts, share=1.01)
    answer = roomy.http.post(path, content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == 413 and error["type"] == "invalid_request_error", answer.text
    kind = "more values than" if len(body) <= MAX_BODY_BYTES else f"larger than {MAX_BODY_BYTES} bytes"
    assert kind in error["message"]


def test_a_body_of_unknown_length_is_refused_before_its_end(roomy: TinyServer) -> None:
    head, unit, _ = BODIES[5][2:]
    place = urlsplit(roomy.url)
    piece = unit * (2**15 // len(unit))
    with socket.create_connection((place.hostname, place.port), timeout=30) as sock:
        lines = (
            "POST /v1/completions HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            "Transfer-Encoding: chunked",
        )
        sock.sendall("\r\n".join((*lines, "", "")).encode() + b"%x\r\n%b\r\n" % (len(head), head))
        for _ in range(MAX_WORK // BodyWork().add(piece) + 1):
            sock.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        assert b" 413 " in sock.recv(100)  # the body has not ended
