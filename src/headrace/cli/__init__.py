"""The command line: which subcommands there are, and how each ends.

A module of a subcommand imports only what its help needs; its function run() imports what runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from headrace import __version__
from headrace.cli.parser import Parser, program, typed
from headrace.errors import HeadraceError

DESCRIPTION = """\
Headrace runs open-weight language models on the hardware you own.

  headrace demo                                  a story, then what each technique gains
  headrace generate "Once upon a time"           one completion, streamed
  headrace chat                                  talk to the bundled model
  headrace serve tale                            a server: APIs of OpenAI, Anthropic and Ollama
  headrace pull owner/name:Q4_K_M                download a model; list and rm manage what is here
  headrace run-batch in.jsonl out.jsonl          a file of requests, answered offline
  headrace inspect shape:llama-3.1-8b            memory, settings and ops, each with its reason
  headrace plan shape:llama-3.1-70b --hardware 4xa100-80g    does it fit, how fast, at what cost
"""


class Command(NamedTuple):
    name: str
    module: str
    summary: str | None  # None: for other processes, not listed


COMMANDS = (
    Command("generate", "headrace.cli.text.generate", "complete prompts"),
    Command("chat", "headrace.cli.text.chat", "talk to a model in the terminal"),
    Command("serve", "headrace.cli.server.serve", "serve a model over HTTP"),
    Command(
        "run-batch", "headrace.cli.server.run_batch", "answer a file of requests in OpenAI's batch format"
    ),
    Command("pull", "headrace.cli.models.pull", "download a model of the hub"),
    Command("list", "headrace.cli.models.list_models", "list the models on this machine"),
    Command("rm", "headrace.cli.models.rm", "delete a model from the hub's cache"),
    Command(
        "pack", "headrace.cli.models.pack", "write a model as the kernels read it, to be mapped at start"
    ),
    Command("quantize", "headrace.cli.models.quantize", "make a model of fewer bits, and say what it lost"),
    Command("train-heads", "headrace.cli.models.train_heads", "train draft heads for a model"),
    Command(
        "eval", "headrace.cli.models.evaluate", "perplexity of a model, or how far it is from another one"
    ),
    Command(
        "inspect",
        "headrace.cli.models.inspect",
        "print spec, memory ledger, ops and settings with their reasons",
    ),
    Command("plan", "headrace.cli.planning.plan", "memory, speed and cost of a model on any machine"),
    Command("simulate", "headrace.cli.planning.simulate", "serve a load in simulated time, on any hardware"),
    Command(
        "optimize",
        "headrace.cli.planning.optimize",
        "which techniques are on, and what each would gain here",
    ),
    Command(
        "bench",
        "headrace.cli.bench.command",
        "measure speed, start-up and quality beside what the machine can do",
    ),
    Command(
        "calibrate", "headrace.cli.planning.calibrate", "measure this machine, for plans and simulations"
    ),
    Command("demo", "headrace.cli.text.demo", "a story, then one workload served in several ways"),
    Command("engine-process", "headrace.cli.server.engine_process", None),
)

_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE}
_NO_MEMORY = "there is not enough memory: see `ulimit -v`, and `headrace inspect` for what the model needs"
_NO_FILES = "too many open files: raise the limit, for example with `ulimit -n 4096`"
_RAN_OUT = {errno.ENOMEM: _NO_MEMORY, errno.EMFILE: _NO_FILES, errno.ENFILE: _NO_FILES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for an error, 2 for wrong usage, or the command's own.

    Raises SystemExit after help and for wrong usage, and KeyboardInterrupt.
    """
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except HeadraceError as error:
        _complain(typed(str(error)))
    except MemoryError:
        _complain(typed(_NO_MEMORY))
    except OSError as error:
        if error.errno in _RAN_OUT:
            _complain(typed(_RAN_OUT[error.errno]))
            return 1
        if error.filename is not None or error.errno not in _WRITE_ERRORS:
            raise
        # Python would try to write the rest of the output once more at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = "its reader closed the pipe" if error.errno == errno.EPIPE else error.strerror
        _complain(f"the output could not be written: {why}")
    return 1


def _run(words: list[str]) -> int:
    parser = Parser(
        prog=program(),
        description=typed(DESCRIPTION),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    called = next((word for word in words if not word.startswith("-")), None)
    module = None
    for command in COMMANDS:
        if command.name == called:
            module = importlib.import_module(command.module)
            module.add_parser(commands)
        elif command.summary is not None:
            commands.add_parser(command.name, help=command.summary)
    args = parser.parse_args(words)
    assert module is not None  # argparse has refused every other word
    status: int = module.run(args)
    return status


def _complain(sentence: str) -> None:
    with contextlib.suppress(OSError):  # standard error on a full disk
        print(f"headrace: error: {sentence}", file=sys.stderr, flush=True)
