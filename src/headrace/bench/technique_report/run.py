"""Measures the sections of the report, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.bench.model.latency import Progress
from headrace.bench.model.subject import Subject, load_subject
from headrace.bench.report import Row
from headrace.bench.technique_report.attention import LENGTHS, QUICK_LENGTHS, attention_rows
from headrace.bench.technique_report.kv_memory import kv_rows
from headrace.bench.technique_report.quality import QUICK_TOKENS, TOKENS, quality_rows
from headrace.bench.technique_report.techniques import (
    QUICK_ROWS_S,
    QUICK_RUNS,
    ROWS_S,
    RUNS,
    technique_rows,
)
from headrace.bench.technique_report.traffic import (
    QUICK,
    Sizes,
    batch_rows,
    chunking_rows,
    prefix_rows,
    prompt_rows,
)
from headrace.config import EngineConfig
from headrace.evaluation.documents import Record
from headrace.models.source import SHAPE_PREFIX
from headrace.sim.profile import Profile

NO_QUALITY = "no quality: random weights have none to lose"
NO_ATTENTION = "no comparison of attention: it needs the native kernels"
NO_PROFILE = "no prediction of the cost model: `headrace calibrate` measures this machine for it"


@dataclass(frozen=True, slots=True)
class Options:
    """quick: fewer sizes, shorter runs. texts: that the quality is measured on. price_per_hour: of this machine, in any
    currency."""

    quick: bool = False
    drafter: str = "ngram"
    texts: Sequence[Record] = ()
    price_per_hour: float | None = None


def report_rows(
    config: EngineConfig, subject: Subject, profile: Profile | None, options: Options, progress: Progress
) -> Iterator[Row]:
    """Every section's rows. `subject` is the model under its own config."""
    resolved = subject.parts.resolved
    sizes = (QUICK if options.quick else Sizes()).within(resolved.max_model_len)
    price = options.price_per_hour
    yield from technique_rows(
        config, drafter=options.drafter, profile=profile, price_per_hour=price,
        seconds=QUICK_ROWS_S if options.quick else ROWS_S, runs=QUICK_RUNS if options.quick else RUNS,
        progress=progress,
    )  # fmt: skip
    yield from chunking_rows(config, progress)
    batched = subject
    if max(sizes.batches) > resolved.max_num_seqs:
        batched = load_subject(replace(config, max_num_seqs=max(sizes.batches)))
    yield from batch_rows(batched, sizes, profile, price, progress)
    yield from prompt_rows(subject, sizes, profile, progress)
    lengths = QUICK_LENGTHS if options.quick else LENGTHS
    yield from attention_rows(subject.parts.spec, resolved.kernels, resolved.num_threads, lengths, progress)
    yield from prefix_rows(subject, sizes, progress)
    if not config.model.startswith(SHAPE_PREFIX):
        yield from quality_rows(config, options.texts, QUICK_TOKENS if options.quick else TOKENS, progress)
    yield from kv_rows()


def notes(config: EngineConfig, subject: Subject, profile: Profile | None) -> list[str]:
    """What the report lacks, and why."""
    return [
        text
        for text, lacking in (
            (NO_QUALITY, config.model.startswith(SHAPE_PREFIX)),
            (NO_ATTENTION, subject.parts.resolved.kernels is None),
            (NO_PROFILE, profile is None),
        )
        if lacking
    ]
