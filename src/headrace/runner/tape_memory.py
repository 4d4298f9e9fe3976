"""The memory that a tape's calls refer to besides buffers: KV caches, recurrent states, and which layers evict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace._native import Tape
from headrace.core.eviction import Eviction
from headrace.core.types import KVGroupSpec, Retention
from headrace.program.records import Program
from headrace.runner.native_kv import LayerMemory, NativeKV, StateMemory


@dataclass(frozen=True, slots=True)
class TapeLimits:
    """The largest step."""

    max_tokens: int
    max_seqs: int
    max_length: int = 0  # of a sequence, where tokens are evicted
    eviction: Eviction | None = None


def add_caches(tape: Tape, program: Program, kv: NativeKV, groups: Sequence[KVGroupSpec]) -> dict[int, int]:
    """The number of each layer's KV cache."""
    numbered = [
        (layout, tape.add_group(
            block_size=group.block_size, num_blocks=group.memory_blocks, sink_blocks=group.sink_blocks
        ))
        for layout, group in zip(program.kv, groups, strict=True)
        if layout.state is None
    ]  # fmt: skip
    caches: dict[int, int] = {}
    recent: dict[int, int] = {}
    for layout, number in sorted(numbered, key=lambda one: not one[0].recent):  # those of recent blocks first
        for index in layout.layers:
            memory = kv.layers[index]
            assert isinstance(memory, LayerMemory)
            if layout.recent:
                assert memory.recent is not None
                memory = memory.recent
            (recent if layout.recent else caches)[index] = tape.add_kv(
                number,
                kv.type_of(layout),
                memory.keys,
                memory.values,
                num_kv_heads=layout.num_kv_heads,
                head_dim=layout.head_dim,
                value_dim=layout.value_in_key or layout.head_dim,
                key_scales=memory.key_scales,
                value_scales=memory.value_scales,
                recent=recent.get(index),
            )
    return caches


def set_eviction(
    tape: Tape, program: Program, groups: Sequence[KVGroupSpec], limits: TapeLimits
) -> frozenset[int]:
    """The layers whose caches evict tokens."""
    if limits.eviction is None:
        return frozenset()
    tape.set_eviction(
        budget=limits.eviction.budget,
        sinks=limits.eviction.sinks,
        recent=limits.eviction.recent,
        most=limits.eviction.most_within(limits.max_length),
        longest=limits.max_length,
    )
    found = zip(program.kv, groups, strict=True)
    return frozenset(
        layer for layout, group in found if group.retention is Retention.FULL for layer in layout.layers
    )


def add_states(
    tape: Tape, program: Program, kv: NativeKV, groups: Sequence[KVGroupSpec]
) -> dict[int, tuple[int, ...]]:
    """The numbers of the parts of each recurrent layer's state: of the convolution, and of the matrices if any."""
    states: dict[int, tuple[int, ...]] = {}
    for layout, group in zip(program.kv, groups, strict=True):
        if layout.state is None:
            continue
        number = tape.add_states(group.memory_blocks)
        for index in layout.layers:
            memory = kv.layers[index]
            assert isinstance(memory, StateMemory)
            parts = [(memory.conv, layout.state.conv_elements)]
            if memory.matrix is not None:
                parts.append((memory.matrix, layout.state.matrix_elements))
            states[index] = tuple(tape.add_state(number, part, size) for part, size in parts)
    return states
