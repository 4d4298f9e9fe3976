"""A process that tries grammars, so that one that explodes kills only a child of this process.

Run as a script with pipes: first the vocabulary, then one grammar a line, as JSON; one line of answer each. A grammar
is compiled in a forked child with hard limits of processor time, memory and stack, all far below those of the engine
process, which compiles the same grammar again.
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
from headrace.text.tokenizer_source import open_tokenizer

CPU_S = 0.4
"""Processor time for compiling a grammar and for its first mask."""
WALL_S = 5.0
"""Wall-clock time for the same on a busy machine, where the engine goes first."""
MEMORY_BYTES = 32 * 2**20
"""Largest compiled grammar."""
TOO_MUCH = "the {kind} grammar cannot be used: it takes too much time or memory to compile"
TOO_LATE = "the grammar could not be tried out in time; try again later"

_ADDRESS_SPACE_BYTES = 256 * 2**20  # beyond what the process has already mapped
_SHARED_BYTES = 6 * 2**20  # pages shared with this process that any child touches
_STACK_BYTES = 4 * 2**20
_NICE = 10


def main() -> int:
    die_with_parent()
    hello = json.loads(sys.stdin.readline())
    # Not relative to the parent, which may be nice already: twice that would get no processor time.
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    tokenizer = open_tokenizer(hello["tokenizer_folder"])
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
    """{"error": why the grammar is refused, or None; "bytes": its size}; "late": only the machine was too slow."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _compile(compiler, grammar, write)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], WALL_S)
        report = os.read(read, 1 << 16) if ready else b""
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)  # a child that has ended is a zombie, so the id is still its own
        os.waitpid(pid, 0)
    if not ready:  # its processor time was not used up
        return {"error": TOO_LATE, "late": True}
    answer: dict[str, Any] = json.loads(report) if report else {"error": TOO_MUCH.format(kind=grammar.kind)}
    return answer


def _compile(compiler: GrammarCompiler, grammar: Grammar, write: int) -> None:
    """In the child: compile, report the outcome and exit."""
    die_with_parent()
    try:
        _limit()
        before = _peak_bytes()
        error = None
        try:
            compiled = compiler.compile(grammar)
            del compiled  # freeing a deep one may need as much stack as building it
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
