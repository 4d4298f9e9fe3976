"""`headrace list`: the models on this machine, in the hub's cache and in the package."""

from __future__ import annotations

import argparse
import json
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.cli.parser import add_cache_flag, add_command, typed

if TYPE_CHECKING:
    from headrace.models.hub.cached import Cache

EXAMPLES = """\
examples:
  headrace list
  headrace list --json
"""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "list", "[options]", summary="list the models on this machine", examples=EXAMPLES,
        description="List the models in Hugging Face's cache, whichever program downloaded them, and those in the "
        "package. The first column is what other commands take as MODEL.",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    add_cache_flag(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.models.hub.cached import read_cache
    from headrace.models.hub.remote import cache_folder
    from headrace.plan.report import table
    from headrace.plan.units import format_bytes

    cache = read_cache(cache_folder(args.download_dir))
    models = [*_cached(cache), *_bundled()]
    if args.json:
        print(json.dumps(models, indent=2))
        return 0
    rows = [("model", "revision", "kind", "size", "last used")]
    for model in models:
        kind = " ".join(part for part in (model["kind"], model["type"]) if part)
        used = "-" if model["last_used"] is None else model["last_used"][:10]
        rows.append((model["id"], model["revision"][:7], kind, format_bytes(model["bytes"]), used))
    print(table(rows, right=frozenset({3})))
    for left in cache.leftovers:
        what = f"{format_bytes(left.bytes)} of an unfinished download" if left.bytes else left.why
        where = ["--download-dir", args.download_dir] if args.download_dir else []
        pull, rm = (shlex.join(["headrace", word, left.repository, *where]) for word in ("pull", "rm"))
        completes = f"`{pull}` completes it, " if "/" in left.repository else ""
        print(typed(f"{left.repository}: {what}; {completes}`{rm}` deletes it"))
    return 0


def _cached(cache: Cache) -> list[dict[str, Any]]:
    return [
        {
            "id": str(model.reference),
            "origin": "hub",
            "revision": model.commit,
            "refs": list(model.refs),
            "kind": model.kind,
            "type": model.type,
            "bytes": model.bytes,
            "last_used": datetime.fromtimestamp(model.last_used, UTC).isoformat(timespec="seconds"),
            "path": str(model.path / model.files[0] if model.kind == "GGUF" else model.path),
        }
        for model in cache.models
    ]


def _bundled() -> list[dict[str, Any]]:
    from headrace.models.source import BUNDLED, BUNDLED_FOLDER

    return [
        {
            "id": name,
            "origin": "package",
            "revision": "package",
            "refs": [],
            "kind": "safetensors",
            "type": None,
            "bytes": sum(file.stat().st_size for file in (BUNDLED_FOLDER / name).iterdir() if file.is_file()),
            "last_used": None,
            "path": str(BUNDLED_FOLDER / name),
        }
        for name in BUNDLED
    ]
