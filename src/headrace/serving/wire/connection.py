"""The engine process' end of the socket to its parent: plain blocking calls, and a watch on the parent's life."""

from __future__ import annotations

import math
import os
import select
import socket
import threading

from headrace.serving.system import die_with_parent
from headrace.serving.wire.frames import FrameBuffer, WireError, frame
from headrace.serving.wire.messages import Message, ToEngine, decode_to_engine, encode

_READ_BYTES = 1 << 20


class ParentGone(Exception):
    """The other end of the socket is closed: nobody is left to work for."""


class Connection:
    """Messages over a connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._frames = FrameBuffer()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        """Messages that have arrived; waits up to `timeout_s` for the first byte (None: without end).

        Raises ParentGone at the end of the stream, WireError for what is not a message.
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
        """Send messages in one go; waits while the parent does not read. Raises ParentGone if it never will."""
        if not messages:
            return
        try:
            self._socket.sendall(b"".join(frame(encode(message)) for message in messages))
        except ConnectionError as error:
            raise ParentGone from error


def exit_with_parent(sock: socket.socket) -> None:
    """End this process as soon as the other end of the socket closes, even while a model loads or a step runs.

    Where the system can do that, also with the parent's death while this process is stopped and runs no thread.
    """
    die_with_parent()

    def watch() -> None:
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP)
        poll.poll()
        os._exit(0)  # there is nothing to save, and the main thread may be deep in native code

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
