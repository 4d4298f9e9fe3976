"""What drafting gains: method x temperature x batch x workload, beside decoding without drafts in the same run.

Engines take turns, in a short round several times. A speed-up is the median of the ratios of each run of a method to
the runs without drafts before and after it: so what slows the machine for longer than a run slows both.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from headrace.bench.measure import Measured, run_workload
from headrace.bench.model.latency import Progress
from headrace.bench.report import Label, Row
from headrace.bench.workload import HEROES, THINGS, Arrival
from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.core.grammar import CHOICE, Grammar
from headrace.core.params import SamplingParams
from headrace.core.types import BlockCopy, NewRequest
from headrace.errors import ConfigError
from headrace.runner.drafting import Drafted
from headrace.runner.executor import ModelExecutor
from headrace.speculative.control import Speculation
from headrace.speculative.method import Method, Proposal
from headrace.text.tokenizer import Tokenizer

PLAIN = "none"
"""Decoding without drafts, which everything is compared with."""
WORKLOADS = ("stories", "questions", "copy", "code", "random")
ROUND_S = 0.5
"""A round takes turns until decoding without drafts has taken about so long, at most MOST_TURNS times."""
MOST_TURNS = 24
_CODE = (
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n    return"
)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure; `tokens` is the length of each answer."""

    workload: str
    temperature: float
    batch: int
    tokens: int


def requests(case: Case, tokenizer: Tokenizer | None, vocab_size: int, seed: int) -> list[Arrival]:
    """`case.batch` requests at once. Answers of "copy" repeat a part of their prompt, because a grammar allows nothing
    else. Raises ConfigError where a workload needs the model's tokenizer."""
    rng = random.Random(f"{case.workload} {seed}")
    if tokenizer is None and case.workload != "random":
        raise ConfigError(f"the workload {case.workload} needs a model with a tokenizer; random does not")
    arrivals = []
    for index in range(case.batch):
        params = SamplingParams(
            temperature=case.temperature, max_tokens=case.tokens, seed=rng.randrange(2**31), ignore_eos=True
        )
        if tokenizer is None or case.workload == "random":
            prompt = [rng.randrange(vocab_size) for _ in range(64)]
        else:
            prompt, params = _written(case, tokenizer, rng, params)
        arrivals.append(Arrival(0.0, NewRequest(f"spec-{index}", tuple(prompt), params)))
    return arrivals


def _written(
    case: Case, tokenizer: Tokenizer, rng: random.Random, params: SamplingParams
) -> tuple[list[int], SamplingParams]:
    hero, thing = rng.choice(HEROES), rng.choice(THINGS)
    if case.workload == "stories":
        return tokenizer.encode(f"Once there was a {hero} who wanted a {thing}."), params
    if case.workload == "code":
        return tokenizer.encode(f"# The {hero} counts the {thing}s.\n{_CODE}"), params
    if case.workload == "questions":
        text = (
            f"The {hero} had a {thing}. It was old, and the {hero} was proud of it. What did the {hero} have?"
        )
        if tokenizer.has_chat_template:
            return tokenizer.encode_chat([{"role": "user", "content": text}]), params
        return tokenizer.encode(text), params
    words = [
        rng.choice((*HEROES, *THINGS, "the", "and", "sees", "takes", "one", "small")) for _ in range(200)
    ]
    text = " ".join(words)
    answer = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)[: case.tokens])
    grammar = Grammar(CHOICE, json.dumps([answer]))
    return tokenizer.encode(f"{text}\nAgain:\n"), replace(params, grammar=grammar, ignore_eos=False)


