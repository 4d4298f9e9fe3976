"""`headrace rm`: delete a model from the hub's cache."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from headrace.cli.parser import add_cache_flag, add_command
from headrace.errors import ConfigError, ModelNotFound

EXAMPLES = """\
examples:
  headrace rm Qwen/Qwen3-0.6B                   every revision and quantisation of it
  headrace rm Qwen3-0.6B-GGUF:Q8_0 --yes        one quantisation; no other owner has that name
  headrace rm Qwen/Qwen3-0.6B@1a2b3c4           one revision
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "rm", "[options] MODEL", summary="delete a model from the hub's cache", examples=EXAMPLES,
        description="Delete a model, one of its revisions, or one quantisation from Hugging Face's cache. Files that "
        "other revisions use are kept, and nothing outside of the cache is deleted.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="as `headrace list` shows it")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    add_cache_flag(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.models.hub.cached import plan_removal
    from headrace.models.hub.remote import cache_folder
    from headrace.models.source import BUNDLED
    from headrace.plan.units import format_bytes

    if args.model in BUNDLED:
        raise ModelNotFound(f"{args.model} is part of the package, which rm does not change")
    removal = plan_removal(cache_folder(args.download_dir), args.model)
    what = f"{', '.join(removal.names)} ({format_bytes(removal.bytes)})"
    if not args.yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"{what} is deleted only after a question, or with --yes")
        try:
            answer = input(f"Delete {what}? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print("nothing was deleted")
            return 1
    freed = removal.run()
    print(f"deleted {', '.join(removal.names)}: {format_bytes(freed)} are free again")
    return 0
