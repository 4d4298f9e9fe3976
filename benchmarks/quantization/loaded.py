"""Speed of folders that `headrace quantize` wrote, beside the same codes rounded while the model is loaded.

    python -m benchmarks.quantization.loaded
    python -m benchmarks.quantization.loaded --models shape:tinyllama-1.1b --groups 128 --bits 4

Each folder holds the nearest codes (`--method rtn`), the head's too, in groups of the same size as those of
`--quantization int4-g64` and the like, so both sides have the same shapes, codes and bytes. They take turns in one
process, and the side that begins changes from turn to turn: a noisy machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.peers.models import config_of, write_folder
from benchmarks.quantization.measure import headrace
from headrace.bench.model.latency import closed_batch
from headrace.bench.model.subject import Subject, load_subject
from headrace.bench.report import machine_facts
from headrace.config import EngineConfig
from headrace.errors import HeadraceError
from headrace.models.source import SHAPE_PREFIX, resolve_model

_EXAMPLES = """examples:
  python -m benchmarks.quantization.loaded --models tale
  python -m benchmarks.quantization.loaded --models shape:tinyllama-1.1b --bits 4 --groups 128 --turns 15"""
_PROMPT = 32


@dataclass(frozen=True, slots=True)
class Load:
    """A closed batch: so many prompts at once, each of `prompt` tokens and answered by `output`."""

    what: str
    batch: int
    prompt: int
    output: int

    def seconds(self, subject: Subject) -> float:
        """Of a decoded token, or of the whole prompt where only one token follows it."""
        run = closed_batch(subject, self.batch, self.prompt, self.output)
        return run.prefill_s if self.output == 1 else run.decode_s / run.decode_tokens


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(words)
    try:
        for model in options.models:
            resolve_model(model)
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1
    loads = (
        Load("decode, 1 request", 1, _PROMPT, options.output),
        Load("decode, 8 requests", 8, _PROMPT, options.output),
        Load(f"prompt of {options.prompt}", 1, options.prompt, 1),
    )
    print(
        f"{machine_facts().cpu}, {options.threads} threads, {time.strftime('%Y-%m-%d')}, {options.turns} turns\n"
    )
    print(
        "| model | weights | inputs | load | loaded | folder | speed of the folder / loaded |\n"
        "|---|---|---|---|---|---|---|"
    )
    with TemporaryDirectory(prefix="headrace-loaded-") as kept:
        for model in options.models:
            name = model.removeprefix(SHAPE_PREFIX)
            source = model
            if name != model:
                source = str(Path(kept) / name)
                write_folder(Path(source), config_of(name))
            for bits in options.bits:
                for group in options.groups:
                    folder = Path(kept) / f"quantised-{Path(name).name}-{bits}-{group}"
                    headrace(
                        "quantize", source, "-o", str(folder), "--method", "rtn", "--bits", str(bits),
                        "--group-size", str(group), "--samples", "0", "--head",
                    )  # fmt: skip
                    for inputs in options.inputs:
                        _compare(options, name, source, folder, f"int{bits}-g{group}", inputs, loads)
    return 0


def _compare(
    options: argparse.Namespace,
    name: str,
    source: str,
    folder: Path,
    weights: str,
    inputs: str,
    loads: Sequence[Load],
) -> None:
    """Print a row for each load. inputs: "a8" or "a16", how they meet the codes."""
    longest = max(options.prompt, _PROMPT + options.output) + 1
    common: dict[str, Any] = {"max_model_len": longest, "max_num_seqs": 8, "num_threads": options.threads}
    at_load = weights if inputs == "a8" else f"{weights}-a16"
    sides = [
        load_subject(EngineConfig(model=source, quantization=at_load, **common), roofline=False),
        load_subject(EngineConfig(model=str(folder), quantization=inputs, **common), roofline=False),
    ]
    for load in loads:
        loaded, stored = in_turn([partial(load.seconds, side) for side in sides], options.turns)
        ratio = statistics.median(one / other for one, other in zip(loaded, stored, strict=True))
        cells = [f"{1e3 * statistics.median(side):.3f} ms" for side in (loaded, stored)]
        print(
            f"| {name} | {weights} | {inputs} | {load.what} | {' | '.join(cells)} | {ratio:.3f} |", flush=True
        )


def in_turn(sides: Sequence[Callable[[], float]], turns: int) -> list[list[float]]:
    """What each side gave in each turn, after one that is not counted; the first to go changes."""
    found: list[list[float]] = [[] for _ in sides]
    for turn in range(turns + 1):
        order = range(len(sides)) if turn % 2 else reversed(range(len(sides)))
        for at in order:
            value = sides[at]()
            if turn:
                found[at].append(value)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantization.loaded", description=__doc__, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--models", nargs="+", default=["tale", "shape:smollm2-135m"], metavar="MODEL",
        help="bundled names, folders, or shape:NAME with random weights (default: tale shape:smollm2-135m)",
    )  # fmt: skip
    parser.add_argument("--bits", nargs="+", type=int, default=[4, 8], choices=[4, 8], help="of a code")
    parser.add_argument(
        "--groups", nargs="+", type=int, default=[64], choices=[32, 64, 128], help="group sizes"
    )
    parser.add_argument(
        "--inputs", nargs="+", default=["a8", "a16"], choices=["a8", "a16"],
        help="how inputs meet the codes: rounded to 8 bits, or in bfloat16 (default: both)",
    )  # fmt: skip
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--output", type=int, default=32, help="tokens to decode (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=11, help="of each side (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of both (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