class Scripted:
    """Drafts what a method drafts, and replaces it by the right tokens with a set probability each, so that the costs
    of drafting are real and acceptance is known: for models with random weights. Satisfies `speculative.method.Method`.

    `right` is what each sequence will have written. Which drafts are right depends on `seed`.
    """

    def __init__(
        self, inner: Method, rate: float, right: Callable[[Sequence[int]], Sequence[int]], seed: int = 0
    ) -> None:
        self.name, self.free = inner.name, inner.free
        self.needs_hidden, self.needs_states = inner.needs_hidden, inner.needs_states
        self.outline = None  # its acceptance is that of chains
        self._inner, self._rate, self._right = inner, rate, right
        self._rng = random.Random(seed)

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        found = self._inner.propose([replace(one, nodes=0) for one in sequences])
        return [self._replaced(one, proposal) for one, proposal in zip(sequences, found, strict=True)]

    def _replaced(self, one: Drafted, proposal: Proposal) -> Proposal:
        if not proposal.tokens:
            return proposal
        text = self._right(one.tokens)
        tokens = list(text[len(one.tokens) : len(one.tokens) + len(proposal.tokens)])
        for depth, token in enumerate(tokens):
            if self._rng.random() >= self._rate:
                tokens[depth] = token - 1 if token else 1  # a wrong one, in any vocabulary
                break
        return Proposal(tuple(tokens), proposal.kind)

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        self._inner.pass_over(sequences)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._inner.copy_blocks(copies)

    def release(self, request_id: int) -> None:
        self._inner.release(request_id)


def speculative_rows(
    config: EngineConfig,
    *,
    methods: Sequence[str],
    cases: Sequence[Case],
    rates: Sequence[float] = (),
    repeats: int,
    progress: Progress,
) -> Iterator[Row]:
    """A row for each case and method; the first of a case is that without drafts. With `rates` there are so many for
    each of these probabilities that a drafted token is right.

    Raises ConfigError where a batch cannot run at once, and what `assemble` raises.
    """
    engines = {name: _engine(config, name) for name in (PLAIN, *methods)}
    for parts in engines.values():
        _check(parts, cases)
    texts: dict[int, list[list[int]]] = {}
    for case, rate in ((case, rate) for case in cases for rate in rates or (None,)):
        if rate is None or rate == rates[0]:
            texts.clear()  # of another case
        found: dict[str, list[list[_Run]]] = {name: [] for name in engines}
        turns = 1
        for repeat in range(repeats + 1):
            measured: dict[str, list[_Run]] = {name: [] for name in engines}
            for turn in range(turns):
                order = list(engines.items())
                for name, parts in reversed(order) if turn % 2 else order:  # none has the better place
                    if not turn:
                        progress(f"{case.workload}, T={case.temperature:g}, batch {case.batch}: {name}")
                    seed = repeat * MOST_TURNS + turn
                    arrivals = requests(case, parts.tokenizer, parts.spec.vocab_size, seed)
                    if rate is not None and name != PLAIN:
                        if seed not in texts:
                            texts[seed] = _texts(engines[PLAIN], arrivals)
                        _script(parts, rate, texts[seed], seed)
                    measured[name].append(_run(parts, _fresh(arrivals, repeat)))
            if not repeat:  # the first round warms up
                turns = max(1, min(MOST_TURNS, round(ROUND_S / measured[PLAIN][0].measured.wall_s)))
                continue
            for name, runs in measured.items():
                found[name].append(runs)
        for name in engines:
            yield _row(case, rate, name, found[name], found[PLAIN], engines[name])


@dataclass(frozen=True, slots=True)
class _Run:
    """A workload once: what was measured, and its drafts, drafted and accepted tokens."""

    measured: Measured
    drafts: tuple[int, int, int]


def _run(parts: EngineParts, arrivals: Sequence[Arrival]) -> _Run:
    before = parts.engine.stats().scheduler
    measured = run_workload(parts.engine, parts.executor, arrivals, samples_kv=False)
    after = parts.engine.stats().scheduler
    return _Run(
        measured,
        (
            after.drafts - before.drafts,
            after.draft_tokens - before.draft_tokens,
            after.accepted_tokens - before.accepted_tokens,
        ),
    )


def _engine(config: EngineConfig, name: str) -> EngineParts:
    if name == PLAIN:
        plain = replace(
            config,
            speculative=None,
            num_speculative_tokens=None,
            speculative_tree_nodes=None,
            speculative_quantization=None,
            acceptance="exact",
        )
        return assemble(plain)
    return assemble(replace(config, speculative=name))


def _check(parts: EngineParts, cases: Sequence[Case]) -> None:
    most = parts.resolved.max_num_seqs
    for case in cases:
        if case.batch > most:
            raise ConfigError(f"a batch of {case.batch} needs --max-num-seqs {case.batch}; it is {most}")


def _fresh(arrivals: Sequence[Arrival], repeat: int) -> list[Arrival]:
    """With a cache salt of their own: every run computes its prompts."""
    return [
        replace(one, request=replace(one.request, cache_salt=f"{repeat} {id(arrivals)}")) for one in arrivals
    ]


