"""Single ops whose times are the calibration's data, sampled in rounds.

A shared machine changes its speed from second to second, and takes cores away for some milliseconds. So every case is
sampled in each round, which lets all of them see the same changes, and calls are short. Of all calls of a case a low
quantile counts: the time of a call that nothing disturbed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.bench.native.op_tapes import OpTapes, Product
from headrace.bench.native.tape_step import TapeStep
from headrace.program.records import Attention
from headrace.quant.format import WeightFormat

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
QUANTILE = 0.2
DECODE_ROWS = 64
ROPE_CONTEXT, ROPE_BYTES = 256, 32 << 20
CALLS = 24
"""Of a sample: short tapes are replayed until they have made so many."""


def undisturbed(values: Sequence[float]) -> float:
    """The low quantile of at least one value."""
    return sorted(values)[int((len(values) - 1) * QUANTILE)]


class OtherPrograms:
    """The share of the machine's cores that other programs take."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._used()

    def share(self) -> float:
        """Since the object was made; 0 where the system does not say."""
        busy, own, all_of_it = (now - then for now, then in zip(self._used(), self._before, strict=True))
        return min(1.0, max(0.0, busy - own) / all_of_it) if all_of_it > 0 else 0.0

    def _used(self) -> tuple[float, float, float]:
        """Seconds of all cores: busy, of this process and its children, and in all."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        try:
            ticks = [
                int(one) for one in self._stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
            ]
        except (OSError, ValueError):
            return 0.0, own, 0.0
        idle = sum(ticks[3:5])  # idle, and waiting for a device
        return (sum(ticks) - idle) / CLOCK_TICKS, own, sum(ticks) / CLOCK_TICKS


@dataclass(slots=True, eq=False)
class Case:
    """One op at one size. `calls`: how often the tape has it."""

    tape: Any
    step: TapeStep
    op: str
    calls: int
    paged: bool = False
    samples: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Replay the tape; every call of that name is a sample, those of the first replay of a short tape left out: it
        loads the caches."""
        self.tape.profile(True)
        if self.calls < CALLS:
            self.step.run(self.tape, paged=self.paged)
        for _ in range(max(1, CALLS // self.calls)):
            self.tape.clear_costs()
            self.step.run(self.tape, paged=self.paged)
            self.samples += [cost[2] for cost in self.tape.costs() if cost[0] == self.op]

    @property
    def seconds(self) -> float:
        return undisturbed(self.samples)


def decode_step(rows: int, context: int = 1) -> TapeStep:
    """One token each of `rows` sequences, which is the last of `context`."""
    return TapeStep.of([1] * rows, [context - 1] * rows)


def prompt_step(tokens: int, start: int = 0) -> TapeStep:
    """`tokens` tokens of a prompt after its first `start` ones."""
    return TapeStep.of([tokens], [start])


def row_step(rows: int) -> TapeStep:
    """So many rows: of as many sequences, or of a prompt."""
    return decode_step(rows) if rows <= DECODE_ROWS else prompt_step(rows)


class Cases:
    """Makes cases, and keeps packed matrices that several of them read."""

    def __init__(self, tapes: OpTapes) -> None:
        self.tapes = tapes
        self._matrices: dict[tuple[str, int, int], list[Any]] = {}

    def linear(self, weights: WeightFormat, shape: tuple[int, int], rows: int, working_set: int) -> Case:
        """A product with matrices that take `working_set` bytes together, at least one of them."""
        product = Product("linear", *shape)
        packed = self._matrices.setdefault((weights.name, *shape), [])
        if not packed:
            packed.append(self.tapes.pack(product, weights))
        count = max(1, round(working_set / packed[0].nbytes))
        while len(packed) < count:
            packed.append(self.tapes.pack(product, weights))
        step = row_step(rows)
        tape = self.tapes.linear(product, weights, packed[:count], rows, step.seqs)
        return Case(tape, step, "linear", count)

    def attention(self, mixer: Attention, kv_type: str, step: TapeStep, working_set: int) -> Case:
        """Attention over layers whose keys and values take `working_set` bytes together, at least one of them."""
        size = 2 * self.tapes.kv_bytes(mixer, kv_type, step)
        copies = max(1, min(64, round(working_set / size)))
        return Case(self.tapes.attention(mixer, kv_type, step, copies), step, "attention", copies, paged=True)

    def encode(self, cols: int, weights: WeightFormat, rows: int, *, norm: bool) -> Case:
        """RMSNorm, if `norm`, and the encoding of rows as `weights` multiplies them."""
        step = row_step(rows)
        return Case(
            self.tapes.encode(cols, weights, rows, norm=norm, calls=4, seqs=step.seqs), step, "encode", 4
        )

    def rope(self, mixer: Attention, kv_type: str, rows: int) -> Case:
        """Rope, and the write of keys and values where earlier ones are: in other layers' memory each time."""
        step = decode_step(rows, ROPE_CONTEXT) if rows <= DECODE_ROWS else prompt_step(rows)
        size = 2 * self.tapes.kv_bytes(mixer, kv_type, step)
        calls = max(4, min(64, round(ROPE_BYTES / size)))
        return Case(self.tapes.rope(mixer, kv_type, step, calls=calls), step, "rope", calls, paged=True)

    def rotations(self, mixer: Attention, rows: int) -> Case:
        """Cosines and sines of the positions."""
        step = row_step(rows)
        return Case(self.tapes.rope(mixer, "bf16", step, calls=1), step, "rotations", 1, paged=True)

    def embed(self, cols: int, weights: WeightFormat, rows: int) -> Case:
        """The lookup of embeddings."""
        step = row_step(rows)
        tape = self.tapes.encode(cols, weights, rows, norm=False, calls=1, seqs=step.seqs)
        return Case(tape, step, "embed", 1)


def mixer(kv_heads: int, group: int, head_dim: int) -> Attention:
    """Attention with `group` query heads for each KV head."""
    return Attention(kv_heads * group, kv_heads, head_dim, head_dim**-0.5, None, 0, None, 0)
