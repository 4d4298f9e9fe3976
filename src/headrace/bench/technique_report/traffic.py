"""Batches, prompts, prompts beside streams, and prefix hits."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.bench.measure import percentile
from headrace.bench.model.latency import Progress, closed_batch, latency_rows
from headrace.bench.model.prefill import prefill_rows
from headrace.bench.model.subject import Subject, load_subject
from headrace.bench.report import Label, Row
from headrace.bench.technique_report.sections import SECTION
from headrace.bench.technique_report.techniques import costs
from headrace.bench.workload import Arrival, fixed_lengths
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.sim.cost import CostModel
from headrace.sim.profile import Profile

PROMPT, OUTPUT = 128, 32
STREAMS = 8
_STREAM_PROMPT, _STREAM_OUTPUT = 32, 160
_LONG_PROMPTS = 6
_LONGEST_PROMPT = 4096
_CHUNK = 128


@dataclass(frozen=True, slots=True)
class Sizes:
    """What to measure, in tokens and requests."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    prompts: tuple[int, ...] = (128, 512, 1024, 2048)
    repeats: int = 5

    def within(self, max_model_len: int) -> Sizes:
        """Prompts that leave room for an output."""
        fitting = tuple(size for size in self.prompts if size + OUTPUT <= max_model_len)
        return replace(self, prompts=fitting or (max(1, max_model_len - OUTPUT),))


QUICK = Sizes((1, 8), (128, 512), 1)


def batch_rows(
    subject: Subject, sizes: Sizes, profile: Profile | None, price_per_hour: float | None, progress: Progress
) -> Iterator[Row]:
    """Equal requests at once, by their number."""
    model = None if profile is None else CostModel(subject.work, profile)
    prompt = min(PROMPT, sizes.prompts[-1])
    for row in latency_rows(
        subject,
        input_lens=[prompt],
        batch_sizes=sizes.batches,
        output_len=OUTPUT,
        repeats=sizes.repeats,
        progress=progress,
    ):
        batch = int(row.labels["batch"])
        rate = row.values["decode_tokens_per_s"]
        more = costs(rate, price_per_hour)
        if model is not None:
            more["predicted_tokens_per_s"] = batch / model.decode_s(batch, prompt + OUTPUT // 2)
        yield Row({SECTION: "batch", "batch": batch}, {**row.values, **more}, row.samples)


def prompt_rows(subject: Subject, sizes: Sizes, profile: Profile | None, progress: Progress) -> Iterator[Row]:
    """One prompt at a time, by its length."""
    model = None if profile is None else CostModel(subject.work, profile)
    chunk = subject.parts.resolved.max_num_batched_tokens
    for row in prefill_rows(
        subject, input_lens=sizes.prompts, batch_sizes=[1], repeats=sizes.repeats, progress=progress
    ):
        prompt = int(row.labels["prompt"])
        more = (
            {} if model is None else {"predicted_tokens_per_s": prompt / model.prefill_s(prompt, chunk=chunk)}
        )
        yield Row({SECTION: "prefill", "prompt": prompt}, {**row.values, **more}, row.samples)


def prefix_rows(subject: Subject, sizes: Sizes, progress: Progress) -> Iterator[Row]:
    """TTFT of a prompt, and of the same one again."""
    for prompt in sizes.prompts:
        progress(f"prefix of {prompt} tokens")
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(sizes.repeats + 1):
            seed = subject.next_seed()
            for found in times:
                asked = fixed_lengths(
                    1, prompt_tokens=prompt, output_tokens=1, vocab_size=subject.vocab_size, seed=seed
                )
                found.append(subject.run(asked).ttft_s[0])
        medians = [statistics.median(each[1:]) for each in times]  # the first one warms up
        for name, median in zip(("computed", "prefix hit"), medians, strict=True):
            labels: dict[str, Label] = {SECTION: "prefix", "prompt": prompt, "prefix": name}
            yield Row(labels, {"ttft_p50_s": median, "speedup": medians[0] / median})


def chunking_rows(config: EngineConfig, progress: Progress) -> Iterator[Row]:
    """Streams while long prompts arrive: whole, in chunks of the default size, and in small ones."""
    ways: tuple[tuple[str, dict[str, object]], ...] = (
        ("whole prompts", {"enable_chunked_prefill": False}),
        ("chunks of the default size", {"enable_chunked_prefill": True}),
        (f"chunks of {_CHUNK}", {"enable_chunked_prefill": True, "max_num_batched_tokens": _CHUNK}),
    )
    for name, options in ways:
        progress(name)
        given = replace(config, enable_prefix_caching=False, **options)  # type: ignore[arg-type]
        subject = load_subject(given, roofline=False)
        resolved = subject.parts.resolved
        length = max(1, min(_LONGEST_PROMPT, resolved.max_model_len - OUTPUT))
        output = max(2, min(_STREAM_OUTPUT, resolved.max_model_len - _STREAM_PROMPT))
        step = statistics.median(closed_batch(subject, STREAMS, _STREAM_PROMPT, 16).itl_s)
        run = subject.run(_beside(subject.vocab_size, length, output, step))
        labels: dict[str, Label] = {
            SECTION: "chunking", "prompts": name, "chunk": resolved.max_num_batched_tokens, "prompt": length
        }  # fmt: skip
        yield Row(
            labels,
            {
                "itl_p50_s": percentile(run.itl_s, 0.5),
                "itl_p99_s": percentile(run.itl_s, 0.99),
                "itl_most_s": max(run.itl_s),
                "ttft_p50_s": percentile(
                    [run.ttft_by_request[f"long-{index}"] for index in range(_LONG_PROMPTS)], 0.5
                ),
                "total_tokens_per_s": run.total_rate,
            },
        )


def _beside(vocab_size: int, length: int, output: int, step_s: float) -> Sequence[Arrival]:
    """Streams from the start, and prompts of one output token that arrive while they run."""
    rng = random.Random("beside")

    def request(name: str, prompt: int, tokens: int) -> NewRequest:
        ids = tuple(rng.randrange(vocab_size) for _ in range(prompt))
        return NewRequest(name, ids, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))

    streams = [Arrival(0.0, request(f"stream-{index}", _STREAM_PROMPT, output)) for index in range(STREAMS)]
    every = output * step_s / (_LONG_PROMPTS + 1)
    return [
        *streams,
        *(
            Arrival((index + 1) * every, request(f"long-{index}", length, 1))
            for index in range(_LONG_PROMPTS)
        ),
    ]
