"""HTTP over a bare socket, for callers who do not behave."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.server.conftest import TinyServer
from tests.waiting import LONG_S


@dataclass(frozen=True)
class Answer:
    """`closed`: the server closed the connection after it."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def connect(url: str, receive_buffer: int | None = None) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    caller = socket.socket()
    if receive_buffer is not None:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    caller.settimeout(LONG_S)
    caller.connect((host, int(port)))
    return caller


def post(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """A whole request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def read_all(caller: socket.socket) -> bytes:
    """What comes up to the end of the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := caller.recv(65_536):
            data += piece
    return data


def answer(caller: socket.socket) -> Answer:
    """The answer to a request; its length must be announced."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):  # byte by byte: another answer may follow this one
        piece = caller.recv(1)
        assert piece, f"the connection ended after {head!r}"
        head += piece
    first, *lines = head.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = b""
    while (left := int(headers["content-length"]) - len(body)) > 0:
        piece = caller.recv(left)
        assert piece, f"the connection ended {left} bytes early"
        body += piece
    return Answer(int(first.split()[1]), headers, body, headers.get("connection") == "close")


def ended(caller: socket.socket, within_s: float = LONG_S) -> bool:
    """The server ends the connection; False if it is still open after `within_s`."""
    caller.settimeout(within_s)
    try:
        return caller.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def dribble(caller: socket.socket, data: bytes, pause_s: float) -> bool:
    """Send byte by byte; whether the server answered, or ended the connection, before it had all of them."""
    caller.settimeout(pause_s)
    stopped = False
    for byte in data:
        try:
            caller.sendall(bytes([byte]))
            caller.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            continue
        except ConnectionError:
            pass
        stopped = True
        break
    caller.settimeout(LONG_S)
    return stopped


def works(tiny: TinyServer) -> None:
    """A well-behaved caller is served."""
    done = tiny.openai.completions.create(model="tiny", prompt=[1], max_tokens=3)
    assert done.usage is not None and done.usage.completion_tokens == 3
