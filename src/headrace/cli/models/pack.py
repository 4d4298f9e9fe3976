"""`headrace pack`: write a model as the kernels read it, into a folder that is mapped at start."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from headrace.cli.engine_flags import add_engine_flags, engine_config
from headrace.cli.parser import add_command, typed
from headrace.cli.progress import ProgressBar
from headrace.errors import CheckpointError, ConfigError

EXAMPLES = """\
examples:
  headrace pack ./my-model ./my-model-int4 --quantization int4
  headrace pack tale ./tale-packed
  headrace pack ./tale-packed --verify                 compare its weights with their checksums
Then: headrace serve ./my-model-int4
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "pack", "[options] MODEL [FOLDER]", examples=EXAMPLES,
        summary="write a model as the kernels read it, to be mapped at start",
        description="Write a model into a new folder with its weights packed, and quantized if asked for. A start maps "
        "that folder instead of packing again, processes that run it share its pages, and it may be larger than "
        "memory: then each step reads from the disk, which is slower. It is for this version's layout of weights; "
        "what it was made with is in its packed.json.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="bundled name, folder, hub id or shape:NAME")
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help="where to write: a new or empty folder")
    parser.add_argument(
        "--verify", action="store_true", help="read MODEL, a packed folder, and check every weight of it"
    )
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.verify == (args.folder is not None):
        raise ConfigError("give a folder to write, or --verify with a folder that is packed")
    return _verify(Path(args.model)) if args.verify else _pack(args)


def _pack(args: argparse.Namespace) -> int:
    from headrace.build import pack
    from headrace.models.source import name_of
    from headrace.plan.units import format_bytes

    target = Path(os.path.expanduser(args.folder))
    with ProgressBar(f"packing {args.model}", "tensor") as bar:
        plan = pack(engine_config(args), target, bar)
    print(f"{target}: {format_bytes(plan.ledger.weight_bytes)} of weights for {plan.resolved.kernels}")
    print(typed(f'Next: `headrace generate -m {shlex.quote(name_of(target))} "Once upon a time"`'))
    return 0


def _verify(folder: Path) -> int:
    from headrace.models.packed.data import verify
    from headrace.models.packed.header import is_packed, read_header

    if not is_packed(folder):
        raise CheckpointError(f"{folder} is not a packed folder")
    header = read_header(folder)
    with ProgressBar(f"reading {folder}", "B", scaled=True) as bar:
        verify(header, bar)
    print(f"{folder}: {len(header.entries)} weights are what was written")
    return 0
