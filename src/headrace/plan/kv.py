"""How many KV blocks each group needs, can use, and gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.core.eviction import Eviction
from headrace.core.types import KVGroupSpec
from headrace.models.spec import KVLayout, ModelSpec
from headrace.models.streaming import with_streaming
from headrace.plan.formats import KVFormat


@dataclass(frozen=True, slots=True)
class KVDemand:
    """One KV group's demand, in blocks of `block_bytes` bytes over all of the group's layers.

    `per_sequence` is what one sequence of the longest length holds at its worst moment; `most` is what all
    sequences can hold together, and more would never be used. A block of recurrent states is a slot: each of
    `max_num_seqs` sequences has one, and as many copies stay for the prefix cache, with one more for each `interval`
    tokens, and one for each of `drafts` tokens that are drafted for a sequence. `drafter`: the group is that of the
    model that drafts.
    """

    layout: KVLayout
    block_size: int
    block_bytes: int
    per_sequence: int
    most: int
    max_num_seqs: int = 1
    interval: int | None = None
    drafts: int = 0
    drafter: bool = False

    def blocks(self, level: int) -> int:
        """Blocks beside `level` blocks of a group with full attention."""
        if self.layout.state is None:
            return level
        running = min(self.max_num_seqs, level)
        return (2 + self.drafts) * running + (
            level * self.block_size // self.interval if self.interval else 0
        )


def streaming_spec(spec: ModelSpec, sinks: int | None, window: int | None) -> ModelSpec:
    """The spec that really runs: with the streaming options put in, where `window` is set.

    Applying it twice changes nothing more. Raises ConfigError if sinks and window exceed the model's context.
    """
    return spec if window is None else with_streaming(spec, sinks or 0, window)


def kv_demands(
    layouts: Sequence[KVLayout],
    *,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    chunk: int,
    stored: KVFormat,
    least_chunk: int | None = None,
    state_interval: int | None = None,
    drafts: int = 0,
    num_drafter: int = 0,
    eviction: Eviction | None = None,
) -> tuple[KVDemand, ...]:
    """Demand of each group when a sequence grows by at most `chunk` tokens a step, and up to `drafts` are drafted.

    The last `num_drafter` of the layouts are those of the model that drafts.

    `least_chunk` is the smallest step that a sequence can be cut to where memory is short, `chunk` if None.
    Recurrent states are kept every `state_interval` tokens, rounded up to whole blocks. With `eviction` a sequence
    holds, at the end of its prompt, the tokens that stay beside all of them.
    """
    interval = state_interval and -(-state_interval // block_size) * block_size
    least = chunk if least_chunk is None else least_chunk
    whole = -(-max_model_len // block_size)
    budget = 0 if eviction is None else eviction.budget
    kept = -(-budget // block_size)

    def blocks(layout: KVLayout, step: int) -> int:
        if layout.window is None:
            return whole + (kept if max_model_len > budget else 0)
        # Two blocks of slack: window and step need not start at a block's edge, and a step takes its new
        # blocks before the ones that it still reads can fall out of the window.
        reach = -(-(layout.window + min(step + drafts, max_model_len)) // block_size) + 2
        return min(whole, -(-layout.sinks // block_size) + reach)

    def shared(layout: KVLayout) -> int:
        # What this step writes, and what the one before wrote to blocks that are not given back yet; each sequence
        # has its own block, and those that drafts reach.
        return 2 * -(-chunk // block_size) + max_num_seqs * blocks(layout, 1)

    def states(layout: KVLayout) -> KVDemand:
        size = stored.block_bytes(layout, block_size)
        one = KVDemand(layout, block_size, size, 1, 1, max_num_seqs, interval, drafts)
        return replace(one, most=one.blocks(whole * max_num_seqs))

    return tuple(
        KVDemand(
            layout=layout,
            block_size=block_size,
            block_bytes=stored.block_bytes(layout, block_size),
            per_sequence=blocks(layout, least),
            most=shared(layout) if layout.recent else blocks(layout, chunk) * max_num_seqs,
            max_num_seqs=max_num_seqs,
            drafter=at >= len(layouts) - num_drafter,
        )
        if layout.state is None
        else states(layout)
        for at, layout in enumerate(layouts)
    )


def sequence_bytes(demands: Sequence[KVDemand]) -> int:
    """KV bytes of one sequence of the longest length: the smallest pool that can serve it."""
    return sum(demand.per_sequence * demand.block_bytes for demand in demands)


def useful_bytes(demands: Sequence[KVDemand]) -> int:
    """KV bytes beyond which more memory would never be used."""
    return sum(demand.most * demand.block_bytes for demand in demands)


def pool_bytes(demands: Sequence[KVDemand], counts: Sequence[int]) -> int:
    """Bytes of the pools with `counts` blocks each."""
    return sum(demand.block_bytes * count for demand, count in zip(demands, counts, strict=True))


def blocks_at(demands: Sequence[KVDemand], level: int, *, spare: bool = False) -> tuple[int, ...]:
    """Blocks of each group at a common level, no less than one sequence needs nor more than all can use.

    The level is common because the blocks that a sequence holds in a window group are among those that it
    holds in a full group: a window group never needs more blocks than a full one has. With `spare`, full
    groups may get more than sequences can use, to keep the prefixes of finished ones.
    """
    return tuple(
        max(demand.per_sequence, demand.blocks(level))
        if spare and demand.layout.window is None
        else min(demand.most, max(demand.per_sequence, demand.blocks(level)))
        for demand in demands
    )


def blocks_within(demands: Sequence[KVDemand], budget: int, *, spare: bool = False) -> tuple[int, ...] | None:
    """The most blocks of each group whose bytes stay within `budget`; None when not one sequence fits."""
    if sequence_bytes(demands) > budget:
        return None
    highest = max(budget // demand.block_bytes for demand in demands)
    level = largest(1, highest, lambda n: pool_bytes(demands, blocks_at(demands, n, spare=spare)) <= budget)
    return blocks_at(demands, level, spare=spare)


def kv_groups(
    demands: Sequence[KVDemand], counts: Sequence[int], scratch: int = 0
) -> tuple[KVGroupSpec, ...]:
    """The core's view of the pools, in the order of the spec's layouts; names are made unique. Each has `scratch` more
    blocks for trees of drafts."""
    groups: list[KVGroupSpec] = []
    for demand, count in zip(demands, counts, strict=True):
        layout = demand.layout
        same = sum(
            (other.layout.name, other.drafter) == (layout.name, demand.drafter)
            for other in demands[: len(groups)]
        )
        name = f"draft {layout.name}" if demand.drafter else layout.name
        groups.append(
            KVGroupSpec(
                name=f"{name}#{same + 1}" if same else name,
                num_blocks=count,
                block_size=demand.block_size,
                retention=layout.retention,
                window=layout.window,
                sinks=layout.sinks,
                interval=demand.interval,
                scratch=scratch,
            )
        )
    return tuple(groups)


def scratch_bytes(demands: Sequence[KVDemand], scratch: int) -> int:
    """Bytes of the scratch blocks of all groups."""
    return sum(scratch * demand.block_bytes for demand in demands)


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest n in low … high with `holds(n)`, which must hold at low and never again once it fails."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
