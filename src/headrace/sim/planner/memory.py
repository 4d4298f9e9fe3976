"""Memory on each device: weights, activations and KV, and the largest batch and context that fit."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from headrace.core.eviction import Eviction
from headrace.core.types import Retention
from headrace.models.spec import KVLayout
from headrace.plan.activations import activation_bytes
from headrace.plan.eviction import eviction_bytes
from headrace.plan.fit import KV_PERCENT_LIMIT
from headrace.plan.formats import MemoryFormat
from headrace.plan.hardware import Hardware
from headrace.plan.kv import KVDemand, kv_demands, largest
from headrace.plan.weights import held_bytes
from headrace.program.records import Program
from headrace.sim.planner.formats import Stored

GPU_USABLE_PERCENT = 90
"""Of a GPU's memory: the rest is left for its context, its libraries and fragments, as engines do by default."""

CPU_CHUNK, GPU_CHUNK = 512, 2048
"""Tokens of a step, the defaults of the engine by kind of device."""
CPU_BLOCK, GPU_BLOCK = 32, 16
MOST_SEQUENCES = 4096
"""The largest batch that a plan looks at."""


@dataclass(frozen=True, slots=True)
class Placement:
    """tp: devices that share every layer. pp: groups of these that have some of the layers each."""

    tp: int = 1
    pp: int = 1

    @property
    def devices(self) -> int:
        return self.tp * self.pp

    def __str__(self) -> str:
        parts = [f"TP {self.tp}"] * (self.tp > 1) + [f"PP {self.pp}"] * (self.pp > 1)
        return " x ".join(parts) or "one device"


def allowed(program: Program, hardware: Hardware) -> tuple[Placement, ...]:
    """Placements of one copy of the model on the devices of one machine: powers of two, and all of them. Tensor
    parallel degrees divide the query heads; pipelines have at least one layer each."""
    degrees = [count for count in range(1, hardware.count + 1) if hardware.count % count == 0]
    heads = [op.attributes.num_heads for op in program.of_kind("attention")]
    whole = [tp for tp in degrees if all(count % tp == 0 for count in heads)]
    return tuple(
        Placement(tp, pp)
        for tp in whole
        for pp in degrees
        if hardware.count % (tp * pp) == 0 and pp <= program.num_layers
    )


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one copy of a model takes of each of its devices, at worst. eviction: of KV tokens, see core.eviction."""

    stored: Stored
    hardware: Hardware
    placement: Placement
    eviction: Eviction | None = None

    @property
    def chunk(self) -> int:
        """Most tokens of a step."""
        return CPU_CHUNK if self.hardware.kind == "cpu" else GPU_CHUNK

    @property
    def weights(self) -> int:
        """Bytes of weights on the fullest device."""
        return _device_weights(self.stored.model.program, self.stored.memory, self.placement)

    @property
    def kv_token(self) -> int:
        """Bytes of one token in all groups that keep it, on one device."""
        program, kv = self.stored.model.program, self.stored.memory.kv
        return sum(
            math.ceil(kv.token_bytes(layout) * self._share(layout))
            for layout in program.kv
            if layout.state is None
        )

    def activations(self, batch: int) -> int:
        """Bytes of a step with `batch` sequences."""
        model, kind = self.stored.model, self.hardware.kind
        program = model.native if kind == "cpu" else model.program
        busy = batch if self.eviction is None else batch - 1 + self.eviction.window
        return _activations(program, self.stored.memory, kind, max(busy, self.chunk), batch)

    def kv(self, batch: int, context: int) -> int:
        """Bytes of the KV of `batch` sequences of `context` tokens, on one device. Where tokens are evicted, one of
        them has its whole prompt, and what stays beside it; the others have evicted."""
        block = CPU_BLOCK if self.hardware.kind == "cpu" else GPU_BLOCK
        evicting = self._evicts(context)
        most = 0 if evicting is None else -(-evicting.most_within(context) // block)
        total = 0.0
        for demand in _demands(self.stored.model.program, self.stored.memory, block, context, evicting):
            share = demand.block_bytes * self._share(demand.layout)
            if demand.layout.state is not None:  # one that is written, and one that the prefix cache keeps
                total += 2 * batch * share
            elif evicting is not None and demand.layout.retention is Retention.FULL:
                total += (demand.per_sequence + (batch - 1) * min(demand.per_sequence, most)) * share
            else:
                total += batch * demand.per_sequence * share
        return math.ceil(total)

    def evicting(self, batch: int, context: int) -> int:
        """Bytes beside the KV that evicting tokens of `batch` sequences takes."""
        evicting, stored = self._evicts(context), self.stored
        if evicting is None:
            return 0
        layouts, threads = stored.model.program.kv, stored.memory.threads
        return eviction_bytes(layouts, evicting, seqs=batch, length=context, threads=threads)

    def held(self, context: int) -> int:
        """Tokens that a decoding sequence of `context` tokens has left on average in layers that keep all."""
        evicting = self._evicts(context)
        return context if evicting is None else min(context, evicting.budget + evicting.interval // 2)

    def _evicts(self, context: int) -> Eviction | None:
        return None if self.eviction is None or context <= self.eviction.budget else self.eviction

    def room(self, batch: int, context: int = 0) -> int:
        """Bytes that weights, activations and evicting leave for KV on each device; negative where they do not fit."""
        memory = self.hardware.memory - self.evicting(batch, context)
        if self.hardware.kind == "cuda":
            return memory * GPU_USABLE_PERCENT // 100 - self.weights - self.activations(batch)
        free = memory - self.weights - self.activations(batch)
        return free * KV_PERCENT_LIMIT // 100 if free > 0 else free

    def fits(self, batch: int, context: int) -> bool:
        return self.kv(batch, context) <= self.room(batch, context)

    def needed(self, batch: int, context: int) -> int:
        """Bytes that a device needs for `batch` sequences of `context` tokens; its memory must be larger, as not all of
        it can be used."""
        kv = self.kv(batch, context)
        fixed = self.weights + self.activations(batch) + self.evicting(batch, context)
        if self.hardware.kind == "cuda":
            return math.ceil((fixed + kv) * 100 / GPU_USABLE_PERCENT)
        return fixed + math.ceil(kv * 100 / KV_PERCENT_LIMIT)

    def largest_batch(self, context: int) -> int:
        """The most sequences of `context` tokens at once; 0 where not one fits."""
        if not self.fits(1, context):
            return 0
        return largest(1, MOST_SEQUENCES, lambda batch: self.fits(batch, context))

    def largest_context(self, batch: int = 1) -> int:
        """The most tokens of each of `batch` sequences, up to the model's context; 0 where not one token fits."""
        if not self.fits(batch, 1):
            return 0
        most = self.stored.model.spec.max_position
        return largest(1, most, lambda context: self.fits(batch, context))

    def _share(self, layout: KVLayout) -> float:
        """The part of a group's bytes that the fullest device holds: heads are cut, one latent is not."""
        layers = math.ceil(len(layout.layers) / self.placement.pp) / len(layout.layers)
        if layout.state is not None:
            return layers / self.placement.tp
        if layout.value_in_key is not None:
            return layers
        return layers * math.ceil(layout.num_kv_heads / self.placement.tp) / layout.num_kv_heads


