"""Tells a hung engine from a busy one by how long it has been silent.

An engine answers a ping between two steps, so an answer may take as long as a step does. Before a large step the engine
announces its number of tokens, and a bound for its duration (`StepTimes`). It may then be silent for `timeout_s` plus
`SLOWER` times that bound. Without a bound it may be silent for `timeout_s` for each `TOKENS_PER_TIMEOUT` tokens, and
never for longer than that. The default of 60 seconds thus allows for a prefill of 8 tokens a second, about that of a
model of 70 billion parameters on a dozen cores, and a hang during decode is found after a minute.

The margins are wide, because finding a hang late costs minutes, while killing a working engine costs every caller's
answer.

The bound needs no model of the machine. A step's duration is a sum of a price for each token, for each pair of a query
and a key, and for each scored position. Whatever these prices are, a step with at most k times as much of each takes at
most k times as long. So every measured step bounds the next one.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from headrace.core.types import StepPlan
from headrace.serving.system import MONOTONIC, Clock

TOKENS_PER_TIMEOUT = 512
"""Steps of more tokens than this are announced."""

SLOWER = 8
"""How much slower a step may be than those before it: four busy programs on each core make it 6 times slower."""

DEFAULT_TIMEOUT_S = 60.0

_CHECKS_PER_TIMEOUT = 8
_LONGEST_INTERVAL_S = 5.0
_STALL = 4
"""A check that is so many intervals late means that this process stood still, not the engine."""


class Verdict(enum.Enum):
    ASK = "ask"  # send a ping
    WAIT = "wait"
    HUNG = "hung"


class Watchdog:
    """`check` must be called every `interval_s`, the other methods as things happen."""

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S, clock: Clock = MONOTONIC) -> None:
        self.interval_s = min(_LONGEST_INTERVAL_S, timeout_s / _CHECKS_PER_TIMEOUT)
        self._timeout_s = timeout_s
        self._allowance_s = timeout_s
        self._clock = clock
        self._asked = False
        self._silent_since = self._checked = clock()

    def heard(self) -> None:
        """The engine has sent a message."""
        self._silent_since = self._clock()
        self._allowance_s = self._timeout_s

    def step_begun(self, tokens: int, expected_s: float | None = None) -> None:
        """The engine has announced a step of so many tokens, and a bound for its duration if it has one."""
        self.heard()
        self._allowance_s = self._timeout_s * max(1.0, tokens / TOKENS_PER_TIMEOUT)
        if expected_s is not None:
            self._allowance_s = min(self._allowance_s, self._timeout_s + SLOWER * expected_s)

    def answered(self) -> None:
        """The engine has answered a ping."""
        self.heard()
        self._asked = False

    @property
    def silence_s(self) -> float:
        """Seconds since the engine was last heard, or asked."""
        return self._clock() - self._silent_since

    def check(self) -> Verdict:
        """Whether the engine has been silent for too long."""
        now = self._clock()
        late, self._checked = now - self._checked > _STALL * self.interval_s, now
        if not self._asked:
            self._asked = True
            self._silent_since = now
            return Verdict.ASK
        if late:
            self._silent_since = now  # its messages may not have been read yet
        return Verdict.HUNG if now - self._silent_since > self._allowance_s else Verdict.WAIT


_REMEMBERED = 16
"""Measured steps that are kept."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step computes: `pairs` of a query and a key, ignoring windows; `scored` prompt positions, which get
    log-probabilities."""

    tokens: int
    pairs: int
    scored: int = 0

    def times(self, other: Work) -> float | None:
        """The smallest k >= 1 for which this is at most k times the other in every respect; None if there is none."""
        if self.scored and not other.scored:
            return None
        ratios = [self.tokens / other.tokens, self.pairs / other.pairs]
        if self.scored:
            ratios.append(self.scored / other.scored)
        return max(1.0, *ratios)  # the fixed cost of a step does not shrink


class WorkCounter:
    """Counts the work of step plans. It must see every plan, as only a sequence's first plan has its parameters."""

    def __init__(self) -> None:
        self._scored: set[int] = set()  # sequences whose prompt gets log-probabilities

    def count(self, plan: StepPlan) -> Work:
        """The work of the next plan."""
        self._scored.difference_update(plan.released)
        tokens = pairs = scored = 0
        for work in plan.slices:
            count = len(work.tokens)
            tokens += count
            pairs += count * work.start + count * (count + 1) // 2
            if work.new is not None and work.new.params.prompt_logprobs is not None:
                self._scored.add(work.request_id)
            if work.request_id in self._scored:
                scored += count  # one too many for each step after the prompt, which does not matter
        return Work(tokens, pairs, scored)


class StepTimes:
    """Measures steps between `begin` and `end`. The caller leaves out small steps."""

    def __init__(self, clock: Clock = MONOTONIC) -> None:
        self._clock = clock
        self._measured: deque[tuple[Work, float]] = deque(maxlen=_REMEMBERED)
        self._running: tuple[Work, float] | None = None

    def begin(self, work: Work) -> float | None:
        """A step begins. Returns a bound for its seconds at the speed of recent steps; None without one."""
        self._running = work, self._clock()
        return self._bound(work)

    def end(self) -> None:
        """The step that has begun, if any, is done."""
        if self._running is None:
            return
        work, since = self._running
        self._running = None
        seconds = self._clock() - since
        bound = self._bound(work)
        if bound is not None and seconds > bound:
            self._measured.clear()  # the machine has become slower
        self._measured.append((work, seconds))

    def _bound(self, work: Work) -> float | None:
        bounds = [
            seconds * times for other, seconds in self._measured if (times := work.times(other)) is not None
        ]
        return min(bounds, default=None)
