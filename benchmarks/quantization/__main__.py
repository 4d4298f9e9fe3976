"""The command: `python -m benchmarks.quantization`; see docs/quantization.md."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.peers.peers import LLAMACPP
from benchmarks.peers.workplace import DEFAULT, Workplace
from benchmarks.quantization.measure import LENGTH, Run, headrace, lost, texts_of, timed
from headrace.bench.report import machine_facts
from headrace.models.loader import read_some
from headrace.models.source import resolve_model
from headrace.models.stored import stored_spec
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.calibration.walk import Walk, segments
from headrace.quantize.gguf.run import GGUFOptions, open_job

_EXAMPLES = """examples:
  python -m benchmarks.peers setup --only llamacpp    installs llama.cpp
  python -m benchmarks.quantization
  python -m benchmarks.quantization --mixes Q4_K_M Q3_K_M --samples 128"""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(words)
    python = options.python or Workplace(options.work.resolve()).python(LLAMACPP.name)
    if not python.is_file():
        print(f"{python} is missing: python -m benchmarks.peers setup --only llamacpp", file=sys.stderr)
        return 1
    machine = machine_facts()
    print(
        f"{machine.cpu}, {options.threads} threads, {time.strftime('%Y-%m-%d')}. {options.model}, {options.samples} "
        "calibration texts; KL from the model as it is, on held-out text.\n"
    )
    print(
        "| type | quantiser | bytes | KL | perplexity | wall s | CPU s | peak MB |\n|---|---|---|---|---|---|---|---|"
    )
    with TemporaryDirectory(prefix="headrace-quantization-") as kept:
        folder = Path(kept)
        wide = folder / "wide"
        headrace(
            "quantize",
            options.model,
            "-o",
            str(wide),
            "--format",
            "gguf:BF16",
            "--method",
            "rtn",
            "--samples",
            "0",
        )
        importance = folder / "importance.npz"
        np.savez(importance, allow_pickle=False, **_importance(options))
        whole = next(wide.glob("*.gguf"))
        for mix in options.mixes:
            for name, given in (("llama.cpp", ""), ("llama.cpp, importance matrix", str(importance))):
                out = folder / "theirs.gguf"
                took = timed([
                    str(python), "-m", "benchmarks.quantization.llamacpp_driver", str(whole), str(out), mix, given,
                    str(options.threads),
                ])  # fmt: skip
                _show(mix, name, out, took, options.model)
                out.unlink()
            for method in ("rtn", "gptq"):
                out = folder / "ours"
                took = timed([
                    sys.executable, "-m", "headrace", "quantize", options.model, "-o", str(out), "--format",
                    f"gguf:{mix}", "--method", method, "--samples", str(options.samples), "--length", str(LENGTH),
                    "--num-threads", str(options.threads),
                ])  # fmt: skip
                _show(mix, f"Headrace, {method}", next(out.glob("*.gguf")), took, options.model)
                shutil.rmtree(out)
    return 0


def _importance(options: argparse.Namespace) -> dict[str, Any]:
    """The mean square of the inputs of each tensor, of the model as it is, on the texts that Headrace calibrates on."""
    torch.set_num_threads(options.threads)
    source = resolve_model(options.model)
    spec = stored_spec(source)
    texts = texts_of(options.model, options.samples)
    job = open_job(source, spec, GGUFOptions())
    walk, parts = Walk(job.program, texts), job.parts()
    found: dict[str, Any] = {}
    for segment in segments(job.program):
        weights = read_some(job.stored, segment.weights, dtype=torch.float32)
        own = [one for one in parts if one.weight in segment.weights]
        hessians = Hessians({one.weight.name for one in own})
        walk.observe(weights, hessians.watch)
        for one in own:
            found[one.name] = torch.cat([each.diagonal() for each in hessians.of(one.weight.name)]).numpy()
        walk.advance(weights)
    return found


def _show(mix: str, name: str, file: Path, took: Run, model: str) -> None:
    found = lost(file, model)
    print(
        f"| {mix} | {name} | {file.stat().st_size:,} | {found['mean']:.2e} | {found['model_perplexity']:.4f} | "
        f"{took.wall_s:.1f} | {took.cpu_s:.1f} | {took.peak / 1e6:.0f} |",
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantization", description=__doc__, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", default="tale", help="a bundled name or a folder (default: %(default)s)")
    parser.add_argument("--mixes", nargs="+", default=["Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K"], metavar="TYPE")
    parser.add_argument("--samples", type=int, default=64, help="calibration texts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of both (default: %(default)s)")
    parser.add_argument("--python", type=Path, default=None, help="an interpreter that has llama_cpp")
    parser.add_argument("--work", type=Path, default=DEFAULT, help="the working folder of benchmarks.peers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
