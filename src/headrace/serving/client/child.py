"""The engine process from its parent's side: started with one end of a socket pair, and always reaped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Sequence

ENGINE_COMMAND = (sys.executable, "-P", "-m", "headrace", "engine-process")
"""`-P` keeps modules in the current folder from being imported instead of ours."""

_STANDARD_ERROR = 2


class Child:
    """A process with a socket to this one. Its standard input is empty; it writes to our standard error."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        sock: socket.socket,
    ) -> None:
        self._process = process
        self.reader = reader
        self.writer = writer
        self._socket = sock

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, command: Sequence[str] = ENGINE_COMMAND) -> Child:
        """Start `command --fd N`, where N is an inherited stream socket. Raises OSError."""
        ours, theirs = socket.socketpair()
        process = None
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command, "--fd", str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL, stdout=_STANDARD_ERROR, pass_fds=(theirs.fileno(),),
                )  # fmt: skip
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            raise
        return cls(process, reader, writer, ours)

    async def wait(self, timeout_s: float | None) -> int | None:
        """The exit code (negative for a signal), or None if the process still runs after `timeout_s`."""
        try:
            return await asyncio.wait_for(self._process.wait(), timeout_s)
        except TimeoutError:
            return None

    def hang_up(self) -> None:
        """End the connection, and so the process, see `exit_with_parent`. Any thread may call it, without a loop."""
        with contextlib.suppress(OSError):  # it is closed already
            self._socket.shutdown(socket.SHUT_RDWR)

    async def stop(self, grace_s: float) -> None:
        """Wait for the end up to `grace_s`, then kill; close the socket in any case."""
        try:
            await self.wait(grace_s)
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            self.writer.close()
            await self._process.wait()


def describe_exit(code: int | None) -> str:
    """How a process ended, as the middle of a sentence."""
    if code is None:
        return "closed its connection"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
