"""Block tables: growth, windows, sinks, sharing, copy-on-write, and updates for the executor."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from headrace.core.kv_manager import KVManager
from headrace.core.request import Request
from headrace.core.types import BlockCopy, KVGroupSpec, TableUpdate
from tests.core.build import full, request, sinks, window
from tests.core.checks import check_pools
from tests.core.mirror import Mirror
from tests.core.oracle import visible


def compute(kv: KVManager, sequence: Request, count: int, copies: list[BlockCopy] | None = None) -> bool:
    """Grow by `count` tokens, output where the prompt has ended, and take them as computed, in a step of their own."""
    if not kv.grow(sequence, count, [] if copies is None else copies):
        return False
    sequence.tokens += range(len(sequence.tokens), sequence.num_computed + count)
    kv.plan_slice(sequence, count)
    kv.step.clear()
    sequence.num_computed += count
    return True


def pair(kv: KVManager, length: int) -> tuple[Request, Request]:
    """Two requests with one prompt, the first of which is computed."""
    made = request(0, range(length), kv.groups), request(1, range(length), kv.groups)
    assert compute(kv, made[0], length)
    return made


def positions(group: KVGroupSpec, sequence: Request) -> set[int]:
    """Positions whose blocks the only group's table holds."""
    table = sequence.tables[0]
    logical = [i if i < group.sink_blocks else i + table.dropped for i in range(len(table.live))]
    return {block * group.block_size + at for block in logical for at in range(group.block_size)}


def test_all_groups_have_one_block_size() -> None:
    with pytest.raises(ValueError, match="one block size"):
        KVManager([full(size=4), window(8, size=8)])


def test_growth_allocates_only_at_block_boundaries() -> None:
    kv = KVManager([full(4)])
    sequence = request(0, range(20), kv.groups)
    lengths = []
    for _ in range(9):
        assert compute(kv, sequence, 1)
        lengths.append(len(sequence.tables[0].live))
    assert lengths == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_growth_that_fails_in_one_group_allocates_in_none() -> None:
    kv = KVManager([full(8), window(40, blocks=2)])
    sequence = request(0, range(20), kv.groups)
    assert not kv.grow(sequence, 9, [])
    assert [pool.num_free for pool in kv.pools] == [8, 2]
    check_pools(kv, [sequence])
    assert kv.fits(sequence) == 8 and kv.grow(sequence, 8, [])


@pytest.mark.parametrize("group", [window(1), window(4), window(5), window(6, size=1), window(7, size=16)])
def test_a_window_frees_exactly_the_invisible_blocks(group: KVGroupSpec) -> None:
    kv = KVManager([group], prefix_caching=False)
    sequence = request(0, range(80), kv.groups)
    for position in range(70):
        assert compute(kv, sequence, 1)
        held = positions(group, sequence)
        seen = {*visible(group, position), position}
        assert seen <= held
        oldest = min(seen) // group.block_size * group.block_size
        assert min(held) == oldest
        assert len(sequence.tables[0].live) <= group.reach_blocks
        check_pools(kv, [sequence])
    assert sequence.tables[0].dropped > 0


@pytest.mark.parametrize("group", [sinks(1, 4), sinks(4, 6), sinks(5, 9), sinks(3, 5, size=1)])
def test_sinks_are_never_freed(group: KVGroupSpec) -> None:
    kv = KVManager([group], prefix_caching=False)
    sequence = request(0, range(80), kv.groups)
    first = None
    for position in range(70):
        assert compute(kv, sequence, 1)
        first = first or sequence.tables[0].live[0]
        assert {*visible(group, position), position} <= positions(group, sequence)
        assert sequence.tables[0].live[0] == first
        assert len(sequence.tables[0].live) <= group.reach_blocks
    assert sequence.tables[0].dropped > 0


