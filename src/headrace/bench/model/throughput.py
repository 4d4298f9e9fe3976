"""Tokens a second of many requests together: closed batches of one size, and mixed traffic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.bench.measure import Measured
from headrace.bench.model.latency import Progress, closed_batch, decode_rates
from headrace.bench.model.subject import Subject, with_percentiles
from headrace.bench.repeats import Repeats
from headrace.bench.report import Label, Row, row_of_runs
from headrace.bench.workload import mixed_lengths


@dataclass(frozen=True, slots=True)
class Mixed:
    """`requests` at once, their lengths in tokens drawn evenly from inclusive ranges."""

    requests: int = 64
    input_len: tuple[int, int] = (32, 1024)
    output_len: tuple[int, int] = (16, 256)

    def within(self, max_model_len: int) -> Mixed:
        """The same with the longest requests cut to the model's length: a quarter of it for the output at most."""
        low, high = self.output_len
        output = (min(low, max(1, max_model_len // 4)), min(high, max(1, max_model_len // 4)))
        room = max(1, max_model_len - output[1])
        return Mixed(self.requests, (min(self.input_len[0], room), min(self.input_len[1], room)), output)


def closed_rows(
    subject: Subject,
    *,
    batch_sizes: Sequence[int],
    input_len: int,
    output_len: int,
    repeats: int,
    progress: Progress,
) -> Iterator[Row]:
    """A row for each batch size: that many equal requests at once. The fraction is that of decoding.

    Raises ConfigError where a batch would not run all at once.
    """
    for batch in batch_sizes:
        subject.check(batch=batch, length=input_len + output_len)
    for batch in batch_sizes:
        found = Repeats(
            partial(closed_batch, subject, batch, input_len, output_len),
            repeats,
            partial(progress, f"batch {batch}"),
        )
        figures = [{**decode_rates(subject, run), **_rates(run), **_prefill_rate(run)} for run in found.runs]
        row = row_of_runs(_labels("closed", batch, f"{input_len}", f"{output_len}"), figures)
        yield with_percentiles(row, found.runs)
        found.reraise()


def mixed_rows(
    subject: Subject, mixed: Mixed, *, repeats: int, progress: Progress, seed: int = 0
) -> Iterator[Row]:
    """A row: all requests at once, prefill and decode in the same steps. The fraction is that of the whole run.

    Every repeat has the lengths of the same seed, so that repeats do the same work, and different prompts.
    """
    subject.check(batch=1, length=mixed.input_len[1] + mixed.output_len[1])

    def run() -> Measured:
        return subject.run(
            mixed_lengths(
                mixed.requests, prompt_tokens=mixed.input_len, output_tokens=mixed.output_len,
                vocab_size=subject.vocab_size, seed=seed, prompt_seed=subject.next_seed(),
            )
        )  # fmt: skip

    found = Repeats(run, repeats, partial(progress, "mixed traffic"))
    figures = [
        {
            **_rates(one),
            **subject.against_roofline(one.steps, one.wall_s, one.output_tokens),
            "mean_batch": one.mean_batch,
        }
        for one in found.runs
    ]
    prompts, outputs = ("{}-{}".format(*ends) for ends in (mixed.input_len, mixed.output_len))
    row = row_of_runs(_labels("mixed", mixed.requests, prompts, outputs), figures)
    yield with_percentiles(row, found.runs)
    found.reraise()


def _labels(traffic: str, requests: int, prompts: str, outputs: str) -> dict[str, Label]:
    return {"traffic": traffic, "requests": requests, "prompts": prompts, "outputs": outputs}


def _rates(run: Measured) -> dict[str, float]:
    return {
        "output_tokens_per_s": run.output_rate,
        "total_tokens_per_s": run.total_rate,
        "wall_s": run.wall_s,
    }


def _prefill_rate(run: Measured) -> dict[str, float]:
    return {"prefill_tokens_per_s": run.prompt_tokens / run.prefill_s}
