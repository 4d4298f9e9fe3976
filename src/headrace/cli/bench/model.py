"""Benchmarks of a whole model: latency, throughput, prefill, startup, perplexity."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.cli.bench.kind import Flags, Kind, Prepared, prepare_subject
from headrace.cli.engine_flags import engine_config, engine_options
from headrace.cli.models.quantize_flags import add_flags, parsed
from headrace.cli.parser import add_number, check_writable, needs_extra

if TYPE_CHECKING:
    from headrace.bench.model.latency import Progress
    from headrace.bench.model.subject import Subject
    from headrace.bench.model.throughput import Mixed
    from headrace.bench.report import Report, Row

# ---- latency ----


def _latency_flags(parser: Flags) -> None:
    add_number(parser, "--input-len", [128], "prompt tokens")
    add_number(parser, "--output-len", 32, "output tokens")
    add_number(parser, "--batch-sizes", [1], "requests at once", "B")


def _latency(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.latency import latency_rows

    def rows(subject: Subject, progress: Progress) -> Iterator[Row]:
        return latency_rows(
            subject, input_lens=args.input_len, batch_sizes=args.batch_sizes, output_len=args.output_len,
            repeats=args.repeats, progress=progress,
        )  # fmt: skip

    return prepare_subject(args, rows, len(args.input_len) * len(args.batch_sizes) * (args.repeats + 1))


# ---- throughput ----


def _throughput_flags(parser: Flags) -> None:
    parser.add_argument(
        "--batch-sizes", type=int, nargs="*", default=[1, 8, 32], metavar="B",
        help="closed batches, each of so many equal requests (default: 1 8 32); without a number: none",
    )  # fmt: skip
    add_number(parser, "--input-len", 128, "their prompts")
    add_number(parser, "--output-len", 64, "their outputs")
    add_number(parser, "--num-prompts", 64, "requests of mixed traffic, 0: none")
    for name, what in (
        ("input", "prompt tokens of mixed traffic (default: 32 1024, as far as the model's length allows)"),
        (
            "output",
            "output tokens of mixed traffic (default: 16 256, at most a quarter of the model's length)",
        ),
    ):
        parser.add_argument(
            f"--mixed-{name}-len", type=int, nargs=2, default=None, metavar=("LOW", "HIGH"), help=what
        )


def _throughput(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.throughput import closed_rows, mixed_rows

    def rows(subject: Subject, progress: Progress) -> Iterator[Row]:
        closed = closed_rows(
            subject, batch_sizes=args.batch_sizes, input_len=args.input_len, output_len=args.output_len,
            repeats=args.repeats, progress=progress,
        )  # fmt: skip
        if not args.num_prompts:
            return closed
        mixed = _mixed(args, subject.parts.resolved.max_model_len)
        subject.check(batch=1, length=mixed.input_len[1] + mixed.output_len[1])  # before anything is measured
        return chain(closed, mixed_rows(subject, mixed, repeats=args.repeats, progress=progress))

    return prepare_subject(args, rows, (len(args.batch_sizes) + bool(args.num_prompts)) * (args.repeats + 1))


def _mixed(args: argparse.Namespace, max_model_len: int) -> Mixed:
    """The lengths that were asked for; those that were not, cut to the model's length."""
    from headrace.bench.model.throughput import Mixed

    fitting = Mixed(args.num_prompts).within(max_model_len)
    inputs, outputs = args.mixed_input_len, args.mixed_output_len
    return replace(
        fitting,
        input_len=tuple(inputs) if inputs else fitting.input_len,
        output_len=tuple(outputs) if outputs else fitting.output_len,
    )


# ---- prefill ----


def _prefill_flags(parser: Flags) -> None:
    add_number(parser, "--input-len", [128, 512, 1024], "prompt tokens")
    add_number(parser, "--batch-sizes", [1], "prompts at once", "B")
    parser.add_argument(
        "--chunk-sizes", type=int, nargs="+", default=[], metavar="N",
        help="most tokens in one step; the model is loaded again for each (default: --max-num-batched-tokens)",
    )  # fmt: skip