@functools.lru_cache(maxsize=64)
def _device_weights(program: Program, memory: MemoryFormat, placement: Placement) -> int:
    """Embeddings lie on the first group of devices and the head on the last one: the larger counts."""
    layers, ends = 0.0, {"embeddings": 0.0, "head": 0.0}
    for weight in program.weights:
        cut = placement.tp if weight.shard is not None else 1
        for part, size in held_bytes(weight, memory).items():
            if part in ends:
                ends[part] += size / cut
            else:
                layers += size / cut
    if placement.pp == 1:
        return math.ceil(layers + sum(ends.values()))
    return math.ceil(
        layers * math.ceil(program.num_layers / placement.pp) / program.num_layers + max(ends.values())
    )


@functools.lru_cache(maxsize=1024)
def _demands(
    program: Program, memory: MemoryFormat, block: int, context: int, eviction: Eviction | None
) -> tuple[KVDemand, ...]:
    return kv_demands(
        program.kv, block_size=block, max_model_len=context, max_num_seqs=1, chunk=1, stored=memory.kv,
        eviction=eviction,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _activations(program: Program, memory: MemoryFormat, kind: str, tokens: int, batch: int) -> int:
    """On a CPU as the engine allocates them. On a GPU the buffers of a layer, and logits of the sampled rows: a bound
    that does not count on a graph's reuse."""
    demands: tuple[KVDemand, ...] = ()
    if kind == "cpu":
        return activation_bytes(program, tokens, batch, memory, demands)
    widest = {
        name: max((buffer.columns for buffer in program.buffers if buffer.name == name), default=0)
        for name in ("qkv", "mixed", "wide")
    }
    row = 3 * program.hidden_size + widest["qkv"] + widest["mixed"] + 3 * widest["wide"]
    return tokens * row * 2 + batch * 2 * program.vocab_size * 4