def test_freed_prefixes_lose_their_tail_before_their_head() -> None:
    kv = KVManager([full(4)])
    sequence = request(0, range(12), kv.groups)
    compute(kv, sequence, 12)
    first, second, third = sequence.tables[0].live
    kv.free(sequence)
    assert kv.pools[0].free_order() == [3, third, second, first]
    other = request(1, range(40, 56), kv.groups)
    compute(kv, other, 7)  # takes the unused block and the tail
    hit = kv.lookup(request(2, range(13), kv.groups))
    assert hit is not None and hit.blocks == ({0: first, 1: second},)


def test_a_hit_is_shared_and_only_ever_full_blocks() -> None:
    kv = KVManager([full(8)])
    one, two = request(0, range(10), kv.groups), request(1, range(10), kv.groups)
    compute(kv, one, 10)
    hit = kv.lookup(two)
    assert hit is not None
    kv.admit(two, hit)
    assert two.num_computed == 8
    copies: list[BlockCopy] = []
    assert compute(kv, two, 2, copies)
    assert copies == [] and two.tables[0].live[:2] == one.tables[0].live[:2]
    assert two.tables[0].live[2] != one.tables[0].live[2]
    check_pools(kv, [one, two])


def test_prompt_logprobs_ask_for_no_hit() -> None:
    kv = KVManager([full()])
    compute(kv, request(0, range(10), kv.groups), 10)
    assert kv.lookup(request(1, range(10), kv.groups, prompt_logprobs=0)) is None


@pytest.mark.parametrize("group", [window(6), sinks(2, 6)])
def test_a_hit_in_a_window_group_holds_what_is_in_reach(group: KVGroupSpec) -> None:
    kv = KVManager([full(40), group])
    one = request(0, range(30), kv.groups)
    for _ in range(30):
        compute(kv, one, 1)
    kv.free(one)
    two = request(1, range(30), kv.groups)
    hit = kv.lookup(two)
    assert hit is not None and hit.num_tokens == 28
    kv.admit(two, hit)
    held = hit.blocks[1]
    assert {p // 4 for p in visible(group, 28)} <= set(held) and len(held) < 7
    assert two.tables[1].logical_len == 7
    assert compute(kv, two, 2)
    check_pools(kv, [two])


def test_blocks_outside_a_window_are_registered_in_other_groups_only() -> None:
    kv = KVManager([full(), window(4)])
    one = request(0, range(21), kv.groups)
    for _ in range(20):
        assert kv.grow(one, 1, [])
        one.num_computed += 1
    kv.register(one, 0, 20)
    assert kv.cache is not None and len(kv.cache) == 5
    hit = kv.lookup(request(1, range(21), kv.groups))
    assert hit is not None and [sorted(blocks) for blocks in hit.blocks] == [[0, 1, 2, 3, 4], [4]]
    assert kv.lookup(request(2, range(9), kv.groups)).num_tokens == 0


def test_a_fork_shares_the_prompt_and_copies_the_block_it_writes() -> None:
    kv = KVManager([full(8), window(8)])
    first, second = pair(kv, 10)
    assert kv.fork(second) is first
    assert (second.num_computed, second.num_stored) == (9, 10)
    copies: list[BlockCopy] = []
    assert (
        compute(kv, second, 1, copies) and copies == []
    )  # the last prompt token is computed, and not written
    assert second.tables[0].live == first.tables[0].live
    assert compute(kv, second, 1, copies)
    assert [(copy.group, copy.source) for copy in copies] == [(g, first.tables[g].live[2]) for g in range(2)]
    assert [copy.target for copy in copies] == [second.tables[g].live[2] for g in range(2)]
    assert second.tables[0].live[:2] == first.tables[0].live[:2]
    check_pools(kv, [first, second])


def test_a_block_that_only_the_cache_knows_besides_is_copied_too() -> None:
    """The first fills the block that both share, and ends: the second must not write into what can be found."""
    kv = KVManager([full(8)])
    first, second = pair(kv, 3)
    assert kv.fork(second) is first and compute(kv, second, 1)
    shared = second.tables[0].live[0]
    first.tokens, first.num_computed = [0, 1, 2, 7], 4  # as if it had written in place before it was shared
    kv.register(first, 3, 4)
    kv.free(first)
    assert kv.pools[0].references(shared) == 1
    copies: list[BlockCopy] = []
    assert compute(kv, second, 1, copies)
    assert [copy.source for copy in copies] == [shared] and second.tables[0].live != [shared]
    assert kv.lookup(request(2, (0, 1, 2, 7, 9), kv.groups)).blocks == ({0: shared},)
    check_pools(kv, [second])


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 0}, {"salt": "red"}])
def test_a_fork_needs_sharing_to_be_allowed(fields: dict[str, object]) -> None:
    kv = KVManager([full(8)])
    first = pair(kv, 10)[0]
    assert kv.fork(request(2, range(10), kv.groups, **fields)) is None
    assert kv.fork(request(3, range(9), kv.groups)) is None
    kv.free(first)
    assert kv.fork(request(4, range(10), kv.groups)) is None