def _prefill(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.prefill import prefill_rows
    from headrace.bench.model.subject import load_subject

    def measured(subject: Subject, progress: Progress) -> Iterator[Row]:
        return prefill_rows(
            subject,
            input_lens=args.input_len,
            batch_sizes=args.batch_sizes,
            repeats=args.repeats,
            progress=progress,
        )

    runs = len(args.input_len) * len(args.batch_sizes) * max(1, len(args.chunk_sizes)) * (args.repeats + 1)
    if not args.chunk_sizes:
        return prepare_subject(args, measured, runs)
    config = engine_config(args)
    first, *others = (replace(config, max_num_batched_tokens=size) for size in args.chunk_sizes)
    args.max_num_batched_tokens = first.max_num_batched_tokens

    def rows(subject: Subject, progress: Progress) -> Iterator[Row]:
        yield from measured(subject, progress)
        for other in others:
            yield from measured(load_subject(other), progress)

    return prepare_subject(args, rows, runs)


# ---- startup ----


def _startup_flags(parser: Flags) -> None:
    add_number(parser, "--input-len", 16, "prompt tokens")


def _startup(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.startup import startup_rows

    options = {"model": args.model, **engine_options(args)}
    engine_config(args)  # refuses wrong options before anything is launched

    def rows(progress: Progress) -> Iterator[Row]:
        return startup_rows(options, input_len=args.input_len, repeats=args.repeats, progress=progress)

    return Prepared(
        rows, args.repeats + 1, options, head=[f"{args.model}: launch of a process to its first token"]
    )


# ---- perplexity ----


def _perplexity_flags(parser: Flags) -> None:
    parser.add_argument(
        "--text", type=Path, metavar="PATH",
        help="a .jsonl file with a text a line, or plain text (default: text held out of the bundled models' training)",
    )  # fmt: skip
    parser.add_argument(
        "--weights", nargs="+", default=["float32", "bfloat16", "int8", "int4"], metavar="FORMAT",
        help="compute types, or formats as --quantization takes them (default: float32 bfloat16 int8 int4)",
    )  # fmt: skip
    parser.add_argument(
        "--kv", nargs="+", default=["auto"], metavar="TYPE",
        help="types of keys and values, as --kv-cache-dtype takes them (default: auto)",
    )  # fmt: skip


def _perplexity(args: argparse.Namespace) -> Prepared:
    from headrace.bench.quality.perplexity import HELD_OUT, perplexity_rows, read_documents, variant

    config = engine_config(args)
    path = args.text or HELD_OUT
    texts = read_documents(path)
    for weights in args.weights:  # refuses wrong names before the first model is loaded
        for kv in args.kv:
            variant(config, weights, kv)

    def rows(progress: Progress) -> Iterator[Row]:
        return perplexity_rows(config, texts, weights=args.weights, kv=args.kv, progress=progress)

    return Prepared(
        rows,
        len(args.weights) * len(args.kv),
        {**config.to_json(), "weights": args.weights, "kv": args.kv},
        head=[f"{args.model}: {len(texts)} texts of {path.name}"],
    )


# ---- quantization ----


def _quantization_flags(parser: Flags) -> None:
    parser.add_argument(
        "--variants", nargs="+", default=None, metavar="VARIANT",
        help="METHOD, METHOD:BITS or METHOD:BITS:GROUP, auto:BITS, gguf:TYPE and gguf:auto:BITS (default: 15 of them)",
    )  # fmt: skip
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="calibration texts, as of headrace quantize"
    )
    add_number(parser, "--samples", 64, "calibration texts")
    add_number(
        parser,
        "--calibration-seeds",
        [0],
        "each variant is made once with each, where its method needs texts; medians are shown",
        "N",
    )
    parser.add_argument("--eval-data", type=Path, metavar="FILE", help="texts to measure on")
    add_number(parser, "--eval-tokens", 20_000, "tokens of text to measure on, at most")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE",
        help="write the table, and a link to the plot, into this page, between two lines that are there for it; a "
        "page that is not there is made",
    )  # fmt: skip


