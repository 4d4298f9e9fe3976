"""Latency targets of requests: what counts as goodput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError

MAX_SLO_S = 86_400.0
_TARGETS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class SLO:
    """Latency targets of a request in seconds: TTFT, TPOT and end to end. None: no target."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    @classmethod
    def parse(cls, texts: Sequence[str]) -> SLO | None:
        """From words such as "ttft:0.2"; None for no words. Raises ConfigError."""
        given: dict[str, float] = {}
        for text in texts:
            name, _, value = text.partition(":")
            try:
                seconds = float(value)
            except ValueError:
                seconds = math.nan
            if name not in _TARGETS or not 0 < seconds <= MAX_SLO_S:
                raise ConfigError(
                    f"--goodput takes {', '.join(_TARGETS)} with seconds up to {MAX_SLO_S:g}, such as "
                    f"ttft:0.2, got {text!r:.80}"
                )
            given[name] = seconds
        return cls(**given) if given else None

    def met(self, ttft_s: float, tpot_s: float | None, e2e_s: float) -> bool:
        """Whether a request that was answered with these latencies is within all targets."""
        measured = ((self.ttft, ttft_s), (self.tpot, tpot_s or 0.0), (self.e2el, e2e_s))
        return all(limit is None or value <= limit for limit, value in measured)
