"""When replicas fail, and for how long."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failures:
    """Mean time between failures of a replica and mean time to its recovery, in seconds; both exponential."""

    between_s: float
    recovery_s: float
    seed: int = 0


class Outages:
    """The failures and recoveries of replicas, one after the other."""

    def __init__(self, failures: Failures, replicas: int) -> None:
        self._failures = failures
        self._rngs = [random.Random(f"failures {failures.seed} {index}") for index in range(replicas)]
        self._up = [True] * replicas
        self._changes = [
            (rng.expovariate(1 / failures.between_s), index) for index, rng in enumerate(self._rngs)
        ]
        heapq.heapify(self._changes)

    @property
    def next_s(self) -> float:
        """When the next replica changes."""
        return self._changes[0][0]

    def is_up(self, index: int) -> bool:
        return self._up[index]

    def change(self) -> int:
        """Let that change happen; returns the replica."""
        time, index = self._changes[0]
        self._up[index] = not self._up[index]
        mean = self._failures.between_s if self._up[index] else self._failures.recovery_s
        heapq.heapreplace(self._changes, (time + self._rngs[index].expovariate(1 / mean), index))
        return index
