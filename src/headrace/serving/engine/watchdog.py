"""Tells a hung engine from a busy one by how long it has said nothing.

An engine answers a ping between two steps, so an answer may take as long as a step does. Before a large step it says
how many tokens it will compute, and how long that takes at most by the speed of the steps before (`step_times`). It may
then be silent for longer: for `timeout_s` and `SLOWER` times what was said. Where nothing is known yet, it may be for
`timeout_s` for each `TOKENS_PER_TIMEOUT` tokens, and never for longer. The default of 60 seconds thus allows for a
prefill of 8 tokens a second, about that of a model of 70 billion parameters on a dozen cores; and a hang while tokens
are decoded is found after a minute.

To find a hang late costs minutes, to kill an engine that works costs everybody's answers: hence the wide margins.
"""

from __future__ import annotations

import enum

from headrace.serving.system import MONOTONIC, Clock

TOKENS_PER_TIMEOUT = 512
"""Steps of more tokens than this are announced."""

SLOWER = 8
"""A step may come to take so many times as long as those before it: four busy programs on each core make it 6 times."""

DEFAULT_TIMEOUT_S = 60.0

_CHECKS_PER_TIMEOUT = 8
_LONGEST_INTERVAL_S = 5.0
_STALL = 4
"""A check that comes so many intervals late says that this process stood still, not the engine."""


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
        """The engine said something, whatever it was."""
        self._silent_since = self._clock()
        self._allowance_s = self._timeout_s

    def step_begun(self, tokens: int, expected_s: float | None = None) -> None:
        """The engine said that it begins a step of so many tokens, and what that takes at most, if it knows."""
        self.heard()
        self._allowance_s = self._timeout_s * max(1.0, tokens / TOKENS_PER_TIMEOUT)
        if expected_s is not None:
            self._allowance_s = min(self._allowance_s, self._timeout_s + SLOWER * expected_s)

    def answered(self) -> None:
        """The engine answered a ping."""
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
            self._silent_since = now  # what it has said since may not have been read yet
        return Verdict.HUNG if now - self._silent_since > self._allowance_s else Verdict.WAIT
