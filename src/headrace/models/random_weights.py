"""Random weights, the same for every backend. No torch here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

POOL = (1 << 20) + 7
"""Deviates drawn; an odd number, so that rows of a matrix do not repeat."""

_DEVIATION = 0.02

_SCALES = ("layer_scalar", "router.scale", "per_expert_scale")


class RandomTensors:
    """Weights for measuring speed and for tests: norms and scales are one, the rest is normal with deviation 0.02.

    The numbers come from one pool, repeated: drawing each of a billion weights would take longer than the rest
    of a start. Tensors differ because each starts where the one before it ended.
    """

    def __init__(self, seed: int) -> None:
        generator = np.random.Generator(np.random.Philox(key=seed % (1 << 64)))
        self.pool = generator.standard_normal(POOL, dtype=np.float32) * np.float32(_DEVIATION)
        self._start = 0

    def fill(self, name: str, count: int, put: Callable[[slice, NDArray[np.float32]], None]) -> None:
        """Pass the `count` numbers of the tensor of that name to `put`, a part at a time."""
        if is_norm(name):
            put(slice(0, count), np.ones(count, dtype=np.float32))
            return
        done = 0
        start = self.take(count)
        while done < count:
            size = min(count - done, POOL - start)
            put(slice(done, done + size), self.pool[start : start + size])
            done += size
            start = (start + size) % POOL

    def take(self, count: int) -> int:
        """The start of the next `count` numbers in the pool; the position moves past them."""
        start = self._start
        self._start = (start + count) % POOL
        return start


def is_norm(name: str) -> bool:
    """Whether the tensor of that name scales a norm, the residual stream, or experts."""
    return "norm" in name or ".ln_" in name or name.endswith(_SCALES)
