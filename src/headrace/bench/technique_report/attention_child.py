"""A process that measures one attention: WAY LENGTH HEADS KV_HEADS HEAD_DIM KERNELS THREADS. Prints JSON."""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from headrace import _native
from headrace.bench.native.tape_step import BLOCK_SIZE, VOCAB_SIZE, TapeStep

REPEATS = 3
_CALM_S = 1.0
"""Calls that take longer are measured once."""


def tiled(
    length: int, heads: int, kv_heads: int, head_dim: int, kernels: str, threads: int
) -> Callable[[], None]:
    """The engine's attention, over keys and values in bfloat16."""
    step = TapeStep.of([length], [0])
    tape = _native.Tape(
        _native.Kernels(kernels), _native.Team(threads), max_tokens=length, max_seqs=1, max_logits=1,
        vocab_size=VOCAB_SIZE,
    )  # fmt: skip
    group = tape.add_group(block_size=BLOCK_SIZE, num_blocks=step.num_blocks, sink_blocks=0)
    size = step.num_blocks * BLOCK_SIZE * kv_heads * head_dim * 2
    keys, values = (np.full(size, 0x3C, np.uint8) for _ in range(2))
    cache = tape.add_kv(
        group, "bf16", keys, values, num_kv_heads=kv_heads, head_dim=head_dim, value_dim=head_dim
    )
    queries, out = tape.add_queries("bf16", heads * head_dim), tape.add_rows("bf16", heads * head_dim)
    tape.attention(queries, None, cache, out, num_heads=heads, scale=head_dim**-0.5)
    return lambda: step.run(tape, paged=True)


def materialised(
    length: int, heads: int, kv_heads: int, head_dim: int, kernels: str, threads: int
) -> Callable[[], None]:
    """softmax(q k^T) v with all scores at once, in float32, by numpy and its BLAS."""
    q = np.full((heads, length, head_dim), 0.01, np.float32)
    k, v = (np.full((heads, length, head_dim), 0.01, np.float32) for _ in range(2))
    mask = np.triu(np.full((length, length), -np.inf, np.float32), 1)

    def run() -> None:
        scores = q @ k.swapaxes(1, 2)
        scores *= np.float32(head_dim**-0.5)
        scores += mask
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        scores @ v

    return run


def _memory(name: str) -> int:
    """VmRSS, the resident bytes, or VmHWM, their peak, of this process."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _forget_peak() -> None:
    """From now on the peak is that of what follows."""
    Path("/proc/self/clear_refs").write_text("5")


def main(arguments: list[str]) -> None:
    way, *sizes, kernels, threads = arguments
    length, heads, kv_heads, head_dim = map(int, sizes)
    make = {"tiled": tiled, "materialised": materialised}[way]
    make(64, heads, kv_heads, head_dim, kernels, int(threads))()  # what libraries load on first use
    _forget_peak()
    before = _memory("VmRSS")
    run = make(length, heads, kv_heads, head_dim, kernels, int(threads))
    times: list[float] = []
    while len(times) < REPEATS and (not times or times[0] < _CALM_S):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    print(json.dumps({"seconds": seconds, "peak_bytes": max(0, _memory("VmHWM") - before)}))


if __name__ == "__main__":
    main(sys.argv[1:])
