"""Messages on a stream socket, and the engine process' end of it.

A frame is four bytes of length, little-endian, then so many bytes. The engine process uses plain blocking calls, and a
thread that watches for the parent's end.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import threading
from collections.abc import Iterator

from headrace.serving.system import die_with_parent
from headrace.serving.wire.messages import Message, ToEngine, WireError, decode_to_engine, encode

MAX_FRAME_BYTES = 256 * 2**20
"""Largest frame; a longer one is an error of the connection, found before anything is allocated for it."""

_HEADER = struct.Struct("<I")
_READ_BYTES = 1 << 20


def frame(payload: bytes, limit: int = MAX_FRAME_BYTES) -> bytes:
    """The payload after its length. Raises WireError above `limit` bytes."""
    if len(payload) > limit:
        raise WireError(f"a message of {len(payload)} bytes is larger than {limit}")
    return _HEADER.pack(len(payload)) + payload


class FrameBuffer:
    """Cuts a byte stream into frames, wherever its pieces were cut."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add a piece of the stream; yields the payload of every frame that is complete now.

        Raises WireError for a frame that announces more than the limit; the stream cannot be used after that.
        """
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= _HEADER.size:
                (length,) = _HEADER.unpack_from(self._data, start)
                if length > self._limit:
                    raise WireError(f"a frame announces {length} bytes; at most {self._limit} are allowed")
                end = start + _HEADER.size + length
                if len(self._data) < end:
                    break
                yield bytes(self._data[start + _HEADER.size : end])
                start = end
        finally:
            del self._data[:start]

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._data)


class ParentGone(Exception):
    """The parent has closed its end of the socket."""


class Connection:
    """Messages over a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._frames = FrameBuffer()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """Messages that have arrived; waits up to `timeout_s` for the first byte (None: without end).

        Raises ParentGone at the end of the stream, WireError for data that is not a message.
        """
        # Rounded up: a wait that ends early would turn the last millisecond into a busy loop.
        if not self._poll.poll(None if timeout_s is None else math.ceil(max(0.0, timeout_s) * 1000)):
            return []
        try:
            data = self._socket.recv(_READ_BYTES)
        except ConnectionError as error:
            raise ParentGone from error
        if not data:
            raise ParentGone
        return [decode_to_engine(payload) for payload in self._frames.feed(data)]

    def receive_one(self) -> ToEngine:
        """The first message of a connection. Raises as `receive`, and WireError if others come with it."""
        messages: list[ToEngine] = []
        while not messages:
            messages = self.receive(None)
        if len(messages) != 1 or self._frames.pending:
            raise WireError("the parent did not wait for an answer to its first message")
        return messages[0]

    def send(self, *messages: Message) -> None:
        """Send messages in one go; waits while the parent does not read. Raises ParentGone."""
        if not messages:
            return
        try:
            self._socket.sendall(b"".join(frame(encode(message)) for message in messages))
        except ConnectionError as error:
            raise ParentGone from error


def exit_with_parent(sock: socket.socket) -> None:
    """End this process as soon as the other end of the socket closes, even while a model loads or a step runs.

    On Linux also when the parent dies while this process is stopped and runs no thread.
    """
    die_with_parent()

    def watch() -> None:
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        poll.poll()
        os._exit(0)  # there is nothing to save, and the main thread may be deep in native code

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
