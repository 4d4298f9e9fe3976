"""The program of a renderer process: compiles one chat template, then renders conversations, within limits.

A template is a program of a stranger, so the operating system confines this process: it has no file but the socket that
is its standard input, can open none, and ends where a template takes too long, too much memory, or prints too much.
It ends with its parent, at the end of the stream. Nothing of headrace is imported that loads a tokenizer or an array.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from typing import Any, NoReturn

from jinja2 import TemplateSyntaxError
from jinja2.environment import Template

from headrace.text.templates.sandbox import RaisedByTemplate, compiled, new_environment
from headrace.text.templates.wire import Answer, Exit, TemplateLimits, framed, unframed


def main() -> NoReturn:
    socket = io.FileIO(0, "r+")
    stream = io.BufferedRWPair(socket, socket)

    def answer(kind: Answer, text: str) -> None:
        stream.write(framed(bytes([kind]) + text.encode("utf-8", "surrogatepass")))
        stream.flush()

    source, given = json.loads(unframed(stream.read, sys.maxsize))
    limits = TemplateLimits(**given)
    _confine(limits)
    environment = new_environment()
    try:
        with _deadline(limits.cpu_s):
            template, reads = compiled(environment, source)
    except TemplateSyntaxError as error:
        answer(Answer.FAILED, f"is damaged (line {error.lineno}): {_clip(error)}")
        os._exit(0)
    except Exception as error:
        _end_without_memory(error)
        answer(Answer.FAILED, f"cannot be compiled: {_clip(error)}")
        os._exit(0)
    answer(Answer.DONE, str(int(reads)))
    while True:
        names, now = json.loads(unframed(stream.read, sys.maxsize))
        environment.globals["strftime_now"] = datetime.fromisoformat(now).strftime
        with _deadline(limits.cpu_s):
            result = _rendered(template, names, limits.prompt_chars)
        answer(*result)


def _rendered(template: Template, names: dict[str, Any], most_chars: int) -> tuple[Answer, str]:
    pieces, left = [], most_chars
    try:
        for piece in template.generate(names):
            left -= len(piece)
            if left < 0:
                os._exit(Exit.OUTPUT)
            pieces.append(piece)
        return Answer.DONE, "".join(pieces)
    except RaisedByTemplate as error:
        return Answer.RAISED, str(error)
    except Exception as error:  # any builtin may raise anything
        _end_without_memory(error)
        return Answer.FAILED, _clip(error)


_IMPORTED_LATE = (
    "encodings.unicode_escape", "html", "jinja2.constants", "jinja2.debug", "pprint", "textwrap", "unicodedata",
)  # fmt: skip
"""What Jinja imports where it needs it, when no file can be opened any more."""


def _confine(limits: TemplateLimits) -> None:
    for name in _IMPORTED_LATE:
        import_module(name)
    for stream in (1, 2):
        os.close(stream)
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 1),  # the socket
        (resource.RLIMIT_NPROC, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])


@contextmanager
def _deadline(cpu_s: float) -> Iterator[None]:
    """Let the kernel end this process if the block takes more processor time; nothing in Python can delay that."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _end_without_memory(error: Exception) -> None:
    if isinstance(error, MemoryError):
        os._exit(Exit.MEMORY)


def _clip(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "…"


if __name__ == "__main__":
    try:
        main()
    except MemoryError:
        os._exit(Exit.MEMORY)
    except (EOFError, OSError):  # the parent has ended
        os._exit(0)
