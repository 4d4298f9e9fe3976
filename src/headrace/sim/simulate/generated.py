"""Requests of the workloads that `headrace bench serve` sends, as token ids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from headrace.sim.simulate.requests import Ask, Prompts, Turn
from headrace.sim.workload.arrivals import Arrivals
from headrace.sim.workload.sessions import SessionPlan, Workload


@dataclass(slots=True)
class GeneratedAsks:
    """Conversations from a seed, each begun at its time; satisfies `requests.Asks`.

    At most `count` of them, begun within `duration_s`. A turn follows `pause_s` after the answer to the one before.
    `users`: conversations are theirs in turn.
    """

    workload: Workload
    arrivals: Arrivals
    vocab_size: int
    count: int | None = None
    duration_s: float = math.inf
    seed: int = 0
    pause_s: float = 0.0
    users: int = 1
    _prompts: Prompts = field(init=False)
    _prefixes: list[tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self._prompts = Prompts(self.vocab_size)
        tokens = self.workload.prefix_tokens
        # Numbers of conversations begin after those of the prefixes.
        self._prefixes = [self._prompts.unique(number, tokens) for number in range(self.workload.prefixes)]

    def first(self) -> Iterator[Ask]:
        times = itertools.takewhile(lambda time: time < self.duration_s, self.arrivals.stream(self.seed))
        plans = zip(times, self.workload.plans(self.seed), strict=False)
        for number, (time, plan) in enumerate(itertools.islice(plans, self.count), len(self._prefixes)):
            yield self._ask(number, time, plan)

    def _ask(self, number: int, time: float, plan: SessionPlan) -> Ask:
        (tokens, output), *later = plan.turns
        prompt = self._prompts.unique(number, tokens)
        if plan.prefix is not None:
            prompt = (*self._prefixes[plan.prefix], *prompt)
        user = str(number % self.users) if self.users > 1 else ""
        return Ask(number, time, prompt, output, user, tuple(Turn(*turn) for turn in later))

    def after(self, ask: Ask, now: float) -> Ask | None:
        if not ask.later:
            return None
        turn, *rest = ask.later
        prompt = self._prompts.next(ask, turn)
        return replace(
            ask,
            turn=ask.turn + 1,
            arrival_s=now + self.pause_s,
            prompt=prompt,
            output_tokens=turn.output_tokens,
            later=tuple(rest),
        )
