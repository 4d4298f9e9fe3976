"""Memory that the plan predicts beside memory that becomes resident: models x formats, each in a process of its own.

    python -m benchmarks.memory                           six models in bf16, int8 and int4, and int8 keys
    python -m benchmarks.memory --models tale shape:qwen3-0.6b --formats int4

A process imports everything and serves a tiny model first: what is resident then is the interpreter's share. It then
loads the model and serves as many sequences as the KV pools hold, all of full length, in the largest steps. `planned`
is the ledger of `headrace inspect` without the two lines that such a load never touches (logits of every token, and
embeddings); `more` is the growth over the interpreter's share. The last column is of the whole process: interpreter and
plan against what is resident. See docs/planning.md.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace import LLM, SamplingParams
from headrace.core.types import NewRequest
from headrace.plan.ledger import ledger
from headrace.plan.report import table
from headrace.plan.units import MIB
from headrace.quant.format import PAGE
from headrace.runner.native_kv import NativeKV

MODELS = (
    "tale", "shape:smollm2-135m", "shape:smollm2-360m", "shape:qwen3-0.6b", "shape:gemma-3-1b", "shape:tinyllama-1.1b",
)  # fmt: skip
FORMATS = ("bf16", "int8", "int4", "int4 + KV int8")
SEQUENCES, TOKENS, OUTPUTS, STEP = 4, 512, 16, 512
_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One model in one format; bytes. pools: allocated for KV, beside `kv`, which is planned. weights_more, more: what
    became resident by loading, and by serving as well."""

    model: str
    format: str
    interpreter: int
    weights: int
    kv: int
    activations: int
    pools: int
    weights_more: int
    more: int

    @property
    def planned(self) -> int:
        return self.weights + self.kv + self.activations

    @property
    def error(self) -> float:
        """Of the plan: (planned - resident) / resident, without the interpreter."""
        return self.planned / self.more - 1

    @property
    def process_error(self) -> float:
        """Of the process: the interpreter counts on both sides."""
        return (self.interpreter + self.planned) / (self.interpreter + self.more) - 1


def resident_bytes() -> int:
    """What this process has resident, after what Python has freed is given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup has no Rss")


def _load(model: str, format: str, tokens: int) -> LLM:
    weights, _, keys = format.partition(" + KV ")
    return LLM(
        model,
        tokenizer="tale",
        dtype="bfloat16",
        quantization=None if weights == "bf16" else weights,
        kv_cache_dtype=keys or "auto",
        max_model_len=tokens,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=STEP,
        enable_prefix_caching=False,
        show_progress=False,
    )


def _serve(llm: LLM, tokens: int) -> None:
    """As many sequences as there is room for, all at once, of full length."""
    parts = llm.parts
    engine, executor, source = parts.engine, parts.executor, random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUTS, ignore_eos=True)
    vocab = min(parts.spec.vocab_size, 256)
    for number in range(SEQUENCES):
        prompt = tuple(source.randrange(vocab) for _ in range(tokens - OUTPUTS))
        engine.add(NewRequest(str(number), prompt, params), time.monotonic())
    while engine.has_work:
        result = executor.execute(engine.begin(time.monotonic()))
        for output in engine.finish(result, time.monotonic()):
            if output.error is not None:
                raise RuntimeError(output.error)


def measure(model: str, format: str) -> Row:
    """Measure one row, in this process."""
    first = _load("shape:tiny", format, 64)
    _serve(first, 64)
    del first
    interpreter = resident_bytes()
    llm = _load(model, format, TOKENS)
    parts = llm.parts
    loaded = resident_bytes()
    _serve(llm, TOKENS)
    served = resident_bytes()
    plan = ledger(parts.spec, parts.resolved)
    lines = {line.name: line.bytes for line in plan.activations}
    touched = sum(size for name, size in lines.items() if name not in ("logits", "embeddings"))
    touched += -(-SEQUENCES * parts.spec.vocab_size * _LOGIT_BYTES // PAGE) * PAGE
    pools = sum(one.nbytes for one in gc.get_objects() if isinstance(one, NativeKV))
    return Row(
        model, format, interpreter, plan.weight_bytes, plan.kv_pool_bytes, touched, pools,
        loaded - interpreter, served - interpreter,
    )  # fmt: skip


def report(rows: Sequence[Row]) -> str:
    """A line a row, and the largest errors."""
    lines: list[tuple[str, ...]] = [
        ("model", "format", "interpreter", "weights", "loaded", "KV", "pools", "activations", "planned", "more",
         "plan", "process"),
    ]  # fmt: skip
    for row in rows:
        sizes = (row.interpreter, row.weights, row.weights_more, row.kv)
        lines.append(
            (
                row.model, row.format, *(f"{size / MIB:.1f}" for size in sizes),
                "to the byte" if row.pools == row.kv else f"{row.pools - row.kv:+} B",
                *(f"{size / MIB:.1f}" for size in (row.activations, row.planned, row.more)),
                f"{row.error:+.1%}", f"{row.process_error:+.1%}",
            )
        )  # fmt: skip
    worst, process = max(abs(row.error) for row in rows), max(abs(row.process_error) for row in rows)
    text = table(lines, right=frozenset({2, 3, 4, 5, 7, 8, 9, 10, 11}))
    return (
        f"{text}\n\nMiB. Largest error of the plan alone {worst:.1%}, of the whole process {process:.1%}.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="MODEL")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), metavar="FORMAT")
    parser.add_argument(
        "--json", action="store_true", help="print a line of plain values a row, as they come"
    )
    parser.add_argument("--row", nargs=2, metavar=("MODEL", "FORMAT"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.row is not None:
        print(json.dumps(asdict(measure(*args.row))))
        return 0
    rows = []
    for model in args.models:
        for format in args.formats:
            words = [sys.executable, "-m", "benchmarks.memory", "--row", model, format]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(Row(**json.loads(done.stdout.splitlines()[-1])))
            if args.json:
                print(json.dumps(asdict(rows[-1])), flush=True)
            elif sys.stderr.isatty():
                print(f"{model} in {format}", file=sys.stderr)
    if not args.json:
        print(report(rows), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
