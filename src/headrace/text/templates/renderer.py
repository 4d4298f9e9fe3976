"""The process that renders a chat template, from its parent's side. `child` is the program that runs there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

from headrace.core.forks import watch_forks
from headrace.errors import Overloaded, RequestError
from headrace.text.templates.wire import Answer, Exit, TemplateLimits, framed, unframed

COMMAND = (sys.executable, "-P", "-m", "headrace.text.templates.child")

PATIENCE_S = 60.0
"""Longest wait for an answer by the clock, on a machine that does other things too."""

_EXIT_S = 5.0
_TOO_LONG = "it takes too long"
_REASONS: dict[int | None, str] = {
    -signal.SIGPROF: _TOO_LONG,
    Exit.MEMORY: "it takes too much memory",
    Exit.OUTPUT: "it prints too much",
}


class TemplateStopped(RequestError):
    """A template exceeded a limit, or crashed the process that ran it; `reason` is a clause."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the chat template was stopped: {reason}.")
        self.reason = reason


class Renderer:
    """Renders one template in a process of its own, which a template may end: the next rendering starts another.

    Threads take turns. A child of `os.fork` starts a process for itself. The process ends with `close`, when this
    object is collected, and with this process.
    """

    def __init__(self, source: str, limits: TemplateLimits) -> None:
        self._limits = limits
        self._source = json.dumps([source, dataclasses.asdict(limits)]).encode()
        self._lock = threading.Lock()
        self._process: _Process | None = None
        watch_forks(self)

    @property
    def pid(self) -> int | None:
        """The running process, if there is one."""
        process = self._process
        return None if process is None else process.pid

    def compile(self) -> tuple[Answer, str]:
        """Start the process; its answer to the template, see `child`. Raises TemplateStopped and Overloaded."""
        with self._lock:
            return self._started()

    def render(self, message: Callable[[], bytes]) -> tuple[Answer, str]:
        """The answer to a message, which is made when the process is free. Raises as `compile` and `message` do."""
        with self._lock:
            content = message()
            if self._process is None or self._process.ended:
                self._started()
            return self._ask(content)

    def close(self) -> None:
        """End the process; a rendering that is under way raises TemplateStopped."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        self._process = None

    def _started(self) -> tuple[Answer, str]:
        try:
            self._process = _Process(4 * self._limits.prompt_chars + 1)  # bytes of UTF-8
        except OSError as error:
            raise Overloaded("no process can be started for the chat template; try again later") from error
        return self._ask(self._source)

    def _ask(self, message: bytes) -> tuple[Answer, str]:
        process, answered = self._process, False
        assert process is not None
        try:
            answer = process.ask(message)
            answered = True
            return answer
        except TimeoutError:
            raise TemplateStopped(f"it did not end in {PATIENCE_S:.0f} s") from None
        except (OSError, EOFError, ValueError):
            code = process.exit_code()
            raise TemplateStopped(_REASONS.get(code, _described(code))) from None
        finally:
            if not answered:  # also after Ctrl-C: the answer may come later
                self._process = None
                process.kill()


class _Process:
    def __init__(self, longest_answer: int) -> None:
        self._longest = longest_answer
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                COMMAND, env=_environment(),
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for this process
            )  # fmt: skip
        self._socket.settimeout(PATIENCE_S)
        self._file = self._socket.makefile("rb")
        self._end = weakref.finalize(self, _end, self._child, self._socket)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def ended(self) -> bool:
        return self._child.poll() is not None

    def ask(self, message: bytes) -> tuple[Answer, str]:
        self._socket.sendall(framed(message))
        answer = unframed(self._file.read, self._longest)
        return Answer(answer[0]), answer[1:].decode("utf-8", "surrogatepass")

    def exit_code(self) -> int | None:
        """Negative for a signal; None if it has not ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(_EXIT_S)
        return None

    def kill(self) -> None:
        """From any thread: a pending `ask` raises EOFError."""
        self._end()


def _end(child: subprocess.Popen[bytes], connection: socket.socket) -> None:
    child.kill()  # nothing in a child of `os.fork`, whose child it is not
    child.wait()
    connection.close()


def _environment() -> dict[str, str]:
    """What Python needs, and none of the keys and tokens that this process may have been given."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PYTHON") or name == "LD_LIBRARY_PATH"
    }


def _described(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with status {code}"
