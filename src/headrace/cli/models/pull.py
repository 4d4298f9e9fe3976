"""`headrace pull`: bring a model of the hub into its local cache."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from headrace.cli.parser import add_cache_flag, add_command, typed
from headrace.errors import ModelNotFound

EXAMPLES = """\
examples:
  headrace pull Qwen/Qwen3-0.6B                      safetensors, tokenizer and config
  headrace pull Qwen/Qwen3-0.6B-GGUF:Q8_0            one quantisation of a repository in GGUF
  headrace pull Qwen/Qwen3-0.6B@main                 a branch, a tag or a commit
Then: headrace chat Qwen/Qwen3-0.6B
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "pull", "[options] MODEL", summary="download a model of the hub", examples=EXAMPLES,
        description="Download what a run needs of a model, and nothing else, into Hugging Face's cache. A download "
        "that was interrupted goes on where it stopped, and every file is checked against the hub's digest. Without a "
        "quantisation, safetensors are taken, else Q4_K_M, else the nearest one that there is.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="owner/name, then :QUANTISATION or @REVISION, or both")
    parser.add_argument("--revision", metavar="NAME", help="branch, tag or commit")
    add_cache_flag(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.models.hub.fetch import pull
    from headrace.models.hub.reference import parse_reference
    from headrace.plan.units import format_bytes

    reference = parse_reference(args.model)
    if reference is None:
        raise ModelNotFound(
            f"{args.model!r:.200} is not a model of the hub: give owner/name, with :QUANTISATION or @REVISION"
        )
    done = pull(reference, revision=args.revision, download_dir=args.download_dir)
    files = f"{len(done.files)} file{'s' if len(done.files) > 1 else ''}"
    fetched = (
        f"{format_bytes(done.fetched)} of them downloaded" if done.fetched else "all of them there already"
    )
    print(f"{args.model}: {files}, {format_bytes(done.bytes)}, {fetched}")
    print(f"{done.path} (commit {done.commit})")
    words = ["headrace", "chat", args.model]
    words += ["--revision", args.revision] if args.revision else []
    words += ["--download-dir", args.download_dir] if args.download_dir else []
    print(typed(f"Next: `{shlex.join(words)}`"))
    return 0
