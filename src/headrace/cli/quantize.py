"""`headrace quantize`: make a model of fewer bits, in a format that other engines load, and say what it lost."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.parser import add_cache_flag, add_command, add_number, check_range, needs_extra, typed
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.evaluation.measures import Agreement, Divergence
    from headrace.evaluation.quality import Limits
    from headrace.models.source import ModelSource
    from headrace.models.spec import ModelSpec
    from headrace.quantize.fp8 import Strategy
    from headrace.quantize.gguf.run import GGUFOptions
    from headrace.quantize.run import QuantizeOptions, Report

EXAMPLES = """\
examples:
  headrace quantize tale -o ./tale-4bit --eval
  headrace quantize ./my-model -o ./my-model-4bit --group-size 32 --asymmetric
  headrace quantize ./my-model -o ./my-model-3bit --bits 3 --format gptq --act-order group --data texts.jsonl
  headrace quantize ./my-model -o ./my-model-8bit --method rtn --bits 8 --group-size channel --samples 0
  headrace quantize ./my-model -o ./my-model-awq --method awq --asymmetric --format awq
  headrace quantize ./my-model -o ./my-model-w8a8 --method smoothquant --rotate
  headrace quantize ./my-model -o ./my-model-fp8 --method fp8 --group-size 128x128 --format fp8 --samples 0
  headrace quantize ./my-model -o ./my-model-gguf --format gguf:Q4_K_M
  headrace quantize ./my-model -o ./my-model-auto --method auto --format gguf:auto --bits-per-weight 4.25
  headrace quantize ./my-model -o ./my-model-good --format gguf:Q4_K_S --max-kl 0.01
Then: headrace serve ./my-model-4bit

