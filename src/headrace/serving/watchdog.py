"""Tells a hung engine from a busy one by how long it has said nothing.

An engine answers a ping between two steps, so an answer may take as long as a step does. Before a large step it says
how many tokens it will compute, and may then be silent for longer: `timeout_s` for `TOKENS_PER_TIMEOUT` tokens or
fewer, and in proportion above. The default of 60 seconds thus allows for a prefill of 8 tokens a second, about that of
a model of 70 billion parameters on a dozen cores; and a hang while tokens are decoded is still found after a minute.
"""

from __future__ import annotations

import enum

from headrace.serving.clock import MONOTONIC, Clock

TOKENS_PER_TIMEOUT = 512
"""Steps of more tokens than this are announced."""

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

    def step_begun(self, tokens: int) -> None:
        """The engine said that it begins a step of so many tokens."""
        self.heard()
        self._allowance_s = self._timeout_s * max(1.0, tokens / TOKENS_PER_TIMEOUT)

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
