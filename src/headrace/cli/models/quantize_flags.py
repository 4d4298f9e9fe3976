"""The flags of `headrace quantize`, and the options that they stand for."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.parser import add_cache_flag, add_number, check_range
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.quantize.gguf.run import GGUFOptions
    from headrace.quantize.options import QuantizeOptions
    from headrace.quantize.rounding.fp8 import Strategy

AUTO_METHOD = "auto"
PACKED = "headrace"
"""The format that the kernels read, made of a folder of codes."""
_DIGITS = 9
"""Of a number, at most: Python refuses thousands of them in its own words."""
_LARGEST_SEED = (1 << 63) - 1
_TOGETHER = "--format gguf:auto is for --method auto, which writes no other GGUF files"
_BITS, _GROUP = 4, "128"
_DECIDING = (
    "bits", "group_size", "asymmetric", "clip", "act_order", "rotate", "head", "smoothing", "static_inputs",
    "dynamic_inputs", "data", "self_calibration", "samples", "length", "seed", "bits_per_weight", "size",
)  # fmt: skip
"""Options that decide what is written, besides method, format and limits."""
_STRATEGIES: Mapping[str, Strategy] = {"tensor": "tensor", "channel": "channel", "128x128": "block"}
"""Of fp8, by the words of --group-size."""
_MIXED = ("compressed-tensors", "gptq")
"""Formats whose matrices may have different bits."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="bundled name, folder or hub id, in safetensors")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FOLDER", help="where to write: a new or empty folder"
    )  # fmt: skip
    group = parser.add_argument_group("codes")
    group.add_argument(
        "--method", choices=("rtn", "gptq", "awq", "awq-gptq", "smoothquant", "fp8", AUTO_METHOD), default="gptq",
        help="rtn: each weight becomes the nearest code; gptq: the weights that are left make up for each error; awq: "
        "features with large inputs are scaled up before rounding, and ranges are clipped; awq-gptq: the scaling "
        "of awq, then the codes of gptq; smoothquant: 8 bits for weights and inputs; fp8: 8-bit floats; auto: each "
        "matrix gets the bits and group size that help most within a budget, with awq-gptq's codes in clipped ranges; "
        "in GGUF files the type, with gptq's (default: %(default)s)",
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
        "--clip", action="store_true",
        help="search each group's range for the least squared error (awq always does, and auto where it makes a "
        "folder)",
    )  # fmt: skip
    group.add_argument(
        "--act-order", nargs="?", const="static", choices=("static", "group"), metavar="static|group",
        help="of gptq, awq-gptq and auto: columns with the largest inputs first; static: groups as they are, group: "
        "those of similar inputs share a group, which is more exact, slower to run, and for --format gptq (default: "
        "off; without a word: static)",
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
        "--smoothing", type=float, metavar="A",
        help="of smoothquant: 0 leaves all of their size to large inputs, 1 gives it to the weights (default: 0.5)",
    )  # fmt: skip
    group.add_argument(
        "--static-inputs", action="store_true",
        help="of fp8: a calibrated scale for the inputs of each matrix, for readers that round these to 8 bits too",
    )  # fmt: skip
    group.add_argument(
        "--dynamic-inputs", action="store_true",
        help="of fp8: readers are to round inputs to 8 bits, each with its own scale (default: inputs are not rounded)",
    )  # fmt: skip
    group.add_argument(
        "--format", default="compressed-tensors", metavar="compressed-tensors|gptq|awq|fp8|gguf:TYPE|headrace",
        help="compressed-tensors and gptq hold 2, 3, 4 and 8 bits, awq 4, fp8 DeepSeek's blocks; gguf:Q4_K_M and "
        "the like write one file with llama.cpp's types, which say bits and groups themselves; headrace is what the "
        "kernels of this machine map at start, for this version alone (default: %(default)s)",
    )  # fmt: skip
    group = parser.add_argument_group("calibration")
    group.add_argument("--data", type=Path, metavar="FILE", help="texts (default: bundled stories)")
    group.add_argument(
        "--self-calibration", action="store_true",
        help="on texts that the model samples itself, from the token that texts begin with or, with --data, from the "
        "beginnings of these; the whole model is loaded for it",
    )  # fmt: skip
    add_number(group, "--samples", 128, "texts; 0, for rtn: measure nothing")
    add_number(group, "--length", 512, "tokens of a text, at most; longer ones are cut into several")
    add_number(group, "--seed", 0, "of the choice of texts or of their sampling, and of rotations")
    add_number(group, "--num-threads", None, "CPU threads (default: all cores)")
    group = parser.add_argument_group("budget", "of --method auto")
    group.add_argument(
        "--bits-per-weight",
        type=float,
        metavar="BITS",
        help="of the matrices in layers, on average, such as 4.25",
    )
    group.add_argument(
        "--size", metavar="BYTES",
        help="of the folder, tokenizer and configs included, or of the GGUF file, such as 8GiB; of --format headrace "
        "of the folder that is packed; not of the pages of --eval",
    )  # fmt: skip
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


