"""How fast prompts are read: tokens a second for each prompt length, against the peak of the matrix units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.bench.latency import Progress
from headrace.bench.measure import Measured
from headrace.bench.report import Row, row_of_runs
from headrace.bench.subject import Subject
from headrace.bench.workload import fixed_lengths


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
        runs = []
        for repeat in range(repeats + 1):  # the first run warms up and is not counted
            progress(f"prompt {input_len}, chunk {chunk}")
            run = subject.run(
                fixed_lengths(
                    batch, prompt_tokens=input_len, output_tokens=1,
                    vocab_size=subject.vocab_size, seed=subject.next_seed(),
                )
            )  # fmt: skip
            if repeat:
                runs.append(_rates(subject, run))
        yield row_of_runs({"prompt": input_len, "batch": batch, "chunk": min(chunk, batch * input_len)}, runs)


def _rates(subject: Subject, run: Measured) -> dict[str, float]:
    seconds = run.prefill_s
    return {
        "prefill_tokens_per_s": run.prompt_tokens / seconds,
        "seconds": seconds,
        **subject.against_roofline(run.prefill_steps, seconds, run.prompt_tokens),
    }