def _texts(plain: EngineParts, arrivals: Sequence[Arrival]) -> list[list[int]]:
    """Prompts and what the plain engine writes after each."""
    texts = []
    for arrival in arrivals:
        engine, text = plain.engine, list(arrival.request.prompt)
        engine.add(arrival.request, 0.0)
        while engine.has_work:
            for output in engine.finish(plain.executor.execute(engine.begin(0.0)), 0.0):
                text += output.tokens
        texts.append(text)
    return texts


def _script(parts: EngineParts, rate: float, texts: Sequence[list[int]], seed: int) -> None:
    """Let the methods of an engine draft the tokens of these texts, each right with probability `rate`."""

    def right(tokens: Sequence[int]) -> Sequence[int]:
        last, count = tokens[-1], len(tokens)  # drafting is timed: few texts are compared as a whole
        near = (text for text in texts if len(text) >= count and text[count - 1] == last)
        return next((text for text in near if text[:count] == list(tokens)), ())

    assert isinstance(parts.executor, ModelExecutor)
    speculation = parts.executor.drafter
    assert isinstance(speculation, Speculation)
    inner = [getattr(method, "_inner", method) for method in speculation.methods]
    speculation.methods = tuple(Scripted(method, rate, right, seed) for method in inner)


def _row(
    case: Case,
    rate: float | None,
    name: str,
    rounds: Sequence[Sequence[_Run]],
    plain: Sequence[Sequence[_Run]],
    parts: EngineParts,
) -> Row:
    every = [run for one in rounds for run in one]
    runs = [run.measured for run in every]
    rates = [_rate(run) for run in runs]
    ratios = [ratio for one, other in zip(rounds, plain, strict=True) for ratio in _ratios(one, other)]
    drafts, drafted, accepted = (sum(column) for column in zip(*(run.drafts for run in every), strict=True))
    values = {"decode_tokens_per_s": statistics.median(rates), "speedup": statistics.median(ratios)}
    slices = sum(len(step.shape) for run in runs for step in run.decode_steps)
    values["tokens_per_slice"] = sum(run.decode_tokens for run in runs) / max(1, slices)
    if drafts and rate is not None:
        values["expected_per_slice"] = 1 + _expected(rate, drafted / drafts) * drafts / slices
    if drafts:
        values["draft_length"] = drafted / drafts
        values["acceptance"] = accepted / drafted
        if (predicted := _predicted(parts, case.batch, drafted / drafts, accepted / drafts)) is not None:
            values["predicted_speedup"] = predicted
    labels: dict[str, Label] = {
        "workload": case.workload,
        "T": case.temperature,
        "batch": case.batch,
        "method": name,
    }
    if rate is not None:
        labels["rate"] = rate
    return Row(labels, values, {"decode_tokens_per_s": tuple(rates), "speedup": tuple(ratios)})


def _expected(rate: float, length: float) -> float:
    """Of drafts of so many tokens on average, which are right with this probability each: how many are accepted."""
    whole = int(length)
    right = [rate**depth for depth in range(1, whole + 2)]
    return sum(right[:whole]) + (length - whole) * right[whole]


def _rate(run: Measured) -> float:
    return run.decode_tokens / run.decode_s if run.decode_s else 0.0


def _ratios(runs: Sequence[_Run], plain: Sequence[_Run]) -> list[float]:
    """Of each run of a round, its rate over that without drafts: the mean time a token of the runs before and after."""
    if runs is plain:
        return [1.0] * len(runs)
    seconds = [1 / max(1e-9, _rate(run.measured)) for run in plain]
    beside = [statistics.fmean(seconds[turn : turn + 2]) for turn in range(len(seconds))]
    return [_rate(run.measured) * mean for run, mean in zip(runs, beside, strict=True)]


def _predicted(parts: EngineParts, batch: int, length: float, accepted: float) -> float | None:
    """The speed-up that the formula gives: tokens a step, over what a step with drafts costs more than one without."""
    assert isinstance(parts.executor, ModelExecutor)
    speculation = parts.executor.drafter
    assert isinstance(speculation, Speculation)
    costs = speculation.costs(batch, length)
    return None if costs is None else (1 + accepted) * costs.plain_s / (costs.step_s + costs.draft_s)
