"""`headrace quantize`: make a model of fewer bits, in a format that other engines load, and say what it lost."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.models.quantize_flags import (
    AUTO_METHOD,
    PACKED,
    add_flags,
    command_words,
    groups_asked,
    limited,
    parsed,
)
from headrace.cli.parser import add_command, needs_extra, typed
from headrace.cli.progress import ProgressBar
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.evaluation.documents import Record
    from headrace.evaluation.measures import Agreement, Divergence
    from headrace.evaluation.quality import Limits
    from headrace.models.source import ModelSource
    from headrace.models.spec import ModelSpec
    from headrace.quantize.bits.budget import Table
    from headrace.quantize.formats.files import Unfinished
    from headrace.quantize.gguf.run import GGUFOptions
    from headrace.quantize.options import QuantizeOptions, Report, Width

    Measured = tuple[Table, Mapping[str, Width]]
    """What each width of a matrix costs, and the widths by name."""

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
  headrace quantize ./my-model -o ./my-model-mixed --method auto --bits-per-weight 4.25
  headrace quantize ./my-model -o ./my-model-auto --method auto --format gguf:auto --size 4GiB
  headrace quantize ./my-model -o ./my-model-packed --format headrace --self-calibration
  headrace quantize ./my-model -o ./my-model-good --format gguf:Q4_K_S --max-kl 0.01
Then: headrace serve ./my-model-4bit

A line of a .jsonl file is {"text": …}, {"prompt": …}, {"prompt": …, "completion": …} or {"messages": […]}; any other
file is text, in paragraphs.
"""
_WORST = 3


def add_parser(commands: Any) -> None:
    parser = add_command(
        commands, "quantize", "[options] MODEL -o FOLDER", examples=EXAMPLES,
        summary="make a model of fewer bits, and say what it lost",
        description="Write a model into a new folder with the matrices of its layers as whole numbers of few bits. "
        "Texts run through the model layer by layer, one layer of weights in memory at a time; the embedding, the "
        "head, norms and routers stay as they are. The folder is read by Headrace and by other engines. Killed and "
        "started again, the command goes on after the last finished layer, and gives the same files. Needs torch.",
    )  # fmt: skip
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    from headrace.models.source import HubOptions, name_of, resolve_model
    from headrace.models.stored import stored_spec
    from headrace.plan.units import format_bytes

    with needs_extra("torch", "quantising"):
        from headrace.quantize.formats.files import check_absent, open_unfinished
        from headrace.quantize.gguf.run import quantize_gguf_into
        from headrace.quantize.options import QuantizeOptions
        from headrace.quantize.run import quantize_into
    asked = parsed(args)
    args.output = Path(os.path.expanduser(args.output))
    check_absent(args.output)
    given = _read_given(args)
    packed = args.format == PACKED
    if packed:
        _check_kernels(args)
    source = resolve_model(args.model, HubOptions(download_dir=args.download_dir))
    spec = stored_spec(source)
    _check_model(source, spec, asked, args.method == AUTO_METHOD, args.output)
    measured_on = _measured_on(args, source, given)
    texts = _texts(args, source, spec.max_position, given) if args.samples and source.path is not None else []

    said: list[str] = []  # printed when the folder has its name: the reader of the output may have gone
    with open_unfinished(args.output, copies=2 if packed else 1) as place:

        def make(options: QuantizeOptions | GGUFOptions) -> Report:
            with ProgressBar("quantising", "step") as bar:
                if isinstance(options, QuantizeOptions):
                    return quantize_into(place, source, spec, options, texts, bar, args.num_threads)
                return quantize_gguf_into(place, source, spec, options, texts, bar, args.num_threads)

        measured: Measured | None = None
        if args.method == AUTO_METHOD:
            asked, measured = _within_budget(args, source, spec, asked, texts, said)
        if limited(args):
            report = _gated(args, source, spec, asked, texts, make, place, measured, measured_on, said)
        else:
            report = make(asked)
            if args.eval:
                found = _compare(args, source, place.files, measured_on)
                said += _write_quality(args, report, found, place.files)
        size = _pack(args, place) if packed else report.size
        place.commit(place.packed if packed else place.files)
    for line in (*said, *_described(report, sum(map(len, texts)))):
        print(line)
    print(
        f"{args.output}: {format_bytes(size)}, {report.bits:.2f} bits for each of {report.weights:,} quantised weights"
    )
    if report.floats:
        print(
            f"{report.all_bits:.2f} bits for each of the {report.weights + report.floats:,} weights of all matrices, "
            f"{report.floats:,} of them floats"
        )
    print(typed(f"Next: `headrace serve {shlex.quote(name_of(args.output))}`"))
    return 0


