"""The command line. Each subcommand is a thin file; only the one that is called is imported."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from headrace import __version__
from headrace.errors import HeadraceError

DESCRIPTION = """\
Headrace runs open-weight language models on the hardware you own.

  headrace demo                                  what each technique brings, in a minute
  headrace generate "Once upon a time"           one completion, streamed
  headrace chat                                  talk to the bundled model
  headrace serve tale                            an OpenAI-compatible server
  headrace run-batch in.jsonl out.jsonl          a file of requests, answered offline
  headrace inspect shape:llama-3.1-8b            memory, settings and ops, each with its reason
"""


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    module: str
    summary: str | None  # None: for other processes, not listed


COMMANDS = (
    Command("generate", "headrace.cli.generate", "complete prompts"),
    Command("chat", "headrace.cli.chat", "talk to a model in the terminal"),
    Command("serve", "headrace.cli.serve", "serve a model with the OpenAI API"),
    Command("run-batch", "headrace.cli.run_batch", "answer a file of requests in OpenAI's batch format"),
    Command(
        "inspect", "headrace.cli.inspect", "print spec, memory ledger, ops and settings with their reasons"
    ),
    Command(
        "bench", "headrace.cli.bench", "measure speed, start-up and quality beside what the machine can do"
    ),
    Command("demo", "headrace.cli.demo", "a story, then one workload run five ways"),
    Command("engine-process", "headrace.cli.engine_process", None),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for an error, 2 for wrong usage, 130 when interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="headrace", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
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
    if module is None:
        parser.error(f"unknown command {called!r}")
    try:
        status: int = module.run(args)
        if sys.stdout is not None:  # closed before we came
            sys.stdout.flush()
        return status
    except HeadraceError as error:
        print(f"headrace: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output has gone, as in `headrace inspect … | head`. Nothing may be flushed into the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
