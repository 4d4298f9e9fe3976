"""When requests are sent: as a random process of a given rate, in bursts, or all at once."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import ConfigError

MIN_RATE, MAX_RATE = 1e-6, 1e6
MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Arrivals:
    """`rate_per_s`: requests a second; infinite sends all at once. `burstiness`: shape of the gamma distribution that
    gaps are drawn from: 1 is a Poisson process, below 1 burstier, above 1 more regular. `burst`: requests
    sent together; the gaps between bursts are longer by the same factor.
    """

    rate_per_s: float = math.inf
    burstiness: float = 1.0
    burst: int = 1

    def times(self, count: int, seed: int) -> list[float]:
        """Send times of `count` requests, in seconds after the start, ascending from 0."""
        return list(itertools.islice(self.stream(seed), count))

    def stream(self, seed: int) -> Iterator[float]:
        """The same times, without an end."""
        if math.isinf(self.rate_per_s):
            yield from itertools.repeat(0.0)
        rng = random.Random(f"arrivals {seed}")
        mean = self.burst / self.rate_per_s
        now = 0.0
        while True:
            yield from itertools.repeat(now, self.burst)
            now += rng.gammavariate(self.burstiness, mean / self.burstiness)


def parse_rates(texts: list[str]) -> list[float]:
    """Rates from words such as "2", "0.5", "inf" and "1:16:4" (from, to, number of steps, evenly spaced).

    Raises ConfigError.
    """
    rates: list[float] = []
    for text in texts:
        parts = text.split(":")
        if len(parts) not in (1, 3):
            raise ConfigError(f"--request-rate takes a rate or from:to:steps, got {text!r:.80}")
        low = _rate(parts[0])
        if len(parts) == 1:
            rates.append(low)
            continue
        high, steps = _rate(parts[1]), _steps(parts[2])
        if math.isinf(high) or math.isinf(low):
            raise ConfigError(f"--request-rate cannot sweep to infinity, got {text!r:.80}")
        rates += [low + (high - low) * step / (steps - 1) for step in range(steps)]
    if len(rates) > MAX_STEPS:
        raise ConfigError(f"--request-rate takes at most {MAX_STEPS} rates, got {len(rates)}")
    return rates


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (MIN_RATE <= rate <= MAX_RATE or rate == math.inf):
        raise ConfigError(
            f"--request-rate must be between {MIN_RATE:g} and {MAX_RATE:g}, or inf, got {text!r:.80}"
        )
    return rate


def _steps(text: str) -> int:
    steps = int(text) if text.isdecimal() and len(text) < 10 else 0
    if not 2 <= steps <= MAX_STEPS:
        raise ConfigError(f"--request-rate takes 2 to {MAX_STEPS} steps, got {text!r:.80}")
    return steps