A line of a .jsonl file is {"text": …}, {"prompt": …}, {"prompt": …, "completion": …} or {"messages": […]}; any other
file is text, in paragraphs.
"""
AUTO_METHOD = "auto"
_TOGETHER = "--method auto and --format gguf:auto go together: each tensor gets a type of its own"
_WORST = 3
_BITS, _GROUP = 4, "128"
_DECIDING = (
    "bits", "group_size", "asymmetric", "clip", "act_order", "rotate", "head", "smoothing", "static_inputs", "data",
    "samples", "length", "seed", "bits_per_weight", "size",
)  # fmt: skip
"""Options that decide what is written, besides method, format and limits."""
_STRATEGIES: Mapping[str, Strategy] = {"tensor": "tensor", "channel": "channel", "128x128": "block"}
"""Of fp8, by the words of --group-size."""


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "quantize", "[options] MODEL -o FOLDER", examples=EXAMPLES,
        summary="make a model of fewer bits, and say what it lost",
        description="Write a model into a new folder with the matrices of its layers as whole numbers of few bits. "
        "Texts run through the model layer by layer, one layer of weights in memory at a time; the embedding, the "
        "head, norms and routers stay as they are. The folder is read by Headrace and by other engines. Killed and "
        "started again, the command goes on after the last finished layer, and gives the same files. Needs torch.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="bundled name, folder or hub id, in safetensors")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FOLDER", help="where to write; it must not be there yet"
    )  # fmt: skip
    group = parser.add_argument_group("codes")
    group.add_argument(
        "--method", choices=("rtn", "gptq", "awq", "smoothquant", "fp8", AUTO_METHOD), default="gptq",
        help="rtn: each weight becomes the nearest code; gptq: the weights that are left make up for each error; awq: "
        "features with large inputs are scaled up before rounding, and ranges are clipped; smoothquant: 8 bits for "
        "weights and inputs; fp8: 8-bit floats for both; auto: each tensor gets the GGUF type that helps most within a "
        "budget (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--bits",
        type=int,
        choices=(2, 3, 4, 8),
        help=f"of a code (default: {_BITS}; smoothquant and fp8 have 8)",
    )
    group.add_argument(
        "--group-size", metavar="16..256|channel|tensor|128x128",
        help="input features with a common scale; of fp8 channel, tensor or 128x128 weights "
        f"(default: {_GROUP}; of smoothquant and fp8 channel)",
    )  # fmt: skip
    group.add_argument("--asymmetric", action="store_true", help="a zero point for each group")
    group.add_argument(
        "--clip", action="store_true", help="search each group's range for the least squared error"
    )
    group.add_argument(
        "--act-order", nargs="?", const="static", choices=("static", "group"), metavar="static|group",
        help="of gptq: columns with the largest inputs first; static: groups as they are, group: those of similar "
        "inputs share a group, which is more exact, slower to run, and for --format gptq (default: off; "
        "without a word: static)",
    )  # fmt: skip
    group.add_argument(
        "--rotate", action="store_true",
        help="first rotate the model by Hadamard matrices that are folded into its weights, which spreads large "
        "features over all; a head that is the embeddings becomes a matrix of its own",
    )  # fmt: skip
    group.add_argument(
        "--head", action="store_true",
        help="quantise the head as well; one that is the embeddings becomes a matrix of its own",
    )  # fmt: skip
    group.add_argument(
        "--smoothing", type=float, default=0.5, metavar="A",
        help="of smoothquant: 0 leaves all of their size to large inputs, 1 gives it to the weights "
        "(default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--static-inputs", action="store_true",
        help="of fp8: one scale for the inputs of a matrix, calibrated; without it, each input gets its own",
    )  # fmt: skip
    group.add_argument(
        "--format", default="compressed-tensors", metavar="compressed-tensors|gptq|awq|fp8|gguf:TYPE",
        help="compressed-tensors holds 4 and 8 bits, gptq 2, 3, 4 and 8, awq 4, fp8 DeepSeek's blocks; gguf:Q4_K_M and "
        "the like write one file with llama.cpp's types, which say bits and groups themselves (default: %(default)s)",
    )  # fmt: skip
    group = parser.add_argument_group("calibration")
    group.add_argument("--data", type=Path, metavar="FILE", help="texts (default: bundled stories)")
    add_number(group, "--samples", 128, "texts; 0, for rtn: measure nothing")
    add_number(group, "--length", 512, "tokens of a text, at most; longer ones are cut into several")
    add_number(group, "--seed", 0, "of the choice of texts, and of rotations")
    add_number(group, "--num-threads", None, "CPU threads (default: all cores)")
    group = parser.add_argument_group("budget", "of --method auto, which chooses a type for each tensor")
    group.add_argument(
        "--bits-per-weight",
        type=float,
        metavar="BITS",
        help="of the matrices in layers, on average, such as 4.25",
    )
    group.add_argument("--size", metavar="BYTES", help="of the whole file, such as 8GiB")
    group = parser.add_argument_group("quality")
    group.add_argument(
        "--eval", action="store_true",
        help="measure what was lost beside MODEL: perplexity, KL divergence, likeliest tokens, greedy answers of 256 "
        "tokens; printed, and written into the folder as QUALITY.md, quality.json and quality.svg",
    )  # fmt: skip
    group.add_argument(
        "--max-kl", type=float, metavar="NATS",
        help="mean KL divergence a token that is allowed; matrices that hurt get more bits until it is met, or the "
        "command fails and says what would be met",
    )  # fmt: skip
    group.add_argument(
        "--max-perplexity-increase",
        type=float,
        metavar="PART",
        help="the same for the perplexity: 0.01 is one per cent",
    )
    group.add_argument(
        "--eval-data", type=Path, metavar="FILE", help="texts to measure on (default: bundled stories)"
    )
    add_number(group, "--eval-tokens", 20_000, "tokens of text to measure on, at most")
    add_cache_flag(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.models.source import HubOptions, resolve_model
    from headrace.models.stored import stored_spec
    from headrace.plan.units import format_bytes

    check_range("samples", args.samples, 0, 1_000_000)
    check_range("length", args.length, 2, 1_000_000)
    check_range("num-threads", args.num_threads, 1, 4096)
    with needs_extra("torch", "quantising"):
        from headrace.quantize.gguf.run import GGUFOptions, is_gguf, quantize_gguf
        from headrace.quantize.run import QuantizeOptions, quantize
    _check_quality(args)
    if args.method == AUTO_METHOD and not is_gguf(args.format):
        raise ConfigError(_TOGETHER)
    if is_gguf(args.format):
        asked: QuantizeOptions | GGUFOptions = _gguf_options(args)
    else:
        _check_no_budget(args)
        asked = _options(args)
        asked.check()
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        raise ConfigError(f"{args.output} is there already: name a folder that is not")
    source = resolve_model(args.model, HubOptions(download_dir=args.download_dir))
    spec = stored_spec(source)
    texts = _texts(args, source, spec.max_position) if args.samples and source.path is not None else []

    def make(options: QuantizeOptions | GGUFOptions, folder: Path) -> Report:
        with _Bar("quantising", "batch") as bar:
            if isinstance(options, QuantizeOptions):
                return quantize(source, spec, options, texts, folder, bar, args.num_threads)
            return quantize_gguf(
                source, spec, options, texts, folder, bar, args.num_threads, args.output.name
            )

    if isinstance(asked, GGUFOptions) and args.method == AUTO_METHOD:
        asked = _within_budget(args, source, spec, asked, texts)
    if args.max_kl is not None or args.max_perplexity_increase is not None:
        report = _gated(args, source, spec, asked, make)
    else:
        report = make(asked, args.output)
        if args.eval:
            _write_quality(args, report, _compare(args, args.output), args.output)
    _tell(report, bool(texts))
    print(
        f"{args.output}: {format_bytes(report.size)}, {report.bits:.2f} bits for each of {report.weights:,} weights"
    )
    print(typed(f"Next: `headrace serve {shlex.quote(str(args.output))}`"))
    return 0


def _options(args: argparse.Namespace) -> QuantizeOptions:
    from headrace.quantize.methods import METHODS
    from headrace.quantize.run import QuantizeOptions

    eight, floats = METHODS[args.method].only_eight, METHODS[args.method].floats
    size = args.group_size or ("channel" if eight else _GROUP)
    if floats and size not in _STRATEGIES:
        raise ConfigError(f"--group-size of fp8 must be {', '.join(_STRATEGIES)}, got {size!r:.40}")
    return QuantizeOptions(
        args.method,
        args.bits or (8 if eight else _BITS),
        None if floats else _group(size),
        not args.asymmetric,
        args.clip,
        args.act_order,
        format=args.format,
        strategy=_STRATEGIES[size] if floats else "channel",
        static=args.static_inputs,
        smoothing=args.smoothing,
        rotate=args.rotate,
        seed=args.seed,
        head=args.head,
    )


def _check_quality(args: argparse.Namespace) -> None:
    check_range("max-kl", args.max_kl, 0.0, 100.0)
    check_range("max-perplexity-increase", args.max_perplexity_increase, 0.0, 100.0)
    check_range("eval-tokens", args.eval_tokens, 2, 10**9)


def _check_no_budget(args: argparse.Namespace) -> None:
    if args.bits_per_weight is not None or args.size is not None:
        raise ConfigError("--bits-per-weight and --size are for --method auto --format gguf:auto")


def _within_budget(
    args: argparse.Namespace, source: ModelSource, spec: ModelSpec, options: GGUFOptions, texts: Any
) -> GGUFOptions:
    """With the types of --method auto."""
    from headrace.plan.units import parse_bytes
    from headrace.quantize.gguf.auto import Budget, sensitivity_table

    budget = Budget(args.bits_per_weight, None if args.size is None else parse_bytes(args.size))
    with _Bar("measuring", "layer") as bar:
        table = sensitivity_table(source, spec, options, texts, bar, args.num_threads)
    types = table.choose(budget)
    counts = Counter(type for _, type in types)
    print("types: " + ", ".join(f"{count} x {type}" for type, count in sorted(counts.items())))
    return replace(options, types=types)


def _gated(
    args: argparse.Namespace,
    source: ModelSource,
    spec: ModelSpec,
    asked: QuantizeOptions | GGUFOptions,
    make: Any,
) -> Report:
    """Quantise until the limits are met."""
    from headrace.evaluation.quality import Limits
    from headrace.quantize.gate import FolderPlan, GGUFPlan, within_limits
    from headrace.quantize.gguf.run import open_job
    from headrace.quantize.run import QuantizeOptions

    plan: FolderPlan | GGUFPlan = (
        FolderPlan(asked)
        if isinstance(asked, QuantizeOptions)
        else GGUFPlan(asked, *open_job(source, spec, asked).tensors())
    )
    limits = Limits(args.max_kl, args.max_perplexity_increase)
    plan, report, divergence, agreement, folder = within_limits(
        plan,
        limits,
        args.output,
        lambda one, folder: make(one.options, folder),
        lambda folder: _compare(args, folder),
        lambda text: print(text, file=sys.stderr),
    )
    _write_quality(args, report, (divergence, agreement), folder, limits, plan.wide)
    if args.output.is_dir():
        args.output.rmdir()  # it is empty, as was checked
    folder.rename(args.output)
    return report


def _compare(args: argparse.Namespace, folder: Path) -> tuple[Divergence, Agreement]:
    from headrace.cli.evaluate import compare

    return compare(str(folder), args.model, args.eval_data, args.eval_tokens, args.num_threads)


def _write_quality(
    args: argparse.Namespace, report: Report, found: tuple[Divergence, Agreement], folder: Path,
    limits: Limits | None = None, wide: tuple[tuple[str, str], ...] = (),
) -> None:  # fmt: skip
    from headrace.evaluation.quality import Limits, Quality, write_quality

    quality = Quality(
        args.output.name,
        args.model,
        _words(args),
        *found,
        report.errors,
        report.size,
        report.bits,
        limits or Limits(),
        wide,
        bool(args.samples),
    )
    write_quality(folder, quality)
    for name, value in quality.rows():
        print(f"{name:<40}{value}")


def _words(args: argparse.Namespace) -> str:
    """The command, with the options that decide what is written."""
    words = ["headrace quantize", f"--method {args.method}", f"--format {args.format}"]
    for name in _DECIDING:
        value = getattr(args, name)
        if value is None or value is False:
            continue
        flag = "--" + name.replace("_", "-")
        words.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return " ".join(words)


def _gguf_options(args: argparse.Namespace) -> GGUFOptions:
    from headrace.quantize.gguf.mixes import AUTO
    from headrace.quantize.gguf.run import METHODS, GGUFOptions, mix_of

    mix = mix_of(args.format)
    budgets = [one for one in (args.bits_per_weight, args.size) if one is not None]
    if (mix == AUTO) != (args.method == AUTO_METHOD):
        raise ConfigError(_TOGETHER)
    if args.method == AUTO_METHOD:
        if len(budgets) != 1:
            raise ConfigError("--method auto needs one of --bits-per-weight and --size")
        check_range("bits-per-weight", args.bits_per_weight, 1.0, 16.0)
    else:
        _check_no_budget(args)
    if args.method not in (*METHODS, AUTO_METHOD):
        raise ConfigError(
            f"--format {args.format} is written with --method {' or '.join(METHODS)}, not {args.method}"
        )
    given = {
        "--bits": args.bits is not None, "--group-size": args.group_size is not None, "--asymmetric": args.asymmetric,
        "--clip": args.clip, "--act-order": args.act_order is not None, "--rotate": args.rotate, "--head": args.head,
    }  # fmt: skip
    if wrong := [name for name, one in given.items() if one]:
        raise ConfigError(
            f"{wrong[0]} is for other formats: the types of GGUF say bits and groups themselves"
        )
    return GGUFOptions(mix, "gptq" if args.method == AUTO_METHOD else args.method)


def _group(text: str) -> int | None:
    if text == "channel":
        return None
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"--group-size must be 16 to 256, or channel, got {text!r:.40}")
    return int(text)


def _texts(args: argparse.Namespace, source: Any, longest: int) -> list[tuple[int, ...]]:
    from headrace.evaluation.documents import read_records
    from headrace.quantize.calibration import BUNDLED_CALIBRATION, calibration_texts
    from headrace.text.tokenizer_source import open_tokenizer

    path = BUNDLED_CALIBRATION if args.data is None else args.data
    where = "the bundled file" if args.data is None else str(path)
    length = min(args.length, longest)
    return calibration_texts(
        read_records(path), open_tokenizer(source.path), args.samples, length, args.seed, where
    )


def _tell(report: Report, calibrated: bool) -> None:
    if report.kept:
        print(
            f"left as they are, because their sizes do not fit the format: {len(report.kept)} matrices, such as "
            f"{report.kept[0]}"
        )
    if report.unscaled:
        print(
            f"not scaled, because nothing before them can take up factors: {len(report.unscaled)} matrices, such as "
            f"{report.unscaled[0]}"
        )
    errors: Mapping[str, float] = report.errors
    if not errors:
        return
    what = "of the products of each matrix" if calibrated else "of the weights of each matrix"
    worst = sorted(errors, key=lambda name: -errors[name])[:_WORST]
    print(
        f"relative error {what}: {sum(errors.values()) / len(errors):.2%} on average; largest: "
        + ", ".join(f"{name} {errors[name]:.2%}" for name in worst)
    )


class _Bar:
    """Batches of texts through layers, on a terminal."""

    def __init__(self, what: str, unit: str) -> None:
        self._what, self._unit = what, unit

    def __enter__(self) -> _Bar:
        from tqdm import tqdm

        self._bar = tqdm(desc=self._what, unit=self._unit, disable=None, leave=False, file=sys.stderr)
        return self

    def __call__(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def __exit__(self, *_: object) -> None:
        self._bar.close()