def _quantization(args: argparse.Namespace) -> Prepared:
    from headrace.bench.quality.quantization import VARIANTS, command_words, quantization_rows, seeds_of
    from headrace.bench.quality.quantization_page import check_page
    from headrace.errors import ConfigError
    from headrace.models.source import HubOptions, resolve_model
    from headrace.models.stored import stored_spec

    with needs_extra("torch", "quantising"):
        from headrace.quantize.matrices import floats_of
    if args.markdown is not None:
        check_writable("the table", str(args.markdown))
        check_page(args.markdown)
    config = engine_config(args)
    variants = VARIANTS if args.variants is None else args.variants
    more = ["--eval", "--samples", str(args.samples), "--eval-tokens", str(args.eval_tokens)]
    for flag, path in (("--data", args.data), ("--eval-data", args.eval_data)):
        if path is None:
            continue
        if path.exists() and not path.is_file():
            raise ConfigError(f"{flag} {path} is read for each variant: give a file, not a pipe or a folder")
        more += [flag, str(path)]
    if config.num_threads is not None:
        more += ["--num-threads", str(config.num_threads)]
    for variant in variants:  # refuses wrong options before the first model is made
        _check_words(variant, [*command_words(variant), *more])
    source = resolve_model(config.model, HubOptions(config.revision, config.download_dir))
    floats_of(source, stored_spec(source))
    assert source.path is not None
    folder = source.path

    def rows(progress: Progress) -> Iterator[Row]:
        return quantization_rows(config, folder, variants, args.calibration_seeds, more, progress)

    return Prepared(
        rows,
        sum(len(seeds_of(variant, args.calibration_seeds)) for variant in variants) + 1,
        {**config.to_json(), "variants": list(variants)},
    )


def _check_words(variant: str, words: Sequence[str]) -> None:
    """Raises ConfigError for what `headrace quantize` would refuse of the options of a variant."""
    from headrace.errors import ConfigError

    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    add_flags(parser)
    try:
        parsed(parser.parse_args(["model", "-o", "out", *words]))
    except (argparse.ArgumentError, ConfigError) as error:
        raise ConfigError(f"variant {variant!r:.60}: {error}") from None


def _quantization_page(args: argparse.Namespace, report: Report) -> None:
    from headrace.bench.quality.quantization_page import write_page

    if args.markdown is not None and report.complete:
        write_page(args.markdown, report, _QUANTIZATION_COLUMNS, args.plot)


_QUANTIZATION_COLUMNS = (
    "checkpoint_bytes", "bits_per_weight", "decode_1_tokens_per_s", "decode_32_tokens_per_s", "perplexity",
    "perplexity_increase", "increase_error", "kl", "top_1",
)  # fmt: skip


# ---- eviction ----


def _eviction_flags(parser: Flags) -> None:
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.5, 0.25, 0.125, 0.0625], metavar="S",
        help="budgets as shares of the prompt (default: 0.5 0.25 0.125 0.0625)",
    )  # fmt: skip
    add_number(parser, "--prompt-len", 512, "prompt tokens")
    add_number(parser, "--output-len", 48, "tokens to predict after each prompt")
    add_number(parser, "--samples", 64, "prompts of each kind")
    parser.add_argument("--data", type=Path, metavar="FILE", help="texts (default: bundled stories)")


def _eviction(args: argparse.Namespace) -> Prepared:
    from headrace.bench.quality.eviction import eviction_rows, make_tasks, variants
    from headrace.errors import ConfigError
    from headrace.evaluation.documents import BUNDLED_TEXTS, read_records

    config = engine_config(args)
    for share in args.shares:
        if not 0 < share <= 1:
            raise ConfigError(f"--shares are above 0 and at most 1, got {share:g}")
    budgets = [max(2, round(share * args.prompt_len)) for share in args.shares]
    variants(config, budgets)  # refuses what cannot go together before the first model is loaded
    records = read_records(args.data or BUNDLED_TEXTS)
    tasks = make_tasks(config, records, prompt=args.prompt_len, output=args.output_len, samples=args.samples)

    def rows(progress: Progress) -> Iterator[Row]:
        return eviction_rows(config, tasks, budgets, progress)

    return Prepared(
        rows,
        2 * len(budgets) + 1,
        config.to_json(),
        head=[
            f"{args.model}: prompts of {args.prompt_len} tokens, of which each KV head keeps a budget; "
            f"{sum(len(task.needles) for task in tasks) // 2} needles"
        ],
        notes=[
            "needles: rare words after the prompt that only the beginning of the text in it tells, such as names"
        ],
    )


# ---- speculative ----

_TALE_METHODS = ("ngram", "tale-draft", "ngram,tale-draft")


