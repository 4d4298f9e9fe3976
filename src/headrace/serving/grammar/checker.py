"""Checks in another process whether a grammar can be compiled within limits; see `worker`."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from headrace.core.grammar import CHOICE, JSON_OBJECT, Grammar
from headrace.errors import InvalidParams, Overloaded

WORKER_COMMAND = (sys.executable, "-P", "-m", "headrace.serving.grammar.worker")
START_S = 60.0
"""Longest start: large tokenizers take seconds."""
ANSWER_S = 8.0
"""Longest answer; more than the limit of the worker's child."""

HARMLESS = frozenset({JSON_OBJECT, CHOICE})
"""Kinds that are not checked: their cost is bounded by their size."""

_READ_BYTES = 1 << 16
_NOT_NOW = "the grammar could not be checked in time; try again later"


class GrammarChecker:
    """Starts its process with the first grammar, and again if it ended. Not thread-safe, except for `kill`.

    The process ends by itself when this one does.
    """

    def __init__(
        self,
        tokenizer_folder: str,
        vocab_size: int,
        eos_ids: frozenset[int],
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._hello = {
            "tokenizer_folder": tokenizer_folder, "vocab_size": vocab_size, "eos_ids": sorted(eos_ids),
        }  # fmt: skip
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The running process, if there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs, and wait until it has read the vocabulary.

        Raises InvalidParams if this model can follow no grammar, Overloaded if the process does not answer.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it was killed since the last grammar
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
                )
            except OSError as error:
                raise Overloaded(_NOT_NOW) from error
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            try:
                self._ask(self._hello, START_S)
            except InvalidParams:  # it has ended
                self.close()
                raise

    def check(self, grammar: Grammar) -> int:
        """Bytes that the compiled grammar will hold.

        Raises InvalidParams for a grammar that is invalid or exceeds the limits, Overloaded without an answer.
        """
        if grammar.kind in HARMLESS:
            return 0
        self.start()
        answer = self._ask({"kind": grammar.kind, "source": grammar.source}, ANSWER_S)
        return int(answer.get("bytes", 0))

    def kill(self) -> None:
        """Kill the process, from any thread: a pending `check` raises."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # Not read to their end: a fork of the process may hold the other ends for a moment longer.
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            process.wait()

    def _ask(self, message: dict[str, Any], patience_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + patience_s
        try:
            self._write(json.dumps(message).encode() + b"\n", deadline)
            answer: dict[str, Any] = json.loads(self._line(deadline))
        except (OSError, ValueError) as error:  # it ended, or does not answer
            self.close()
            raise Overloaded(_NOT_NOW) from error
        if answer["error"] is not None:
            raise (
                Overloaded(str(answer["error"]))
                if answer.get("late")
                else InvalidParams(str(answer["error"]))
            )
        return answer

    def _write(self, data: bytes, deadline: float) -> None:
        assert self._process is not None and self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        while data:
            _, ready, _ = select.select([], [pipe], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("nothing is read")
            data = data[os.write(pipe, data) :]

    def _line(self, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("no answer")
            data = os.read(self._process.stdout.fileno(), _READ_BYTES)
            if not data:
                raise ConnectionError("the process has ended")
            line += data
        return line
