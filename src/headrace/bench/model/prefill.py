"""How fast prompts are read: tokens a second for each prompt length, against the peak of the matrix units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from headrace.bench.measure import Measured
from headrace.bench.model.latency import Progress, closed_batch
from headrace.bench.model.subject import Subject
from headrace.bench.repeats import Repeats
from headrace.bench.report import Row, row_of_runs


def prefill_rows(
    subject: Subject,
    *,
    input_lens: Sequence[int],
    batch_sizes: Sequence[int],
    repeats: int,
    progress: Progress,
) -> Iterator[Row]:
    """A row for each prompt length and batch size: so many prompts at once, one output token each; medians of repeats.

    Raises ConfigError where a batch would not run all at once.
    """
    cases = [(input_len, batch) for input_len in input_lens for batch in batch_sizes]
    for input_len, batch in cases:
        subject.check(batch=batch, length=input_len + 1)
    chunk = subject.parts.resolved.max_num_batched_tokens
    for input_len, batch in cases:
        found = Repeats(
            partial(closed_batch, subject, batch, input_len, 1),
            repeats,
            partial(progress, f"prompt {input_len}, chunk {chunk}"),
        )
        rates = [_rates(subject, run) for run in found.runs]
        yield row_of_runs(
            {"prompt": input_len, "batch": batch, "chunk": min(chunk, batch * input_len)}, rates
        )
        found.reraise()


def _rates(subject: Subject, run: Measured) -> dict[str, float]:
    seconds = run.prefill_s
    return {
        "prefill_tokens_per_s": run.prompt_tokens / seconds,
        "seconds": seconds,
        **subject.against_roofline(run.prefill_steps, seconds, run.prompt_tokens),
    }
