"""What quantising a model brings and costs: methods and bits side by side, each quantised by the command itself."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.bench.model.latency import closed_batch, decode_rates
from headrace.bench.model.subject import load_subject
from headrace.bench.report import Row, row_of_runs
from headrace.config import EngineConfig
from headrace.errors import ConfigError, ModelError
from headrace.evaluation.quality import NUMBERS

VARIANTS = (
    "rtn:8", "fp8", "smoothquant", "rtn:4", "gptq:4", "awq:4", "rtn:3", "gptq:3", "auto:4.13", "auto:3.13",
    "gguf:Q8_0", "gguf:Q6_K", "gguf:Q4_K_M", "gguf:Q3_K_M", "gguf:auto:4.25",
)  # fmt: skip
BATCHES = (1, 32)
_NEAREST = ("rtn", "fp8")
_INPUT, _OUTPUT = 32, 64
_RUNS, _SECONDS = 3, 5.0


def command_words(variant: str) -> list[str]:
    """The options of `headrace quantize` for METHOD, METHOD:BITS, METHOD:BITS:GROUP, auto:BITS, gguf:TYPE,
    gguf:TYPE:METHOD or gguf:auto:BITS. Raises ConfigError for anything else."""
    name, *rest = variant.split(":")
    if name == "gguf" and len(rest) == 2 and rest[0] == "auto":
        return ["--method", "auto", "--format", "gguf:auto", "--bits-per-weight", rest[1]]
    if name == "gguf" and 1 <= len(rest) <= 2:
        return ["--format", f"gguf:{rest[0]}", *(["--method", rest[1]] if len(rest) > 1 else [])]
    if name == "auto" and len(rest) == 1:
        return ["--method", "auto", "--bits-per-weight", rest[0]]
    if name in ("", "gguf", "auto") or len(rest) > 2 or not all(rest):
        raise ConfigError(
            f"{variant!r:.60} is not a variant: give METHOD, METHOD:BITS, METHOD:BITS:GROUP, auto:BITS, gguf:TYPE or "
            "gguf:auto:BITS"
        )
    words = ["--method", name]
    for flag, value in zip(("--bits", "--group-size"), rest, strict=False):
        words += [flag, value]
    return words


def quantization_rows(
    config: EngineConfig,
    folder: Path,
    variants: Sequence[str],
    seeds: Sequence[int],
    more: Sequence[str],
    progress: Callable[[str], None],
) -> Iterator[Row]:
    """A row for the model as it is, then one for each variant: the medians over the seeds of the calibration texts, and
    the speed of the first. folder: of the model's files. more: options of `headrace quantize` for all, `--eval` among
    them. What needs no texts is made with the first seed alone.

    Raises ModelError with the command's own message where a variant cannot be made.
    """
    progress("as it is")
    plain = _rates(config)
    told = False
    with TemporaryDirectory(prefix="headrace-bench-") as kept:
        for variant in variants:
            runs: list[dict[str, float]] = []
            rates: dict[str, float] = {}
            for seed in seeds_of(variant, seeds):
                progress(f"{variant}, seed {seed}")
                made = Path(kept) / "model"
                numbers = _quantise(folder, made, [*command_words(variant), "--seed", str(seed), *more])
                if not told:  # its perplexity is in each variant's numbers
                    told = True
                    original = {
                        "perplexity": numbers["divergence"]["reference"]["perplexity"],
                        **_stored(folder),
                    }
                    yield row_of_runs({"variant": "as it is"}, [{**original, **plain}])
                runs.append(_lost(numbers))
                rates = rates or _rates(replace(config, model=str(made), tokenizer=config.tokenizer))
                shutil.rmtree(made)
            row = row_of_runs({"variant": variant}, runs)
            yield replace(row, values={**row.values, **rates})


def seeds_of(variant: str, seeds: Sequence[int]) -> Sequence[int]:
    """Those with which a variant differs: the nearest codes need no texts."""
    return seeds[:1] if variant.split(":")[0] in _NEAREST else seeds


def _lost(numbers: Mapping[str, Any]) -> dict[str, float]:
    """The metrics in what `headrace quantize --eval` has written."""
    divergence = numbers["divergence"]
    return {
        "checkpoint_bytes": float(numbers["size"]),
        "bits_per_weight": float(numbers["all_bits"]),
        "perplexity": float(divergence["model"]["perplexity"]),
        "perplexity_increase": float(divergence["perplexity_increase"]),
        "increase_error": float(divergence["increase_error"]),
        "kl": float(divergence["mean"]),
        "top_1": float(divergence["top_1"]),
    }


def best_of(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those (bits, KL) that no other one beats in both, fewest bits first."""
    found: list[tuple[float, float]] = []
    for bits, kl in sorted(points):
        if not found or kl < found[-1][1]:
            found.append((bits, kl))
    return found


def draw_pareto(Figure: Any, rows: Sequence[Row]) -> Any:
    """KL divergence over bits a weight, with a line through the variants that no other one beats in both."""
    points = sorted(
        (row.values["bits_per_weight"], row.values["kl"], str(row.labels["variant"]))
        for row in rows
        if "kl" in row.values
    )
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.add_subplot()
    front = best_of([(bits, kl) for bits, kl, _ in points])
    for bits, kl, name in points:
        axes.annotate(name, (bits, kl), xytext=(5, 4), textcoords="offset points", fontsize=8)
    axes.plot([bits for bits, *_ in points], [kl for _, kl, _ in points], "o", color="#3b7ea1")
    axes.plot([bits for bits, _ in front], [kl for _, kl in front], color="#c4572e", lw=1)
    axes.set_yscale("log")
    axes.set_xlabel("bits a weight")
    axes.set_ylabel("KL divergence, nats a token")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _stored(folder: Path) -> dict[str, float]:
    """Bytes of the model's weights as they are."""
    return {"checkpoint_bytes": float(sum(one.stat().st_size for one in folder.glob("*.safetensors")))}


def _rates(config: EngineConfig) -> dict[str, float]:
    """Decoded tokens a second of 1 and of 32 requests at once: the fastest of at least three runs and five seconds,
    because other work on a machine can only slow a run. The first run is not counted."""
    subject = load_subject(config, roofline=False)
    found = {}
    for batch in BATCHES:
        subject.check(batch=batch, length=_INPUT + _OUTPUT)
        closed_batch(subject, batch, _INPUT, _OUTPUT)
        rates: list[float] = []
        begin = time.perf_counter()
        while len(rates) < _RUNS or time.perf_counter() - begin < _SECONDS:
            rates.append(
                decode_rates(subject, closed_batch(subject, batch, _INPUT, _OUTPUT))["decode_tokens_per_s"]
            )
        found[f"decode_{batch}_tokens_per_s"] = max(rates)
    return found


def _quantise(model: Path, out: Path, words: Sequence[str]) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "headrace", "quantize", str(model), "-o", str(out), *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise ModelError(" ".join(run.stderr.split())[-600:] or "headrace quantize failed")
    numbers: dict[str, Any] = json.loads((out / NUMBERS).read_text(encoding="utf-8"))
    return numbers
