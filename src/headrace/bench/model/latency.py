"""How long one request waits: for its first token, and from each token to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from headrace.bench.measure import Measured
from headrace.bench.model.subject import Subject, with_percentiles
from headrace.bench.repeats import Repeats
from headrace.bench.report import Row, row_of_runs
from headrace.bench.workload import fixed_lengths

Progress = Callable[[str], None]
"""Called before each run with a description of it."""


def latency_rows(
    subject: Subject,
    *,
    input_lens: Sequence[int],
    batch_sizes: Sequence[int],
    output_len: int,
    repeats: int,
    progress: Progress,
) -> Iterator[Row]:
    """A row for each prompt length and batch size: `batch` requests of `input_len` random tokens all at once.

    Percentiles are over the requests of all repeats; rates are medians of the repeats. One more run warms up.
    Raises ConfigError where a batch would not run all at once.
    """
    for input_len in input_lens:
        for batch in batch_sizes:
            subject.check(batch=batch, length=input_len + output_len)
    for input_len in input_lens:
        for batch in batch_sizes:
            found = Repeats(
                partial(closed_batch, subject, batch, input_len, output_len),
                repeats,
                partial(progress, f"prompt {input_len}, batch {batch}"),
            )
            rates = [decode_rates(subject, run) for run in found.runs]
            yield with_percentiles(row_of_runs({"prompt": input_len, "batch": batch}, rates), found.runs)
            found.reraise()


def closed_batch(subject: Subject, batch: int, input_len: int, output_len: int) -> Measured:
    """One run of `batch` equal requests at once, with prompts that the subject has not seen."""
    return subject.run(
        fixed_lengths(
            batch, prompt_tokens=input_len, output_tokens=output_len, vocab_size=subject.vocab_size,
            seed=subject.next_seed(),
        )
    )  # fmt: skip


def decode_rates(subject: Subject, run: Measured) -> dict[str, float]:
    """Decode speed of a closed batch and its fraction of the roofline; empty where nothing was decoded."""
    steps, seconds, tokens = run.decode_steps, run.decode_s, run.decode_tokens
    if not steps:
        return {}
    return {"decode_tokens_per_s": tokens / seconds, **subject.against_roofline(steps, seconds, tokens)}