def test_planned_blocks_are_shared_in_the_same_step_and_can_be_taken_back() -> None:
    kv = KVManager([full(8)])
    first, second = request(0, range(10), kv.groups), request(1, (*range(8), 20, 21), kv.groups)
    assert kv.grow(first, 10, [])
    kv.plan_slice(first, 10)
    hit = kv.lookup(second)
    assert hit is not None and hit.num_tokens == 8
    kv.admit(second, hit)
    assert kv.step.reads_from(1, {0}) and not kv.step.reads_from(0, {1}) and not kv.step.reads_from(1, {2})
    kv.take_back(0)
    assert kv.lookup(request(2, range(9), kv.groups)).num_tokens == 0
    assert kv.cache is not None and kv.cache.stats.evictions == 0 and len(kv.cache) == 0
    kv.free(first)
    kv.free(second)
    check_pools(kv, [])


def test_drafts_cannot_be_shared_before_they_are_verified() -> None:
    kv = KVManager([full(8)])
    first = request(0, range(6), kv.groups)
    first.draft = (6, 7, 8)
    assert kv.grow(first, 9, [])
    kv.plan_slice(first, 9)
    assert kv.lookup(request(1, range(12), kv.groups)).num_tokens == 4


def test_a_fork_after_the_window_moved_is_refused() -> None:
    kv = KVManager([window(4)])
    first, second = pair(kv, 10)
    for _ in range(4):
        compute(kv, first, 1)
    assert kv.fork(second) is None
    check_pools(kv, [first, second])
    assert second.num_computed == 0


def test_a_fork_without_a_free_block_changes_nothing() -> None:
    kv = KVManager([full(3)])
    first, second = pair(kv, 10)
    assert kv.fork(second) is first
    copies: list[BlockCopy] = []
    assert kv.fits(second) == 1  # the last prompt token, which is written nowhere
    assert kv.blocks_short(second, 10)  # there is none for the next
    assert not kv.grow(second, 2, copies) and copies == []
    check_pools(kv, [first, second])
    kv.free(second)
    check_pools(kv, [first, second])


def test_fits_is_exactly_what_can_grow() -> None:
    rng = Random(1)
    for _ in range(200):
        size = rng.choice((1, 2, 4))
        kinds = (full(rng.randint(3, 9), size), window(5, rng.randint(3, 9), size))
        kv = KVManager(rng.sample(kinds, rng.randint(1, 2)))
        length = rng.randint(1, kv.fits(request(0, range(60), kv.groups)))
        sequence, other = pair(kv, length)
        sequence.tokens += range(length, 60)
        if rng.random() < 0.5:
            sequence = other
            kv.fork(sequence)
        most = kv.fits(sequence)
        assert not kv.grow(sequence, most + 1, [])
        assert most == 0 or kv.grow(sequence, most, [])


