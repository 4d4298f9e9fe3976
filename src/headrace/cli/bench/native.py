"""Benchmarks of the native kernels: each by itself, and all of them in the steps of a model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.cli.bench.kind import Flags, Kind, Prepared, prepare_subject
from headrace.cli.parser import add_number
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.bench.model.latency import Progress
    from headrace.bench.model.subject import Subject
    from headrace.bench.native.roofline import Roofline
    from headrace.bench.report import Row
    from headrace.quant.format import WeightFormat

DEFAULT_SHAPE = "shape:tinyllama-1.1b"
OPS = ("linear", "attention", "encode", "sample")
SAMPLING = ("greedy", "top-p", "top-k", "grammar")
"""As in `bench.native.kernels` and `bench.model.overhead`, whose import is too slow for help; a test compares them."""

# ---- kernels ----


def _kernels_flags(parser: Flags) -> None:
    parser.add_argument(
        "-m", "--model", default=DEFAULT_SHAPE,
        help="where the shapes come from; no weights are read (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--ops",
        nargs="+",
        choices=OPS,
        default=list(OPS),
        metavar="OP",
        help=f"of {', '.join(OPS)} (default: all)",
    )
    parser.add_argument(
        "--formats", nargs="+", default=["bf16", "int8", "int4"], metavar="FORMAT",
        help="f32, bf16, bf16-a32, f16 (the last two meet activations in float32), or formats as --quantization takes "
        "them, or all (default: bf16 int8 int4)",
    )  # fmt: skip
    add_number(
        parser, "--rows", [1, 8, 32, 512],
        "tokens of a step: up to 64 are one of as many sequences, more are one prompt",
    )  # fmt: skip
    add_number(parser, "--context", 1024, "tokens that each sequence holds when it decodes")
    add_number(
        parser, "--computed", None, "tokens of a prompt that are computed before its rows (default: none)"
    )
    parser.add_argument(
        "--instruction-sets", nargs="+", default=["best"], metavar="NAME",
        help="best, all, or names such as avx2; a wrong name lists those of this machine (default: best)",
    )  # fmt: skip
    add_number(parser, "--num-threads", None, "CPU threads (default: all cores)")
    parser.add_argument(
        "--pin-threads", action="store_true", help="bind each CPU thread to a core of its own"
    )


def _kernels(args: argparse.Namespace) -> Prepared:
    from headrace.bench.native.kernels import kernel_rows
    from headrace.bench.native.roofline import native_module
    from headrace.models.families import read_spec
    from headrace.models.source import resolve_model
    from headrace.ops.cpu_features import detect

    native = native_module()
    if native is None:
        raise ConfigError(f"there are no native kernels to measure: {detect().note}")
    formats = _formats(args.formats)
    source = resolve_model(args.model)
    spec = read_spec(source.config, source.generation_config)
    rooflines = [_roofline(name, args.num_threads) for name in _sets(args.instruction_sets)]

    def rows(progress: Progress) -> Iterator[Row]:
        return kernel_rows(
            native, spec, rooflines, ops=args.ops, formats=formats, row_counts=args.rows, context=args.context,
            computed=args.computed or 0, repeats=args.repeats, pin=args.pin_threads, progress=progress,
        )  # fmt: skip

    return Prepared(
        rows,
        None,
        {"model": args.model, "num_threads": rooflines[0].threads, "pin_threads": args.pin_threads},
        roofline=rooflines[0],
        head=[f"shapes of {args.model}", *(roofline.describe() for roofline in rooflines)],
    )


def _sets(names: list[str]) -> list[str]:
    """Raises ConfigError for an instruction set that is not here. The emulation is only taken by name: it is slow."""
    from headrace.bench.native.roofline import kernel_names

    here = kernel_names()
    if names == ["best"]:
        return [here[0]]
    if names == ["all"]:
        return [name for name in here if not name.endswith("-emulated")]
    for name in names:
        if name not in here:
            raise ConfigError(f"there are no kernels {name!r:.80} here: best, all, or of {', '.join(here)}")
    return names


def _roofline(kernels: str, threads: int | None) -> Roofline:
    from headrace.bench.native.roofline import measure_roofline

    roofline = measure_roofline(kernels, threads)
    assert roofline is not None  # the native kernels are here
    return roofline


def _formats(names: list[str]) -> list[WeightFormat]:
    """The formats of those names; "all" means every layout of codes with the scales that it usually has."""
    from headrace.quant.block_formats import BLOCK_FORMATS, named_format
    from headrace.quant.format import FLOAT_FORMATS

    if names == ["all"]:
        names = ["bf16", "int8", "int4", "nf4", "fp8", *BLOCK_FORMATS]
    return [FLOAT_FORMATS[name] if name in FLOAT_FORMATS else named_format(name) for name in names]


# ---- profile ----


def _profile_flags(parser: Flags) -> None:
    add_number(parser, "--batch-sizes", [1], "requests at once", "B")
    add_number(parser, "--input-len", 128, "prompt tokens")
    add_number(parser, "--output-len", 64, "output tokens")
    parser.add_argument("--prefill", action="store_true", help="the steps of the prompts instead of decoding")


def _profile(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.profile import profile_rows, tape_of

    def rows(subject: Subject, progress: Progress) -> Iterator[Row]:
        tape = tape_of(subject.parts.executor)
        if tape is None:
            raise ConfigError(
                f"only native kernels can be profiled; {args.model} runs on torch here (see `headrace inspect`)"
            )
        return profile_rows(
            subject, tape, batch_sizes=args.batch_sizes, input_len=args.input_len, output_len=args.output_len,
            prefill=args.prefill, repeats=args.repeats, progress=progress,
        )  # fmt: skip

    return prepare_subject(args, rows, len(args.batch_sizes) * (args.repeats + 1))


# ---- overhead ----


def _overhead_flags(parser: Flags) -> None:
    add_number(parser, "--batch-sizes", [1, 8, 32], "sequences", "B")
    parser.add_argument(
        "--sampling", nargs="+", choices=SAMPLING, default=["greedy", "top-p"], metavar="NAME",
        help=f"of {', '.join(SAMPLING)} (default: greedy top-p)",
    )  # fmt: skip
    add_number(parser, "--steps", 300, "decode steps of each run")


def _overhead(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.overhead import SAMPLING, overhead_rows, prepared_logits
    from headrace.bench.model.profile import tape_of
    from headrace.bench.model.wide_tokenizer import widened
    from headrace.models.source import BUNDLED_FOLDER
    from headrace.runner.executor import ModelExecutor
    from headrace.text.tokenizer import Tokenizer

    def rows(subject: Subject, progress: Progress) -> Iterator[Row]:
        executor = subject.parts.executor
        if tape_of(executor) is None or not isinstance(executor, ModelExecutor):
            raise ConfigError(f"only the native path is measured; {args.model} runs on torch here")
        tokenizer = subject.parts.tokenizer or Tokenizer.from_folder(BUNDLED_FOLDER / "tale")
        vocab = subject.vocab_size
        if vocab < tokenizer.vocab_size:
            raise ConfigError(
                f"{args.model} has no tokenizer, and {vocab} ids are too few for that of tale: {tokenizer.vocab_size}"
            )
        for name in args.sampling:
            if SAMPLING[name].grammar is not None and subject.parts.tokenizer is None:
                tokenizer = widened(tokenizer, vocab)
            for batch in args.batch_sizes:
                progress(f"{name}, batch {batch}")
                logits = prepared_logits(batch, vocab, tokenizer.vocab_size)
                yield from overhead_rows(
                    logits, vocab, executor.sampler, tokenizer, (batch,), (name,), args.steps
                )

    return prepare_subject(args, rows, len(args.sampling) * len(args.batch_sizes), roofline=False)


NATIVE_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "kernels": Kind(
            summary="each native kernel at a model's shapes",
            description="Each kernel by itself at the shapes of a model's layer. Weights and KV lie in memory many "
            "times over, so that they are read from memory and not from a cache, as in a real step; with more than 64 "
            "rows arithmetic is the limit, and two copies do. Formats take turns, so that a machine whose memory is "
            "slower for some seconds slows them all. Encoding stays in caches: it has no roofline.",
            examples=(
                "",
                " --ops linear --formats int4 int4-g32 int4-a16 --rows 1 32",
                " --ops linear --formats all --rows 1 8 32",
                " --ops attention --rows 1 --context 8192",
                " --ops attention --formats bf16 --rows 512 --computed 15872",
                " --instruction-sets all --ops linear --formats bf16 --rows 1 512",
            ),
            add_flags=_kernels_flags,
            prepare=_kernels,
            columns=("seconds", "bytes_per_s", "operations_per_s", "fraction"),
            options=("ops", "formats", "rows", "context", "instruction_sets"),
            takes_model=False,
        ),
        "profile": Kind(
            summary="where the time of a step goes, op by op",
            description="Means over the steps of a closed batch: every op over all layers with its bytes and "
            "operations, then the engine's overhead (all that is not the model: scheduler, packing, sampler), then the "
            "whole step. An op whose bytes stay in a cache may exceed the roofline, which is that of memory.",
            examples=(
                "",
                " -m shape:tinyllama-1.1b --quantization int4 --batch-sizes 1 32",
                " -m shape:tinyllama-1.1b --prefill --input-len 1024",
            ),
            add_flags=_profile_flags,
            prepare=_profile,
            columns=(
                "calls", "seconds", "share", "bytes", "bytes_per_s", "operations_per_s", "fraction",
            ),
            options=("batch_sizes", "input_len", "output_len", "prefill"),
            repeats=1,
        ),
        "overhead": Kind(
            summary="what a step costs beside the model",
            description="The real scheduler, packing, sampler and output side around a model that answers at once. "
            "plan and commit are the scheduler; pack makes the arrays of a step; output turns tokens into text. "
            "Medians over the decode steps of one run.",
            examples=("", " -m shape:smollm2-135m-32k --batch-sizes 1 32", " --sampling top-k --steps 1000"),
            add_flags=_overhead_flags,
            prepare=_overhead,
            columns=("seconds", "share", "overhead_s"),
            options=("batch_sizes", "sampling", "steps"),
            takes_repeats=False,
        ),
    }
)  # fmt: skip
