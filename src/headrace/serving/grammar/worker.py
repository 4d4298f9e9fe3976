"""A process that tries out grammars, so that one that explodes takes only this process' child along.

Run as a script with pipes: first the vocabulary, then one grammar a line, as JSON; one line of answer each. A grammar
is compiled in a forked child with hard limits of processor time, memory and stack, all far below what the engine
allows itself when it compiles the same grammar once more.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any

from headrace.core.grammar import Grammar
from headrace.errors import InvalidParams
from headrace.serving.system import die_with_parent
from headrace.text.grammars import GrammarCompiler
from headrace.text.tokenizer import Tokenizer

CPU_S = 0.4
"""Processor time of compiling a grammar and of its first mask."""
WALL_S = 5.0
"""The same on a busy machine, where this process stands behind the engine."""
MEMORY_BYTES = 32 * 2**20
"""What a compiled grammar may hold."""
TOO_MUCH = "the {kind} grammar cannot be used: it takes too much time or memory to compile"
TOO_LATE = "the grammar could not be tried out in time; try again later"

_ADDRESS_SPACE_BYTES = 256 * 2**20  # beyond what the process has mapped already
_SHARED_BYTES = 6 * 2**20  # what any child touches of the pages that it shares with this process
_STACK_BYTES = 4 * 2**20
_NICE = 10


def main() -> int:
    die_with_parent()
    hello = json.loads(sys.stdin.readline())
    # Whoever started this may have given way to others already: twice would be too much to ever get done.
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    tokenizer = Tokenizer.from_folder(hello["tokenizer_folder"])
    try:
        compiler = GrammarCompiler(tokenizer, hello["vocab_size"], frozenset(hello["eos_ids"]))
    except InvalidParams as error:
        _answer({"error": str(error)})
        return 1
    _answer({"error": None})
    for line in sys.stdin:  # ends with the process at the other end
        _answer(tried(compiler, Grammar(**json.loads(line))))
    return 0


def tried(compiler: GrammarCompiler, grammar: Grammar) -> dict[str, Any]:
    """{"error": why the grammar is of no use, or None; "bytes": what it holds}; "late": the machine may be to blame."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _compile(compiler, grammar, write)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], WALL_S)
        said = os.read(read, 1 << 16) if ready else b""
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)  # a child that has ended waits for us, so the id is still its own
        os.waitpid(pid, 0)
    if not ready:  # its processor time was not used up
        return {"error": TOO_LATE, "late": True}
    answer: dict[str, Any] = json.loads(said) if said else {"error": TOO_MUCH.format(kind=grammar.kind)}
    return answer


def _compile(compiler: GrammarCompiler, grammar: Grammar, write: int) -> None:
    """In the child: tell what happens, or die."""
    die_with_parent()
    try:
        _limit()
        before = _peak_bytes()
        error = None
        try:
            compiled = compiler.compile(grammar)
            del compiled  # taking a deep one apart may need as much stack as putting it together
        except InvalidParams as refusal:
            error = str(refusal)
        size = max(0, _peak_bytes() - before - _SHARED_BYTES)
        if error is None and size > MEMORY_BYTES:
            error = TOO_MUCH.format(kind=grammar.kind)
        os.write(write, json.dumps({"error": error, "bytes": size}).encode())
    finally:
        os._exit(0)


def _limit() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, mapped + _ADDRESS_SPACE_BYTES),
        (resource.RLIMIT_STACK, _STACK_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _answer(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
