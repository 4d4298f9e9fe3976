"""What `--for` asks of a server: low latency, high throughput, or times that it promises."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headrace.errors import ConfigError

LATENCY: Literal["latency"] = "latency"
THROUGHPUT: Literal["throughput"] = "throughput"
PROMISE: Literal["promise"] = "promise"
MAX_PROMISE_S = 3600.0
_TIMES = ("ttft", "tpot")


@dataclass(frozen=True, slots=True)
class Goal:
    """`ttft_s`, `tpot_s`: times of a promise in seconds, which 90 % of the requests keep; None: no limit."""

    kind: Literal["latency", "throughput", "promise"]
    ttft_s: float | None = None
    tpot_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Goal:
        """From "latency", "throughput" or times such as "ttft=0.3,tpot=0.03". Raises ConfigError."""
        wanted = text.strip().lower()
        if wanted == LATENCY:
            return cls(LATENCY)
        if wanted == THROUGHPUT:
            return cls(THROUGHPUT)
        times: dict[str, float] = {}
        for part in wanted.split(","):
            name, _, value = (side.strip() for side in part.partition("="))
            try:
                seconds = float(value)
            except ValueError:
                seconds = math.nan
            if name not in _TIMES or name in times or not 0 < seconds <= MAX_PROMISE_S:
                raise ConfigError(
                    f"--for takes latency, throughput, or times in seconds up to {MAX_PROMISE_S:g} such as "
                    f"ttft=0.3,tpot=0.03, got {text[:60]!r}"
                )
            times[name] = seconds
        return cls(PROMISE, times.get("ttft"), times.get("tpot"))

    def __str__(self) -> str:
        if self.kind != PROMISE:
            return self.kind
        given = (("ttft", self.ttft_s), ("tpot", self.tpot_s))
        return ",".join(f"{name}={seconds:g}" for name, seconds in given if seconds is not None)
