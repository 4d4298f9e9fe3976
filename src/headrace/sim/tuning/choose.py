"""The choice by simulation: the settings around the formula's guess, one after the other, against the best so far.

A goal has one figure, and more of it is better: for latency answers at a low rate by their mean time, for throughput
tokens a second of a full queue, for a promise the requests a second within it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import ConfigError
from headrace.sim.simulate.search import LONGEST_WAIT_S, Promise
from headrace.sim.tuning.formula import CHUNKS, DRAFTS_WORTH, KV_WORTH, Formula, Guess
from headrace.sim.tuning.gains import ACCEPTANCE, DRAFTS
from headrace.sim.tuning.goal import LATENCY, PROMISE, THROUGHPUT, Goal
from headrace.sim.tuning.trials import ALONE, SHARE, Outcome, Settings, SpentError, Trials

MARGIN = 1.03
"""Gains below this are not worth leaving the guess: a short load tells no smaller ones."""
LOW_USE = 0.2
"""The low rate of latency, of what the formula says that the guess serves."""
FIRST_USE = 0.6
"""The rate that a promise is first tried at, of the same."""
STEP_UP, STEP_DOWN = 1.4, 0.5
RAISES, DROPS = 3, 5
QUEUED = 4.0
"""A promise about TPOT alone ends where the first token takes so many times as long as that of a request alone."""
FOREVER_S = 1e9
EXPECTED = (1 - ACCEPTANCE ** (DRAFTS + 1)) / (1 - ACCEPTANCE)
"""Tokens of a step that verifies drafts."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A value that was simulated in place of `before`, the chosen one of that time. gain: its figure over that of
    `before`; None where it does not fit, or does not keep a promise at `rate` requests a second, for the reason
    `broken`."""

    name: str
    value: Any
    before: Any
    rate: float | None
    gain: float | None
    broken: str | None
    taken: bool


@dataclass(frozen=True, slots=True)
class Chosen:
    """outcome: of the chosen settings. requests: simulated in all."""

    outcome: Outcome
    tried: tuple[Tried, ...]
    requests: int


class PromiseBroken(Exception):
    """Not even requests that are alone keep it; `nearest` comes closest."""

    def __init__(self, nearest: Outcome) -> None:
        super().__init__(nearest.broken)
        self.nearest = nearest


class Chooser:
    """Chooses for one goal."""

    def __init__(self, goal: Goal, formula: Formula, trials: Trials) -> None:
        self._goal, self._formula, self._trials = goal, formula, trials
        self._promise = promise_of(goal)
        self._low_rate = self._first_rate = 0.0
        self._tried: list[Tried] = []

    def choose(self, guess: Guess) -> Chosen:
        """The best of the guess and its neighbours. Raises PromiseBroken, ConfigError where the guess does not fit, and
        SpentError where not even the guess could be simulated."""
        self._low_rate = LOW_USE * guess.point.requests_per_s
        self._first_rate = FIRST_USE * guess.point.requests_per_s
        self._trials.check(guess.settings)
        if self._goal.kind == PROMISE and self._goal.ttft_s is None:
            waits = self._trials.at_rate(guess.settings, ALONE, Promise(ttft=FOREVER_S, share=SHARE))
            limit = max(LONGEST_WAIT_S, QUEUED * waits.ttft_s)  # a queue that grows breaks it, too
            self._promise = replace(self._promise, ttft=limit)
        best = self._first(guess.settings)
        try:
            for name, value, worth in self._neighbours(best.settings):
                best = self._against(best, name, value, worth)
            if best.settings.max_num_seqs != guess.settings.max_num_seqs:
                best = self._farther(best, guess.settings.max_num_seqs)
        except SpentError:
            pass  # what is left is not tried
        return Chosen(best, tuple(self._tried), self._trials.requests)

    # ---- candidates ----

    def _neighbours(self, guess: Settings) -> Iterator[tuple[str, Any, float]]:
        """(setting, value, the gain from which it is taken) of what is tried, in order of what it usually brings."""
        formula, are_open = self._formula, self._formula.open
        most = formula.most_batch(guess.kv_cache_dtype)
        batch = guess.max_num_seqs
        if are_open.max_num_seqs and self._goal.kind != LATENCY:  # at a low rate no batch is full
            yield from (
                ("max_num_seqs", value, MARGIN) for value in (batch * 2, batch // 2) if 1 <= value <= most
            )
        if are_open.kv_cache_dtype:
            small = guess.kv_cache_dtype != "int8"
            yield "kv_cache_dtype", "int8" if small else "auto", KV_WORTH if small else 1 / KV_WORTH
        if are_open.speculative and formula.config.kv_cache:
            drafts = guess.speculative is None
            yield "speculative", "auto" if drafts else None, DRAFTS_WORTH if drafts else 1 / DRAFTS_WORTH
        if are_open.max_num_batched_tokens and guess.max_num_batched_tokens is not None:
            tokens = guess.max_num_batched_tokens
            yield from (
                ("max_num_batched_tokens", value, MARGIN)
                for value in (tokens * 2, tokens // 2)
                if max(CHUNKS[0], batch) <= value <= CHUNKS[-1]
            )
        if are_open.step_time_budget and formula.chunked and self._goal.kind != THROUGHPUT:
            value = "off" if guess.step_time_budget == "auto" else "auto"
            yield "step_time_budget", value, MARGIN

    def _farther(self, best: Outcome, start: int) -> Outcome:
        """On in the direction that brought more."""
        most = self._formula.most_batch(best.settings.kv_cache_dtype)
        up = best.settings.max_num_seqs > start
        while True:
            batch = best.settings.max_num_seqs
            value = batch * 2 if up else batch // 2
            if not 1 <= value <= most:
                return best
            best = self._against(best, "max_num_seqs", value, MARGIN)
            if best.settings.max_num_seqs != value:
                return best

    def _against(self, best: Outcome, name: str, value: Any, worth: float) -> Outcome:
        settings = best.settings.vary(**{name: value})
        before = getattr(best.settings, name)
        if name == "max_num_seqs":
            settings = self._with_batch(settings)
        if name == "kv_cache_dtype" and self._goal.kind == LATENCY and self._formula.open.max_num_seqs:
            settings = self._with_batch(settings.vary(max_num_seqs=self._formula.latency_batch(value)))
        try:
            self._trials.check(settings)
        except ConfigError as error:
            self._tried.append(Tried(name, value, before, None, None, str(error), False))
            return best
        found = self._compare(settings, best, worth)
        gain = None if found.broken is not None else self._score(found) / self._score(best)
        taken = gain is not None and gain >= worth
        self._tried.append(Tried(name, value, before, found.rate, gain, found.broken, taken))
        return found if taken else best

    def _with_batch(self, settings: Settings) -> Settings:
        """What depends on the batch follows it."""
        batch, kv = settings.max_num_seqs, settings.kv_cache_dtype
        if self._formula.open.step_time_budget and isinstance(settings.step_time_budget, float):
            settings = settings.vary(step_time_budget=self._formula.budget(batch, kv))
        tokens = settings.max_num_batched_tokens
        if self._formula.open.max_num_batched_tokens and tokens is not None and tokens < batch:
            settings = settings.vary(max_num_batched_tokens=batch)
        return settings

    # ---- the figure of a goal ----

    def _score(self, outcome: Outcome) -> float:
        if self._goal.kind == LATENCY:
            return 1 / outcome.answer_s
        return outcome.tokens_per_s if outcome.rate is None else outcome.rate

    def _first(self, settings: Settings) -> Outcome:
        if self._goal.kind == THROUGHPUT:
            return self._trials.full(settings)
        if self._goal.kind == LATENCY:
            return self._trials.at_low_rate(settings, self._low_rate)
        return self._highest(settings)

    def _compare(self, settings: Settings, best: Outcome, worth: float) -> Outcome:
        """Of a promise: whether the settings keep it at `worth` times the best rate; if so, how far that goes."""
        if self._goal.kind == THROUGHPUT:
            return self._trials.full(settings)
        if self._goal.kind == LATENCY:
            return self._trials.at_low_rate(settings, self._low_rate)
        rate = best.rate or ALONE
        found = self._at_rate(settings, rate if rate == ALONE else worth * rate)
        return found if found.broken is not None or rate == ALONE else self._raised(found)

    def _highest(self, settings: Settings) -> Outcome:
        """The highest rate within the promise, or requests that are alone: also where no work is left for a rate."""
        alone = self._alone(settings)
        try:
            return self._searched(settings) or alone
        except SpentError:
            return alone

    def _searched(self, settings: Settings) -> Outcome | None:
        """A rate within the promise, from the formula's on; None where it has to be lower than what is tried."""
        found = self._at_rate(settings, self._first_rate)
        if found.broken is None:
            return self._raised(found)
        rate = self._first_rate
        for _ in range(DROPS):
            beyond, rate = rate, rate * STEP_DOWN
            found = self._at_rate(settings, rate)
            if found.broken is None:
                between = self._at_rate(settings, (rate * beyond) ** 0.5)
                return found if between.broken is not None else between
        return None

    def _raised(self, found: Outcome) -> Outcome:
        """On from a rate within the promise."""
        assert found.rate is not None
        for factor in (STEP_UP,) * RAISES + (STEP_UP**0.5,):
            higher = self._at_rate(found.settings, found.rate * factor)
            if higher.broken is None:
                found = higher
            elif factor == STEP_UP:
                higher = self._at_rate(found.settings, found.rate * factor**0.5)
                return found if higher.broken is not None else higher
        return found

    def _at_rate(self, settings: Settings, rate: float) -> Outcome:
        """A short load ends before its queue is seen to grow, so that a rate beyond what a full batch serves is broken
        without a simulation."""
        most = self._formula.point(settings).requests_per_s
        if settings.speculative is not None:
            most *= EXPECTED
        if rate > max(most, ALONE):
            why = f"at most {most:.3g} a second are served"
            return Outcome(settings, rate, math.inf, math.inf, math.inf, 0.0, why)
        return self._trials.at_rate(settings, rate, self._promise)

    def _alone(self, settings: Settings) -> Outcome:
        types = self._formula.types
        order = sorted(types, key=lambda kv: kv != settings.kv_cache_dtype)
        tried = [self._trials.at_rate(settings.vary(kv_cache_dtype=kv), ALONE, self._promise) for kv in order]
        kept = next((one for one in tried if one.broken is None), None)
        if kept is None:
            raise PromiseBroken(min(tried, key=lambda one: excess(self._goal, one)))
        return kept


def promise_of(goal: Goal) -> Promise:
    """Of SHARE of the requests."""
    return Promise(goal.ttft_s, goal.tpot_s, SHARE) if goal.kind == PROMISE else Promise(share=SHARE)


def excess(goal: Goal, outcome: Outcome) -> float:
    """How many times longer than promised the worse of the two times is."""
    return max(
        0.0 if goal.ttft_s is None else outcome.ttft_s / goal.ttft_s,
        0.0 if goal.tpot_s is None else outcome.tpot_s / goal.tpot_s,
    )