@pytest.mark.parametrize(
    ("groups", "longest"),
    [
        ([full(8)], 32),
        ([full(8), window(4)], 32),
        ([window(4)], None),
        ([window(9, blocks=3)], None),  # a new token's block, and the eight positions before it
        ([window(10, blocks=3)], 12),  # they can lie in four blocks: too small to let the window slide
        ([sinks(4, 2, blocks=3)], None),
        ([sinks(5, 2, blocks=3)], 12),
        ([full(20), sinks(5, 9, blocks=2)], 8),
    ],
)
def test_the_longest_sequence(groups: Sequence[KVGroupSpec], longest: int | None) -> None:
    kv = KVManager(groups)
    assert kv.longest_sequence() == longest
    sequence = request(0, range(200), kv.groups)
    steps = 0
    while steps < 150 and compute(kv, sequence, 1):
        steps += 1
    assert steps == (longest or 150)


def test_each_table_update_is_reported_once() -> None:
    kv = KVManager([full()])
    sequence = request(0, range(20), kv.groups)
    compute(kv, sequence, 6)
    assert kv.updates(sequence) == (TableUpdate(0, (0, 1), 0),)
    assert kv.updates(sequence) == (None,)
    compute(kv, sequence, 2)
    assert kv.updates(sequence) == (None,)
    compute(kv, sequence, 1)
    assert kv.updates(sequence) == (TableUpdate(2, (2,), 0),)


@pytest.mark.parametrize("seed", range(30))
def test_updates_rebuild_the_tables(seed: int) -> None:
    """A mirror built from the updates alone equals the tables, however rarely it is updated."""
    rng = Random(seed)
    size = rng.choice((1, 2, 4))
    groups = rng.sample((full(60, size), window(5, 60, size), sinks(3, 6, 60, size), window(1, 60, size)), 3)
    kv = KVManager(groups)
    length = rng.randint(1, 20)
    sequences, mirrors = [request(0, range(length), groups)], {0: [Mirror(group) for group in groups]}
    for _ in range(120):
        sequence = rng.choice(sequences)
        roll = rng.random()
        if roll < 0.5 and sequence.num_computed < 80:
            compute(kv, sequence, rng.randint(1, 7))
        elif roll < 0.6 and len(sequences) < 4:
            twin = request(len(mirrors), range(length), groups)
            if kv.fork(twin) is not None:
                sequences.append(twin)
                mirrors[twin.number] = [Mirror(group) for group in groups]
        elif roll < 0.63:  # as without a KV cache: the executor is not asked to release
            kv.free(sequence)
            compute(kv, sequence, rng.randint(1, 9))
        elif roll < 0.9 and sequence.num_computed:
            for mirror, update in zip(mirrors[sequence.number], kv.updates(sequence), strict=True):
                if update is not None:
                    mirror.apply(update)
            mirrored = [(mirror.live, mirror.dropped) for mirror in mirrors[sequence.number]]
            assert mirrored == [(table.live, table.dropped) for table in sequence.tables]
        check_pools(kv, sequences)


def test_usage_counts_shared_places_once() -> None:
    kv = KVManager([full(16), window(4, 16)])
    one, two = pair(kv, 10)
    assert kv.fork(two) is one and compute(kv, two, 1) and compute(kv, two, 1)
    usage = kv.usage([one, two])
    assert usage.total_blocks == 32
    assert usage.held_blocks == sum(pool.num_blocks - pool.num_free for pool in kv.pools)
    assert usage.reserved_tokens == 4 * usage.held_blocks
    # Full: 8 shared, then 2 and 3. Window: the one holds all it wrote, the other what position 10 sees.
    assert (usage.held_blocks, usage.used_tokens) == (4 + 4, 13 + 13)
    kv.free(one)
    kv.free(two)
    assert kv.usage([]).held_blocks == 0
