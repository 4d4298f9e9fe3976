"""What clients saw, in memory that does not grow with the number of requests."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from headrace.core.types import RequestStats
from headrace.sim.workload.slo import SLO

_WIDTH = 1e-3
"""Two values in one bin of a distribution differ by less than this share."""
_SCALE = 1 / math.log1p(_WIDTH)
_LEAST = 1e-9

SHARES = (50, 90, 99)
"""Percentiles of a row."""


class Distribution:
    """Counts of values in bins of equal relative width, 0.1 %: percentiles are exact up to half of that."""

    __slots__ = ("_bins", "count", "total")

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self.count = 0
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value of at least 0 so many times; below a nanosecond it counts as 0."""
        self._bins[_bin(value)] += times
        self.count += times
        self.total += value * times

    def add_rising(self, values: list[float], times: int) -> None:
        """`add` for each of several values that do not fall."""
        first, last = _bin(values[0]), _bin(values[-1])
        if first == last:
            self._bins[first] += times * len(values)
            self.count += times * len(values)
            self.total += sum(values) * times
            return
        middle = len(values) // 2
        self.add_rising(values[:middle], times)
        self.add_rising(values[middle:], times)

    def percentile(self, share: float) -> float:
        """The smallest value that at least `share` (0 to 1) of the values do not exceed, 0 where there is none."""
        rank = max(1, math.ceil(share * self.count - 1e-9))
        seen = 0
        for number in sorted(self._bins):
            seen += self._bins[number]
            if seen >= rank:
                return 0.0 if number == _ZERO else math.exp((number + 0.5) / _SCALE)
        return 0.0


_ZERO = -(10**6)


def _bin(value: float) -> int:
    return math.floor(math.log(value) * _SCALE) if value > _LEAST else _ZERO


@dataclass(slots=True)
class Tally:
    """Counts and latencies of requests, as their clients see them. Tokens are those of answered requests.

    slo: targets to count requests by; server_s, server_token_s: what the server adds to the first token, and to each
    that follows.
    """

    slo: SLO | None = None
    server_s: float = 0.0
    server_token_s: float = 0.0
    sent: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    within: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    outages: int = 0
    last_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)  # of failures
    ttft: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)

    def finish(self, stats: RequestStats, end_s: float) -> None:
        """A request was answered, with its last token at `end_s`."""
        self.answered += 1
        self.last_s = max(self.last_s, end_s)
        self.prompt_tokens += stats.num_prompt
        self.cached_tokens += stats.num_cached
        self.output_tokens += stats.num_output
        self.preemptions += stats.num_preemptions
        first_s = end_s if stats.first_token_s is None else stats.first_token_s
        gaps = stats.num_output - 1
        ttft = first_s - stats.arrival_s + self.server_s
        decode = end_s - first_s + self.server_token_s * max(0, gaps)
        tpot = decode / gaps if gaps > 0 else None
        self.ttft.add(ttft)
        self.e2e.add(ttft + decode)
        if tpot is not None:
            self.tpot.add(tpot)
        if self.slo is not None:
            self.within += self.slo.met(ttft, tpot, ttft + decode)

    def values(self) -> dict[str, float]:
        """The figures of a row, by the names of `headrace bench serve`."""
        wall = max(self.last_s, 1e-9)
        values = {
            "sent": float(self.sent),
            "answered": float(self.answered),
            "refused": float(self.refused),
            "failed": float(self.failed),
            "prompt_tokens": float(self.prompt_tokens),
            "output_tokens": float(self.output_tokens),
            "wall_s": self.last_s,
            "requests_per_s": self.answered / wall,
            "output_tokens_per_s": self.output_tokens / wall,
        }
        if self.slo is not None:
            values["goodput_per_s"] = self.within / wall
            values["within_slo"] = self.within / max(1, self.sent)
        for name in ("ttft", "tpot", "itl", "e2e"):
            pool: Distribution = getattr(self, name)
            if pool.count:
                values |= {f"{name}_p{share}_s": pool.percentile(share / 100) for share in SHARES}
        return values
