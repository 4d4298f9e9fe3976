"""Cost of a step without the model: the real engine, executor, sampler and output side around a forward that
returns prepared logits immediately."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from headrace.bench.report import Label, Row
from headrace.core.engine import Engine
from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.types import BlockCopy, KVGroupSpec, NewRequest
from headrace.runner.block_tables import all_tables
from headrace.runner.executor import ModelExecutor
from headrace.runner.model import Logits, StepSampler
from headrace.runner.sampling.forwarding import ForwardingSampler
from headrace.runner.sampling.output import SampleOutput
from headrace.runner.sampling.state import SampleRow
from headrace.runner.sampling.token_masks import GrammarRunner, TokenMasks
from headrace.runner.step import Step
from headrace.serving.requests.output_processor import OutputProcessor
from headrace.text.grammar_store import GrammarStore
from headrace.text.tokenizer import Tokenizer

PARTS = ("plan", "pack", "sample", "commit", "output")
"""plan and commit: the scheduler. pack: the executor without model and sampler, including grammar masks, which a real
forward overlaps. output: tokens to text."""

# Endless lines of JSON: a mask for keys, for text, for numbers and for the characters between them.
ENDLESS = Grammar("regex", r'(\{"[a-z ]+": ("[^"\n]*"|-?[0-9]{1,9})\}\n)+')

SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95, max_tokens=None, ignore_eos=True),
    "top-k": SamplingParams(temperature=0.8, top_k=50, max_tokens=None, ignore_eos=True),
    "grammar": SamplingParams(temperature=0.8, top_k=50, max_tokens=None, ignore_eos=True, grammar=ENDLESS),
}
PROMPT_TOKENS = 128
WARM_UP_STEPS = 20


def prepared_logits(count: int, vocab_size: int, spoken: int, seed: int = 0) -> NDArray[np.float32]:
    """Logits [count, vocab_size] about as peaked as a language model's; tokens from `spoken` on are unlikely.

    `spoken` is the size of the tokenizer's vocabulary: a real model rarely picks an id without text.
    """
    random = np.random.default_rng(seed)
    logits = random.standard_normal((count, vocab_size), dtype=np.float32) * 3
    logits[:, :spoken] += 6
    return logits


class PreparedModel(Generic[Logits]):
    """A `runner.model.StepModel` without a model: the logits of a step are the first rows of an array."""

    def __init__(self, logits: Logits, vocab_size: int) -> None:
        self._logits = logits
        self.vocab_size = vocab_size

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """There is no KV."""

    def forward(self, step: Step) -> Logits:
        return self._logits[: len(step.logits_rows)]  # type: ignore[index,no-any-return]

    def hidden(self) -> NDArray[np.float32]:
        """Not used: no request here is an embedding."""
        raise RuntimeError("a prepared model has no hidden states")

    def head(self, states: NDArray[np.float32]) -> Logits:
        """Not used: nothing is drafted."""
        raise RuntimeError("a prepared model has no head")

    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Not used: nothing is drafted."""
        raise RuntimeError("a prepared model has no embeddings")


class TimedSampler(ForwardingSampler[Logits]):
    """Forwards calls and adds up their time."""

    def __init__(self, sampler: StepSampler[Logits]) -> None:
        super().__init__(sampler)
        self.spent_s = 0.0

    def sample(
        self,
        logits: Logits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        start = time.perf_counter()
        output = self._sampler.sample(logits, rows, at, masks, with_logprobs=with_logprobs)
        self.spent_s += time.perf_counter() - start
        return output


@dataclass(slots=True)
class Spent:
    """Seconds of every step, by part."""

    parts: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PARTS})

    def medians(self) -> dict[str, float]:
        """Median seconds of each part, and of the whole step under "step"."""
        medians = {name: statistics.median(values) for name, values in self.parts.items()}
        steps = [sum(step) for step in zip(*self.parts.values(), strict=True)]
        return {**medians, "step": statistics.median(steps)}


def measure_overhead(
    logits: Logits, vocab_size: int, sampler: StepSampler[Logits], params: SamplingParams, sequences: int,
    tokenizer: Tokenizer, *, steps: int = 300, block_size: int = 32,
) -> Spent:  # fmt: skip
    """Decode `steps` tokens of each of `sequences` sequences and time everything but the forward.

    `logits` hold at least `sequences` rows.
    """
    length = PROMPT_TOKENS + WARM_UP_STEPS + steps + 2
    group = KVGroupSpec("full", sequences * -(-length // block_size) + 1, block_size)
    config = SchedulerConfig(sequences, sequences * PROMPT_TOKENS, length, vocab_size)
    engine = Engine(config, [group])
    timed = TimedSampler(sampler)
    grammars = GrammarRunner(GrammarStore(tokenizer, vocab_size, tokenizer.eos_ids))
    executor = ModelExecutor(
        PreparedModel(logits, vocab_size),
        timed,
        all_tables([group], sequences),
        max_seqs=sequences,
        grammars=grammars,
    )
    processor = OutputProcessor(tokenizer)
    random = np.random.default_rng(1)
    for index in range(sequences):
        prompt = random.integers(10, tokenizer.vocab_size, PROMPT_TOKENS).tolist()
        new = NewRequest(f"overhead-{index}", tuple(prompt), params)
        processor.add(new)
        engine.add(new, 0.0)
    spent = Spent()
    for step in range(WARM_UP_STEPS + steps):
        timed.spent_s = 0.0
        began = time.perf_counter()
        plan = engine.begin(began)
        planned = time.perf_counter()
        result = executor.execute(plan)
        executed = time.perf_counter()
        outputs = engine.finish(result, executed)
        finished = time.perf_counter()
        processor.process(outputs)
        processed = time.perf_counter()
        if step < WARM_UP_STEPS:
            continue
        times = (
            planned - began,
            executed - planned - timed.spent_s,
            timed.spent_s,
            finished - executed,
            processed - finished,
        )
        for name, value in zip(PARTS, times, strict=True):
            spent.parts[name].append(value)
    return spent


def overhead_rows(
    logits: Logits, vocab_size: int, sampler: StepSampler[Logits], tokenizer: Tokenizer,
    sizes: Sequence[int] = (1, 8, 32), samplings: Sequence[str] = tuple(SAMPLING), steps: int = 300,
) -> list[Row]:  # fmt: skip
    """One row a part, a number of sequences and a way of sampling: median seconds of a decode step."""
    rows = []
    for name in samplings:
        for size in sizes:
            spent = measure_overhead(
                logits, vocab_size, sampler, SAMPLING[name], size, tokenizer, steps=steps
            )
            medians = spent.medians()
            whole = medians.pop("step")
            for part, seconds in medians.items():
                labels: dict[str, Label] = {"sampling": name, "batch": size, "part": part}
                rows.append(Row(labels, {"seconds": seconds, "share": seconds / whole}))
            rows.append(Row({"sampling": name, "batch": size, "part": "step"}, {"overhead_s": whole}))
    return rows
