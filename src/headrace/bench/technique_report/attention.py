"""Attention of one layer over one prompt, tiled as the engine does it, and with all scores in memory.

Each is measured in a process of its own, whose peak memory is what it grew by.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

from headrace.bench.model.latency import Progress
from headrace.bench.report import Label, Row
from headrace.bench.technique_report.sections import SECTION
from headrace.errors import HeadraceError
from headrace.models.spec import ModelSpec
from headrace.plan.hardware import this_machine
from headrace.program.lower import lower
from headrace.program.records import Attention

LENGTHS, QUICK_LENGTHS = (512, 2048, 8192, 32_768), (512, 2048)
TILED, MATERIALISED = "tiled", "materialised"
FLOAT_BYTES = 4
_SHARE = 4
"""The scores take at most the free memory divided by this."""
_DEADLINE_S = 300


def attention_rows(
    spec: ModelSpec, kernels: str | None, threads: int, lengths: Sequence[int], progress: Progress
) -> Iterator[Row]:
    """A row for each way and length. Without native kernels there is nothing to compare."""
    if kernels is None:
        return
    layer: Attention = lower(spec).of_kind("attention")[0].attributes
    sizes = (layer.num_heads, layer.num_kv_heads, layer.head_dim)
    for length in lengths:
        scores = layer.num_heads * length * length * FLOAT_BYTES
        for way in (TILED, MATERIALISED):
            labels: dict[str, Label] = {SECTION: "attention", "tokens": length, "scores": way}
            if way == MATERIALISED and scores > this_machine().memory_available // _SHARE:
                yield Row({**labels, "measured": "no: too large"}, {"peak_bytes": float(scores)})
                continue
            progress(f"attention over {length} tokens, {way}")
            seconds, grown = _measured(way, length, sizes, kernels, threads)
            yield Row({**labels, "measured": "yes"}, {"seconds": seconds, "peak_bytes": grown})


def _measured(
    way: str, length: int, sizes: tuple[int, int, int], kernels: str, threads: int
) -> tuple[float, float]:
    command = [
        sys.executable, "-m", "headrace.bench.technique_report.attention_child", way,
        *map(str, (length, *sizes)), kernels, str(threads),
    ]  # fmt: skip
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=True)
        found = json.loads(ended.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise HeadraceError(f"attention over {length} tokens could not be measured: {said!s:.300}") from None
    return float(found["seconds"]), float(found["peak_bytes"])
