"""The native sampler by itself: times of a step's draws from logits that are flat, peaked or in between.

How much noise a draw has to compute depends on the logits: nearly all tokens of a flat row could win, few of a peaked
one. A row counts as memory that is read once; the roofline is that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling.native import NativeSampler
from headrace.runner.sampling.state import SampleRow, SequenceState

SPREADS = {"flat": 0.1, "spread": 2.5, "peaked": 6.0}
"""Standard deviations of normal logits: of random weights, of a model that hesitates, of a model that is sure."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T=1": {},
    "T=0.7": {"temperature": 0.7},
    "top_k=50": {"top_k": 50},
    "top_p=0.9": {"top_p": 0.9},
    "min_p=0.05": {"min_p": 0.05},
}


def sampling_times(
    sampler: NativeSampler, rows: int, repeats: int, least_s: float
) -> Iterator[tuple[str, str, list[float]]]:
    """Logits, settings and seconds of at least `repeats` draws of one token for each of `rows` sequences."""
    random = np.random.default_rng(0)
    normal = random.standard_normal((rows, sampler.vocab_size), dtype=np.float32)
    for logits_name, spread in SPREADS.items():
        logits = normal * np.float32(spread)
        for name, options in SETTINGS.items():
            params = SamplingParams(**options)
            sequences = [_sequence(params, seed, sampler.vocab_size) for seed in range(rows)]
            yield logits_name, name, _times(sampler, logits, sequences, repeats, least_s)


def _sequence(params: SamplingParams, seed: int, vocab_size: int) -> SequenceState:
    return SequenceState(NewSequence(params, (0,), 1, seed, frozenset()), vocab_size)


def _times(
    sampler: NativeSampler,
    logits: NDArray[np.float32],
    sequences: Sequence[SequenceState],
    repeats: int,
    least_s: float,
) -> list[float]:
    seconds: list[float] = []
    begin = time.monotonic()
    while len(seconds) <= repeats or time.monotonic() - begin < least_s:
        rows = [SampleRow(state) for state in sequences]
        start = time.perf_counter()
        sampler.sample(logits, rows)
        seconds.append(time.perf_counter() - start)
        for state in sequences:
            state.extend((0,))
    return seconds[1:]  # the first one warms up
