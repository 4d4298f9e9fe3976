"""What evicting tokens costs in quality: the text after a long prompt, and the names in it that only the prompt tells.

The text is given to the model token by token after the prompt, through the engine as it serves, so that every variant
predicts the same tokens from the same prompts. Only what the cache still holds differs.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.bench.report import Row, row_of_runs
from headrace.build import assemble, find_tokenizer, survey
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import ConfigError, HeadraceError
from headrace.evaluation.documents import Record, given_documents
from headrace.runner.model import Logits, StepSampler
from headrace.runner.sampling.forwarding import ForwardingSampler
from headrace.runner.sampling.output import SampleOutput
from headrace.runner.sampling.state import SampleRow
from headrace.runner.sampling.token_masks import TokenMasks
from headrace.text.tokenizer_source import open_tokenizer

FULL, SNAPKV, RECENT = "all tokens", "snapkv", "sinks and recent"
CONTINUATION, ABSENT = "continuation", "beginning left out"
NEAR = 32
"""Tokens at the end of a prompt in which a needle does not occur."""
_RARE = 0.1  # a needle occurs in at most this share of the texts
_LONGEST = 1 << 20
_DRAWN = {
    "perplexity": "perplexity of the text after the prompt",
    "needle_recall": "names and other rare words of the text's beginning predicted right",
}


@dataclass(frozen=True, slots=True)
class Task:
    """The model reads `prompt`, then predicts each of `target`.

    needles: the places in `target` of tokens that only an earlier part of the prompt tells.
    """

    kind: str
    prompt: tuple[int, ...]
    target: tuple[int, ...]
    needles: tuple[int, ...]


@dataclass(slots=True)
class Measured:
    """Of each predicted token the log-probability, and the token that the model finds likeliest."""

    logprobs: list[float] = field(default_factory=list)
    best: list[int] = field(default_factory=list)


class ForcedSampler(ForwardingSampler[Logits]):
    """Gives the tokens that are to be predicted, and notes what the model thinks of them. A request's seed is its
    number in `tasks`."""

    def __init__(self, sampler: StepSampler[Logits], tasks: Sequence[Task]) -> None:
        super().__init__(sampler)
        self._tasks = tasks
        self.measured = [Measured() for _ in tasks]

    def sample(
        self,
        logits: Logits,
        rows: Sequence[SampleRow],
        at: Sequence[int] | None = None,
        masks: TokenMasks | None = None,
        *,
        with_logprobs: bool = True,
    ) -> SampleOutput:
        """See `StepSampler.sample`."""
        tokens = []
        for index, row in enumerate(rows):
            number = row.state.params.seed
            assert number is not None
            token = self._tasks[number].target[row.state.num_output]
            scores = self.row(logits, index if at is None else at[index])
            found = self.measured[number]
            found.logprobs.append(_logprob(scores, token))
            found.best.append(int(scores.argmax()))
            tokens.append(token)
        return SampleOutput(tokens)


def make_tasks(
    config: EngineConfig, records: Sequence[Record], *, prompt: int, output: int, samples: int, seed: int = 0
) -> list[Task]:
    """`samples` tasks of each kind, in turn, with prompts of so many tokens.

    continuation: texts one after the other, the last of which breaks off `output` tokens before its end: these are the
    target. Needles are its tokens that the broken text has before its last `NEAR` tokens, and not in those nor earlier
    in the target, and that few texts have: names, things, places. "beginning left out" has other texts in place of what
    comes before the last `NEAR` tokens, and shows how many needles are guessed. Raises ConfigError where texts are too
    short.
    """
    plan = survey(config)
    length = plan.resolved.max_model_len
    if prompt + output > length:
        raise ConfigError(
            f"prompts of {prompt} tokens and {output} after them are longer than max_model_len {length}; lower "
            "--prompt-len or --output-len"
        )
    folder = find_tokenizer(config, plan.source)
    if folder is None:
        raise ConfigError("a model without a tokenizer reads no texts: give --tokenizer")
    texts = [one.ids for one in given_documents(records, open_tokenizer(folder), _LONGEST)]
    least, total = output + 2 * NEAR, sum(map(len, texts))
    usable = [text for text in texts if len(text) >= least and 2 * (total - len(text)) >= prompt]
    if not usable or total < 2 * prompt or prompt < 2 * NEAR:
        raise ConfigError(
            f"the texts have {total} tokens, and {len(usable)} of them at least {least} with enough others before "
            f"them: a prompt takes {prompt}, and {2 * NEAR} or more; change --prompt-len or --output-len, or give "
            "more --data"
        )
    spread = Counter(token for text in texts for token in set(text))
    rng = random.Random(seed)
    tasks = []
    for sample in range(samples):
        text = usable[sample % len(usable)]
        others = [other for other in texts if other is not text]
        rng.shuffle(others)
        before = [token for other in (*others, *others) for token in other]
        cut = len(text) - output
        known, target = text[max(0, cut - prompt) : cut], text[cut:]
        near = known[-NEAR:]
        needles = tuple(
            at
            for at, token in enumerate(target)
            if token in known
            and token not in near
            and token not in target[:at]
            and spread[token] <= max(1, _RARE * len(texts))
        )
        for kind, kept in ((CONTINUATION, known), (ABSENT, near)):
            filled = (*before[: prompt - len(kept)], *kept)
            tasks.append(Task(kind, filled, tuple(target), needles))
    if not any(task.needles for task in tasks):
        raise ConfigError(
            "no text ends with a rare word of its beginning: give other --data, or raise --output-len"
        )
    return tasks


def measure(config: EngineConfig, tasks: Sequence[Task]) -> tuple[list[Measured], int]:
    """What the model thinks of each task's target, and how many tokens were evicted.

    Raises HeadraceError where a request fails.
    """
    sampler: list[ForcedSampler[object]] = []

    def force(inner: StepSampler[object]) -> StepSampler[object]:
        sampler.append(ForcedSampler(inner, tasks))
        return sampler[0]

    parts = assemble(config, sampler=force)
    engine = parts.engine
    for number, task in enumerate(tasks):
        params = SamplingParams(temperature=0.0, seed=number, max_tokens=len(task.target), ignore_eos=True)
        engine.add(NewRequest(str(number), task.prompt, params), 0.0)
    while engine.has_work:
        plan = engine.begin(0.0)
        for output in engine.finish(parts.executor.execute(plan), 0.0):
            if output.error is not None:
                raise HeadraceError(f"a request of the benchmark failed: {output.error}")
    return sampler[0].measured, engine.stats().scheduler.evicted_tokens


def variants(config: EngineConfig, budgets: Sequence[int]) -> list[tuple[str, int | None, EngineConfig]]:
    """(method, budget, config): all tokens, then both methods at each budget. Raises ConfigError for a budget that is
    too small, and where the model cannot run one of them."""
    plain = replace(
        config, kv_eviction="off", kv_eviction_budget=None, kv_eviction_window=None, kv_eviction_sinks=None,
        kv_eviction_recent=None, kv_eviction_interval=None,
    )  # fmt: skip
    made: list[tuple[str, int | None, EngineConfig]] = [(FULL, None, plain)]
    for budget in budgets:
        evicting = replace(
            config,
            kv_eviction="snapkv",
            kv_eviction_budget=budget,
        )
        made.append((SNAPKV, budget, evicting))
        sinks = min(4, budget // 8) if config.kv_eviction_sinks is None else config.kv_eviction_sinks
        if sinks >= budget:
            raise ConfigError(
                f"kv_eviction_sinks {sinks} leaves no recent token in a budget of {budget}; lower it, or raise --shares"
            )
        made.append(
            (RECENT, budget, replace(evicting, kv_eviction_sinks=sinks, kv_eviction_recent=budget - sinks))
        )
    for _, _, variant in made:
        survey(variant)
    return made


def eviction_rows(
    config: EngineConfig, tasks: Sequence[Task], budgets: Sequence[int], progress: Callable[[str], None]
) -> Iterator[Row]:
    """A row for all tokens, then one for each method and budget."""
    reference: list[Measured] = []
    length = len(tasks[0].prompt)
    for method, budget, variant in variants(config, budgets):
        progress(method if budget is None else f"{method}, {budget} tokens")
        measured, evicted = measure(variant, tasks)
        reference = reference or measured
        values = {"kept": 1.0 if budget is None else budget / length, "evicted_tokens": float(evicted)}
        for kind in dict.fromkeys(task.kind for task in tasks):
            values |= _values(kind, tasks, measured, reference)
        labels: dict[str, str | int | float] = {
            "method": method,
            "budget": length if budget is None else budget,
        }
        yield row_of_runs(labels, [values])


def draw_budgets(Figure: Any, rows: Sequence[Row]) -> Any:
    """Perplexity after the prompt, and the share of needles that are predicted right, over the share of the prompt
    that stays."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for place, (metric, title) in enumerate(_DRAWN.items()):
        axes = figure.add_subplot(1, 2, place + 1)
        full = next(row for row in rows if row.labels["method"] == FULL)
        for method, colour in ((SNAPKV, "#3b7ea1"), (RECENT, "#c4572e")):
            points = sorted(
                (100 * row.values["kept"], row.values[metric])
                for row in rows
                if row.labels["method"] == method
            )
            axes.plot(*zip(*points, strict=True), "o-", color=colour, label=method)
        axes.axhline(full.values[metric], color="#555555", lw=1, ls="--", label=FULL)
        if metric == "needle_recall":
            axes.axhline(full.values["guessed_recall"], color="#999999", lw=1, ls=":", label="guessed")
            axes.set_ylim(0, 1.02)
        axes.set_xscale("log")
        shares = sorted({100 * row.values["kept"] for row in rows if row is not full})
        axes.set_xticks(shares, [f"{share:.3g}" for share in shares])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("tokens kept, % of the prompt")
        axes.set_title(title, fontsize=9)
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _values(
    kind: str, tasks: Sequence[Task], measured: Sequence[Measured], reference: Sequence[Measured]
) -> dict[str, float]:
    found = [
        (task, one, full)
        for task, one, full in zip(tasks, measured, reference, strict=True)
        if task.kind == kind
    ]
    needles = [(task, one, at) for task, one, _ in found for at in task.needles]
    right = sum(one.best[at] == task.target[at] for task, one, at in needles) / len(needles)
    if kind == ABSENT:
        return {"guessed_recall": right}
    logprobs = [logprob for _, one, _ in found for logprob in one.logprobs]
    same = [best == other for _, one, full in found for best, other in zip(one.best, full.best, strict=True)]
    return {
        "perplexity": math.exp(-sum(logprobs) / len(logprobs)),
        "top_1": sum(same) / len(same),
        "needle_recall": right,
        "needle_probability": math.exp(sum(one.logprobs[at] for _, one, at in needles) / len(needles)),
    }


def _logprob(scores: NDArray[np.float32], token: int) -> float:
    wide = scores.astype(np.float64)
    peak = wide.max()
    return float(wide[token] - peak - np.log(np.exp(wide - peak).sum()))
