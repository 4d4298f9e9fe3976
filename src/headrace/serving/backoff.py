"""How long to wait before the next attempt: longer after each failure, short again after a time of health."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Delays of `first_s`, doubled each time up to `longest_s`; `healthy_s` without a failure forget the past."""

    first_s: float = 1.0
    longest_s: float = 30.0
    healthy_s: float = 60.0
    _last_s: float = 0.0

    def after(self, lived_s: float) -> float:
        """Seconds to wait, where what failed had run for `lived_s` seconds (0: it did not even start)."""
        if lived_s >= self.healthy_s:
            self._last_s = 0.0
        self._last_s = min(self.longest_s, max(self.first_s, 2 * self._last_s))
        return self._last_s
