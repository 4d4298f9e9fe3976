"""Folders of 4 bits that Headrace and llm-compressor write, side by side: `python -m benchmarks.quantization.folders`.

Both get the same model, the same calibration texts and the same form: symmetric codes of 4 bits, the head left alone.
Both folders are compressed-tensors, and both are measured by `headrace eval kl`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.quantization.measure import LENGTH, Run, lost, texts_of, timed
from headrace.bench.report import machine_facts
from headrace.models.source import resolve_model

_EXAMPLES = """examples:
  python -m venv lc && lc/bin/pip install llmcompressor
  python -m benchmarks.quantization.folders --python lc/bin/python
  python -m benchmarks.quantization.folders --python lc/bin/python --model ./my-model --groups 128"""
_METHODS = {
    "rtn": ["--method", "rtn"],
    "gptq": ["--method", "gptq"],
    "gptq-ordered": ["--method", "gptq", "--act-order"],
    "awq": ["--method", "awq"],
}
"""The options of `headrace quantize` for each."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(words)
    if not options.python.is_file():
        print(f"{options.python} is missing: give the interpreter that has llm-compressor", file=sys.stderr)
        return 1
    source = resolve_model(options.model).path
    machine = machine_facts()
    print(
        f"{machine.cpu}, {options.threads} threads, {time.strftime('%Y-%m-%d')}. {options.model}, {options.samples} "
        "calibration texts; KL from the model as it is, on held-out text.\n"
    )
    print("| group | method | by | bytes | KL | perplexity | wall s | CPU s | peak MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    with TemporaryDirectory(prefix="headrace-quantization-") as kept:
        texts = Path(kept) / "texts.json"
        texts.write_text(json.dumps(texts_of(options.model, options.samples)), encoding="utf-8")
        for group in options.groups:
            for method in options.methods:
                out = Path(kept) / "theirs"
                words = [
                    str(options.python.absolute()), "-m", "benchmarks.quantization.llmcompressor_driver", str(source),
                    str(out), method, str(group), str(texts), str(options.threads),
                ]  # fmt: skip
                try:
                    took = timed(words)
                except SystemExit as failed:
                    why = str(failed).strip().splitlines()[-1]
                    print(f"| {group} | {method} | llm-compressor | {why:.100} | | | | | |", flush=True)
                else:
                    _show(group, method, "llm-compressor", out, took, options.model)
                out = Path(kept) / "ours"
                took = timed([
                    sys.executable, "-m", "headrace", "quantize", options.model, "-o", str(out), *_METHODS[method],
                    "--group-size", str(group), "--samples", str(options.samples), "--length", str(LENGTH),
                    "--num-threads", str(options.threads),
                ])  # fmt: skip
                _show(group, method, "Headrace", out, took, options.model)
    return 0


def _show(group: int, method: str, name: str, folder: Path, took: Run, model: str) -> None:
    """Print a row, and remove the folder."""
    found = lost(folder, model)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(
        f"| {group} | {method} | {name} | {size:,} | {found['mean']:.2e} | {found['model_perplexity']:.4f} | "
        f"{took.wall_s:.1f} | {took.cpu_s:.1f} | {took.peak / 1e6:.0f} |",
        flush=True,
    )
    shutil.rmtree(folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quantization.folders", description=__doc__, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--model", default="tale", help="a bundled name or a folder (default: %(default)s)")
    parser.add_argument("--groups", nargs="+", type=int, default=[32, 64], metavar="SIZE", help="group sizes")
    parser.add_argument(
        "--methods", nargs="+", default=list(_METHODS), choices=list(_METHODS), metavar="METHOD"
    )
    parser.add_argument("--samples", type=int, default=64, help="calibration texts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of both (default: %(default)s)")
    parser.add_argument("--python", type=Path, required=True, help="an interpreter that has llm-compressor")
    return parser


if __name__ == "__main__":
    sys.exit(main())