def _speculative_flags(parser: Flags) -> None:
    parser.add_argument(
        "--methods", nargs="+", metavar="NAME",
        help="drafters, as --speculative takes them (default: that of --speculative; for tale ngram, tale-draft and "
        "ngram,tale-draft; else auto)",
    )  # fmt: skip
    parser.add_argument(
        "--workloads", nargs="+", default=["stories", "questions", "copy", "code"], metavar="NAME",
        choices=("stories", "questions", "copy", "code", "random"),
        help="stories, questions, copy (answers that repeat their prompt), code, random (default: all but random)",
    )  # fmt: skip
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.7], metavar="T",
        help="temperatures (default: 0 0.7)",
    )  # fmt: skip
    add_number(parser, "--batch-sizes", [1, 8], "requests at once", "B")
    add_number(parser, "--output-len", 128, "output tokens")
    parser.add_argument(
        "--acceptance-rate", type=float, nargs="+", default=[], metavar="P",
        help="make each drafted token right with this probability, for models with random weights; several in turn",
    )  # fmt: skip


def _speculative(args: argparse.Namespace) -> Prepared:
    from headrace.bench.model.speculative import Case, speculative_rows
    from headrace.config import EngineConfig
    from headrace.core.params import SamplingParams
    from headrace.errors import ConfigError

    options = engine_options(args)
    given = options.get("speculative")
    usual = _TALE_METHODS if args.model == "tale" else ("auto",)
    args.methods = args.methods or ([given] if given is not None else list(usual))
    # Wrong names, rates and temperatures are refused before the first model is loaded.
    options["speculative"] = args.methods[0]
    config = EngineConfig(args.model, **options)
    for method in args.methods:
        replace(config, speculative=method)
    for rate in args.acceptance_rate:
        if not 0 <= rate <= 1:
            raise ConfigError(f"--acceptance-rate is a probability between 0 and 1, got {rate}")
    for temperature in args.temperatures:
        SamplingParams(temperature=temperature)
    cases = [
        Case(workload, temperature, batch, args.output_len)
        for workload in args.workloads
        for temperature in args.temperatures
        for batch in args.batch_sizes
    ]

    def rows(progress: Progress) -> Iterator[Row]:
        return speculative_rows(
            config, methods=args.methods, cases=cases, rates=args.acceptance_rate, repeats=args.repeats,
            progress=progress,
        )  # fmt: skip

    runs = len(cases) * max(1, len(args.acceptance_rate)) * (len(args.methods) + 1) * (args.repeats + 1)
    settings = {**config.to_json(), "speculative": None}
    return Prepared(rows, runs, settings, head=[f"{args.model}: drafting beside decoding without it"])