def _within_budget(
    args: argparse.Namespace,
    source: ModelSource,
    spec: ModelSpec,
    asked: QuantizeOptions | GGUFOptions,
    texts: Any,
    said: list[str],
) -> tuple[QuantizeOptions | GGUFOptions, Measured | None]:
    """With the types, or bits and groups, of --method auto; and what was measured of a folder's matrices."""
    from headrace.plan.units import parse_bytes
    from headrace.quantize.bits.auto import GROUPS, width_table
    from headrace.quantize.bits.budget import Budget
    from headrace.quantize.gguf.auto import type_table
    from headrace.quantize.options import QuantizeOptions

    budget = Budget(args.bits_per_weight, None if args.size is None else parse_bytes(args.size))
    chosen: QuantizeOptions | GGUFOptions
    measured: Measured | None = None
    with ProgressBar("measuring", "layer") as bar:
        if isinstance(asked, QuantizeOptions):
            groups = groups_asked(args) or GROUPS
            measured = width_table(source, spec, asked, texts, groups, bar, args.num_threads)
            table, widths = measured
            names = table.choose(budget)
            chosen = replace(asked, widths=tuple((name, widths[one]) for name, one in names))
        else:
            names = type_table(source, spec, asked, texts, bar, args.num_threads).choose(budget)
            chosen = replace(asked, types=names)
    counts = Counter(choice for _, choice in names)
    said.append("matrices: " + "; ".join(f"{count} x {choice}" for choice, count in sorted(counts.items())))
    return chosen, measured


def _gated(
    args: argparse.Namespace,
    source: ModelSource,
    spec: ModelSpec,
    asked: QuantizeOptions | GGUFOptions,
    texts: Sequence[Sequence[int]],
    make: Callable[[QuantizeOptions | GGUFOptions], Report],
    place: Unfinished,
    measured: Measured | None,
    measured_on: Sequence[Record],
    said: list[str],
) -> Report:
    """Quantise until the limits are met. measured: of auto, which need not be measured again. measured_on: the texts
    that say what was lost."""
    from headrace.evaluation.quality import Limits
    from headrace.quantize.bits.auto import width_table
    from headrace.quantize.bits.ladder import FolderPlan, folder_plan
    from headrace.quantize.gate import GGUFPlan, LimitsNotMet, within_limits
    from headrace.quantize.gguf.run import open_job
    from headrace.quantize.options import QuantizeOptions

    plan: FolderPlan | GGUFPlan
    if isinstance(asked, QuantizeOptions):
        options = asked

        def table(groups: Sequence[int | None]) -> Measured:
            if measured is not None:
                return measured
            with ProgressBar("measuring", "layer") as bar:
                return width_table(source, spec, options, texts, groups, bar, args.num_threads)

        plan = folder_plan(source, spec, options, table if texts else None)
    else:
        plan = GGUFPlan(asked, *open_job(source, spec, asked).tensors())
    limits = Limits(args.max_kl, args.max_perplexity_increase)
    try:
        plan, report, divergence, agreement = within_limits(
            plan,
            limits,
            lambda one: make(one.options),
            lambda: _compare(args, source, place.files, measured_on),
            _say,
        )
    except LimitsNotMet:
        place.discard()
        raise
    said += _write_quality(args, report, (divergence, agreement), place.files, limits, plan.wide)
    return report


def _say(text: str) -> None:
    with suppress(OSError):  # the reader may have gone: the work goes on
        print(text, file=sys.stderr)


def _check_model(
    source: ModelSource, spec: ModelSpec, asked: QuantizeOptions | GGUFOptions, auto: bool, output: Path
) -> None:
    """Raises as `quantize.run.quantize`, before texts are sampled and anything is measured, where the model is not one
    of floats or the options do not fit it; those of auto are not all known yet."""
    from headrace.quantize.formats.files import open_unfinished
    from headrace.quantize.gguf import run as gguf
    from headrace.quantize.matrices import floats_of
    from headrace.quantize.options import QuantizeOptions
    from headrace.quantize.run import open_job

    if not isinstance(asked, QuantizeOptions):
        job = gguf.open_job(source, spec, asked)
        with open_unfinished(output) as place:
            job.check(place)
    elif auto:
        floats_of(source, spec)
    else:
        open_job(source, spec, asked)


def _check_kernels(args: argparse.Namespace) -> None:
    """Raises ConfigError where the native kernels do not run the model, before the work."""
    from headrace.build import survey
    from headrace.config import EngineConfig

    resolved = survey(EngineConfig(model=args.model, download_dir=args.download_dir), mapped=True).resolved
    if resolved.kernels is None:
        why = dict(resolved.reasons)["kernels"]
        raise ConfigError(f"--format {PACKED} is for the native CPU kernels, but {why}")


def _pack(args: argparse.Namespace, place: Unfinished) -> int:
    """Write the folder of codes as the kernels read them; gives the bytes of the weights."""
    from headrace.build import pack
    from headrace.config import EngineConfig
    from headrace.evaluation.quality import FILES

    shutil.rmtree(place.packed, ignore_errors=True)  # of a process that was killed
    with ProgressBar("packing", "tensor") as bar:
        config = EngineConfig(model=str(place.files), num_threads=args.num_threads)
        found = pack(config, place.packed, bar, name=args.model)
    for name in FILES:
        if (place.files / name).is_file():
            shutil.copyfile(place.files / name, place.packed / name)
    return found.ledger.weight_bytes