def parsed(args: argparse.Namespace) -> QuantizeOptions | GGUFOptions:
    """What the flags ask for; of auto, all but the budget's result. Raises ConfigError for flags that do not go
    together."""
    from headrace.plan.units import parse_bytes
    from headrace.quantize.gguf.run import is_gguf

    check_range("samples", args.samples, 0, 1_000_000)
    check_range("length", args.length, 2, 1_000_000)
    check_range("seed", args.seed, 0, _LARGEST_SEED)
    check_range("num-threads", args.num_threads, 1, 4096)
    check_range("max-kl", args.max_kl, 0.0, 100.0)
    check_range("max-perplexity-increase", args.max_perplexity_increase, 0.0, 100.0)
    check_range("eval-tokens", args.eval_tokens, 2, 10**9)
    check_range("bits-per-weight", args.bits_per_weight, 1.0, 16.0)
    if args.size is not None:
        parse_bytes(args.size)
    if args.smoothing is not None and args.method != "smoothquant":
        raise ConfigError("--smoothing is for --method smoothquant")
    if args.data is not None and not args.samples:
        raise ConfigError("--data needs --samples")
    if args.eval_data is not None and not (args.eval or limited(args)):
        raise ConfigError("--eval-data is for --eval and for limits of what is lost")
    budgets = [one for one in (args.bits_per_weight, args.size) if one is not None]
    if args.method == AUTO_METHOD and len(budgets) != 1:
        raise ConfigError("--method auto needs one of --bits-per-weight and --size")
    if args.method != AUTO_METHOD and budgets:
        raise ConfigError("--bits-per-weight and --size are for --method auto")
    if args.self_calibration and not args.samples:
        raise ConfigError("--self-calibration needs --samples")
    if is_gguf(args.format):
        return _gguf_options(args)
    asked = _auto_options(args) if args.method == AUTO_METHOD else _options(args)
    asked.check()
    return asked


def limited(args: argparse.Namespace) -> bool:
    """Whether what is lost has a limit."""
    return args.max_kl is not None or args.max_perplexity_increase is not None


def groups_asked(args: argparse.Namespace) -> tuple[int | None, ...] | None:
    """The one that `--method auto` is to use, if --group-size names one."""
    return None if args.group_size is None else (_group(args.group_size),)


def command_words(args: argparse.Namespace) -> str:
    """The command, with the options that decide what is written."""
    words = ["headrace quantize", f"--method {args.method}", f"--format {args.format}"]
    for name in _DECIDING:
        value = getattr(args, name)
        if value is None or value is False:
            continue
        flag = "--" + name.replace("_", "-")
        words.append(flag if value is True else f"{flag} {shlex.quote(str(value))}")
    return " ".join(words)


def _options(args: argparse.Namespace) -> QuantizeOptions:
    from headrace.quantize.methods.smoothquant import STRENGTH
    from headrace.quantize.methods.table import METHODS
    from headrace.quantize.options import QuantizeOptions

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
        format=_folder_format(args),
        strategy=_STRATEGIES[size] if floats else "channel",
        static=args.static_inputs,
        dynamic=args.dynamic_inputs,
        smoothing=STRENGTH if args.smoothing is None else args.smoothing,
        rotate=args.rotate,
        seed=args.seed,
        head=args.head,
    )


def _folder_format(args: argparse.Namespace) -> str:
    """That of the codes."""
    if args.format != PACKED:
        return str(args.format)
    return "gptq" if args.act_order == "group" else "compressed-tensors"


def _auto_options(args: argparse.Namespace) -> QuantizeOptions:
    from headrace.quantize.options import QuantizeOptions, check_texts

    if _folder_format(args) not in _MIXED:
        raise ConfigError(
            f"--method auto writes --format {', '.join(_MIXED)} and gguf:auto, not {args.format!r:.40}"
        )
    given = {
        "--bits": args.bits is not None, "--rotate": args.rotate, "--head": args.head,
        "--static-inputs": args.static_inputs, "--dynamic-inputs": args.dynamic_inputs,
    }  # fmt: skip
    if wrong := [name for name, one in given.items() if one]:
        raise ConfigError(
            f"{wrong[0]} does not go with --method auto, which gives matrices their bits: leave it out"
        )
    check_texts(AUTO_METHOD, args.samples)
    return QuantizeOptions(
        "awq-gptq",
        group=_group(args.group_size or _GROUP),
        symmetric=not args.asymmetric,
        clip=True,
        order=args.act_order,
        format=_folder_format(args),
        seed=args.seed,
    )


def _gguf_options(args: argparse.Namespace) -> GGUFOptions:
    from headrace.quantize.gguf.mixes import AUTO
    from headrace.quantize.gguf.run import METHODS, GGUFOptions, mix_of

    mix = mix_of(args.format)
    if (mix == AUTO) != (args.method == AUTO_METHOD):
        raise ConfigError(_TOGETHER)
    if args.method not in (*METHODS, AUTO_METHOD):
        raise ConfigError(
            f"--format {args.format} is written with --method {' or '.join(METHODS)}, not {args.method}"
        )
    given = {
        "--bits": args.bits is not None, "--group-size": args.group_size is not None, "--asymmetric": args.asymmetric,
        "--clip": args.clip, "--act-order": args.act_order is not None, "--rotate": args.rotate, "--head": args.head,
        "--static-inputs": args.static_inputs, "--dynamic-inputs": args.dynamic_inputs,
    }  # fmt: skip
    if wrong := [name for name, one in given.items() if one]:
        raise ConfigError(
            f"{wrong[0]} does not go with --format {args.format}, whose types say how weights are stored: "
            "leave it out"
        )
    return GGUFOptions(mix, "gptq" if args.method == AUTO_METHOD else args.method)


def _group(text: str) -> int | None:
    if text == "channel":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
        raise ConfigError(f"--group-size must be 16 to 256, or channel, got {text!r:.40}")
    return int(text)