MODEL_KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "speculative": Kind(
            summary="what drafting gains: acceptance, tokens a step, speed-up",
            description="Every method takes turns with decoding without drafts, in a short round several times, and a "
            "speed-up is the median of the ratios to the runs before and after it. Beside it stands what the formula "
            "predicts: tokens a step, times the seconds of a step without drafts, over those of a step with them and "
            "of drafting, all as the engine measured them.",
            examples=(
                "",
                " --methods ngram --workloads copy --temperatures 0 --batch-sizes 1",
                " -m shape:tinyllama-1.1b --quantization int4 --methods shape:llama-68m --acceptance-rate 0.8 "
                "--workloads random",
            ),
            add_flags=_speculative_flags,
            prepare=_speculative,
            columns=(
                "decode_tokens_per_s", "speedup", "predicted_speedup", "tokens_per_slice", "expected_per_slice",
                "draft_length", "acceptance",
            ),
            options=("methods", "workloads", "temperatures", "batch_sizes", "output_len", "acceptance_rate"),
            repeats=3,
        ),
        "latency": Kind(
            summary="TTFT, TPOT and the gaps between tokens",
            description="How long one request waits for its first token (TTFT) and from token to token (TPOT: mean of "
            "a request; ITL: every gap). GB/s is what decoding read of weights, keys and values; the roofline is the "
            "same bytes at the memory's full speed.",
            examples=(
                "",
                " -m shape:tinyllama-1.1b --quantization int8 --input-len 128 1024",
                " --batch-sizes 1 8 --output-len 64 --json latency.json",
            ),
            add_flags=_latency_flags,
            prepare=_latency,
            columns=(
                "ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "itl_p50_s", "itl_p99_s", "decode_tokens_per_s",
                "bytes_per_s", "limit_tokens_per_s", "fraction",
            ),
            options=("input_len", "output_len", "batch_sizes"),
            repeats=5,
        ),
        "throughput": Kind(
            summary="tokens a second of closed batches and of mixed traffic",
            description="Closed batches: equal requests all at once; decode tok/s counts the tokens after every "
            "request had its first one. Mixed traffic: requests of many lengths all at once, prefill and decode "
            "together. The roofline of a step is the slower of reading its bytes and doing its products.",
            examples=(
                "",
                " -m shape:tinyllama-1.1b --quantization int4 --batch-sizes 1 8 32 --num-prompts 0",
                " --batch-sizes --num-prompts 64 --json mixed.json",
            ),
            add_flags=_throughput_flags,
            prepare=_throughput,
            columns=(
                "decode_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s", "ttft_p50_s", "ttft_p99_s",
                "tpot_p50_s", "bytes_per_s", "operations_per_s", "limit_tokens_per_s", "fraction",
            ),
            options=(
                "batch_sizes", "input_len", "output_len", "num_prompts", "mixed_input_len", "mixed_output_len"
            ),
            least={"num_prompts": 0},
            ranges=("mixed_input_len", "mixed_output_len"),
        ),
        "prefill": Kind(
            summary="prompt tokens a second by prompt length and chunk size",
            description="How fast prompts are read, against the peak of the matrix units: a prompt's products are many "
            "rows wide, so that arithmetic and not memory is the limit.",
            examples=("", " -m shape:tinyllama-1.1b --input-len 1024", " --input-len 512 --chunk-sizes 64 256 512"),
            add_flags=_prefill_flags,
            prepare=_prefill,
            columns=(
                "prefill_tokens_per_s", "seconds", "operations_per_s", "limit_tokens_per_s", "fraction",
            ),
            options=("input_len", "batch_sizes", "chunk_sizes"),
        ),
        "startup": Kind(
            summary="launch of a process to its first token, and its memory",
            description="Launches fresh processes that load the model and answer one prompt; times each phase and the "
            "peak of resident memory. One launch more comes first, so that files are in the page cache.",
            examples=("", " -m shape:tinyllama-1.1b --quantization int4", " --repeats 9 --plot startup.png"),
            add_flags=_startup_flags,
            prepare=_startup,
            options=("input_len",),
        ),
        "quantization": Kind(
            summary="methods and bits side by side: size, speed, perplexity and KL divergence",
            description="Each variant is made by headrace quantize in a temporary folder, measured beside the model as "
            "it is, and removed. With --plot: KL divergence over bits a weight, and the line of the best ones.",
            examples=(
                " -m tale",
                " -m ./my-model --variants gptq:4 awq:4 gguf:Q4_K_M auto:4.25 --plot kl.svg --markdown kl.md",
                " -m tale --variants rtn:3:64 awq:3:64 gptq:3:64 auto:3.25 --calibration-seeds 0 1 2",
            ),
            add_flags=_quantization_flags,
            prepare=_quantization,
            columns=_QUANTIZATION_COLUMNS,
            options=("samples", "calibration_seeds", "eval_tokens"),
            least={"eval_tokens": 2, "calibration_seeds": 0},
            finish=_quantization_page,
            repeats=1,
            takes_repeats=False,
        ),
        "eviction": Kind(
            summary="what --kv-eviction costs in quality, by its budget",
            description="After a long prompt the model predicts the text that follows, token by token. SnapKV "
            "(attention decides what stays) stands beside keeping the first and the last tokens (StreamingLLM), and "
            "beside the whole cache: prompts and the tokens to predict are the same. Needles are names and other rare "
            "words of that text which the prompt tells only before its last 32 tokens. Guessed: needles that are "
            "predicted right where the prompt does not hold the text's beginning.",
            examples=("", " -m ./my-model --prompt-len 4096 --output-len 64 --shares 0.5 0.1 --plot eviction.svg"),
            add_flags=_eviction_flags,
            prepare=_eviction,
            columns=(
                "kept", "perplexity", "top_1", "needle_recall", "needle_probability", "guessed_recall",
                "evicted_tokens",
            ),
            options=("shares", "prompt_len", "output_len", "samples"),
                        repeats=1,
            takes_repeats=False,
        ),
        "perplexity": Kind(
            summary="perplexity of a text under several weight formats and KV types",
            description="Every token of the texts is predicted from those before it by the engine as it serves: "
            "batched, chunked, with the kernels and formats asked for. Perplexity is exp of the mean loss; the ratio "
            "is to the first row. Nothing is sampled, so that one run is enough.",
            examples=(
                "",
                " --weights bfloat16 int8 int4 int4-g32 int4-asym --kv auto int8",
                " -m ./my-model --text my.txt --weights bfloat16 int4",
            ),
            add_flags=_perplexity_flags,
            prepare=_perplexity,
            columns=("perplexity", "ratio"),
            repeats=1,
        ),
    }
)  # fmt: skip