def _read_given(args: argparse.Namespace) -> Mapping[Path, Sequence[Record]]:
    """The files of --data and --eval-data, each read once: one may be a pipe."""
    from headrace.evaluation.documents import read_records

    paths = {path: None for path in (args.eval_data, args.data) if path is not None}
    return {path: read_records(path) for path in paths}


def _measured_on(
    args: argparse.Namespace, source: ModelSource, given: Mapping[Path, Sequence[Record]]
) -> Sequence[Record]:
    """The texts that say what was lost. Raises ConfigError, before the work, for some that hold nothing to predict."""
    from headrace.evaluation.documents import BUNDLED_TEXTS, LONGEST, measured_documents, read_records
    from headrace.text.tokenizer_source import open_tokenizer

    if not (args.eval or limited(args)):
        return ()
    if args.eval_data is None:
        return read_records(BUNDLED_TEXTS)
    records = given[args.eval_data]
    if source.path is not None and not measured_documents(records, open_tokenizer(source.path), LONGEST, 1):
        raise ConfigError(f"{args.eval_data} holds no text to predict")
    return records


def _compare(
    args: argparse.Namespace, source: ModelSource, folder: Path, records: Sequence[Record]
) -> tuple[Divergence, Agreement]:
    """Beside the files that were quantised, which the name of a model of the hub may no longer stand for."""
    from headrace.cli.models.evaluate import compare

    return compare(str(folder), str(source.path), records, args.eval_tokens, args.num_threads)


def _write_quality(
    args: argparse.Namespace, report: Report, found: tuple[Divergence, Agreement], folder: Path,
    limits: Limits | None = None, wide: tuple[tuple[str, str], ...] = (),
) -> list[str]:  # fmt: skip
    """Write the pages into the folder; gives the lines that say the same."""
    from headrace.evaluation.quality import Limits, Quality, write_quality

    quality = Quality(
        args.output.name,
        args.model,
        command_words(args),
        *found,
        report.errors,
        report.size,
        report.bits,
        limits or Limits(),
        wide,
        bool(args.samples),
        report.all_bits,
    )
    write_quality(folder, quality)
    return [f"{name:<40}{value}" for name, value in quality.rows()]


def _texts(
    args: argparse.Namespace, source: ModelSource, longest: int, given: Mapping[Path, Sequence[Record]]
) -> list[tuple[int, ...]]:
    from headrace.evaluation.documents import read_records
    from headrace.quantize.calibration.texts import BUNDLED_CALIBRATION, calibration_texts
    from headrace.text.tokenizer_source import open_tokenizer

    length = min(args.length, longest)
    if args.self_calibration:
        return _own_texts(args, source, length, given)
    assert source.path is not None
    records = read_records(BUNDLED_CALIBRATION) if args.data is None else given[args.data]
    where = "the bundled file" if args.data is None else str(args.data)
    return calibration_texts(records, open_tokenizer(source.path), args.samples, length, args.seed, where)


def _own_texts(
    args: argparse.Namespace, source: ModelSource, length: int, given: Mapping[Path, Sequence[Record]]
) -> list[tuple[int, ...]]:
    from headrace.bench.quality.judged import JudgedLLM
    from headrace.quantize.calibration.texts import own_texts

    records = () if args.data is None else given[args.data]
    options: dict[str, Any] = {} if args.num_threads is None else {"num_threads": args.num_threads}
    model = JudgedLLM(str(source.path), options)
    encoder = None if args.data is None else model.llm.tokenizer
    return own_texts(model, args.samples, length, args.seed, records, encoder)


def _described(report: Report, tokens: int) -> Iterator[str]:
    """tokens: of the calibration texts."""
    if report.kept:
        yield (
            f"left as they are, because their sizes do not fit the format: {len(report.kept)} matrices, such as "
            f"{report.kept[0]}"
        )
    if report.unscaled:
        yield (
            f"not scaled, because nothing before them can take up factors: {len(report.unscaled)} matrices, such as "
            f"{report.unscaled[0]}"
        )
    errors: Mapping[str, float] = report.errors
    if not errors:
        return
    if 0 < tokens < report.inputs:
        yield (
            f"few texts: {tokens:,} tokens, and matrices that read up to {report.inputs:,} features. What is fitted to "
            "these tokens, on which errors are measured as well, may be worse on others than --method rtn: raise "
            "--samples and --length"
        )
    what = "of the products of each matrix" if tokens else "of the weights of each matrix"
    worst = sorted(errors, key=lambda name: -errors[name])[:_WORST]
    yield (
        f"relative error {what}: {sum(errors.values()) / len(errors):.2%} on average; largest: "
        + ", ".join(f"{name} {errors[name]:.2%}" for name in worst)
    )
