"""The prefix cache: hits, reasons of misses, and that it never returns KV of other tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from types import SimpleNamespace

import pytest

from headrace.core import prefix_cache
from headrace.core.prefix_cache import BlockKeys, MissReason, PrefixCache, root_key
from headrace.core.types import CacheMiss, KVGroupSpec
from tests.core.build import full, sinks, window
from tests.core.oracle import visible

TEN = tuple(range(10, 20))  # two full blocks of four, and two tokens


def remember(
    cache: PrefixCache, tokens: Sequence[int], *blocks: Sequence[int | None], salt: str = ""
) -> None:
    """Insert all full blocks of `tokens`; `blocks[g]` are the block ids in group g."""
    keys = BlockKeys(salt, cache.block_size)
    keys.extend(tokens)
    for index, row in enumerate(zip(*blocks, strict=True)):
        cache.insert(index, keys, tokens, salt, row)


@dataclass(frozen=True)
class Found:
    num_tokens: int
    blocks: tuple[dict[int, int], ...]
    miss: CacheMiss


def find(cache: PrefixCache, tokens: Sequence[int], salt: str = "") -> Found:
    keys = BlockKeys(salt, cache.block_size)
    hit = cache.lookup(keys, tokens, salt)
    return Found(hit.num_tokens, hit.blocks, cache.explain(hit, keys, tokens, salt))


def one_group() -> PrefixCache:
    cache = PrefixCache([full()])
    remember(cache, TEN, [5, 6])
    return cache


def reason(hit: Found) -> tuple[str, int]:
    return hit.miss.reason, hit.miss.token


def test_a_prefix_is_found_whole() -> None:
    hit = find(one_group(), TEN)
    assert hit.num_tokens == 8 and hit.blocks == ({0: 5, 1: 6},)
    assert reason(hit) == (MissReason.NONE.value, 8)


def test_the_last_token_is_never_part_of_a_hit() -> None:
    hit = find(one_group(), TEN[:8])
    assert hit.num_tokens == 4 and hit.blocks == ({0: 5},)
    assert reason(hit) == (MissReason.NONE.value, 4)


@pytest.mark.parametrize("length", [1, 3, 4])
def test_below_one_block(length: int) -> None:
    hit = find(one_group(), TEN[:length])
    assert hit.num_tokens == 0 and reason(hit) == (MissReason.BELOW_ONE_BLOCK.value, 0)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7])
def test_diverged_at_exactly_that_token(at: int) -> None:
    tokens = (*TEN[:at], 40, *TEN[at + 1 :])
    hit = find(one_group(), tokens)
    assert hit.num_tokens == at // 4 * 4
    assert reason(hit) == (MissReason.DIVERGED.value, at)
    assert str(at) in hit.miss.detail


def test_divergence_is_measured_against_the_nearest_branch() -> None:
    cache = one_group()
    remember(cache, (*TEN[:6], 30, 31), [5, 7])
    assert reason(find(cache, (*TEN[:6], 30, 41, 42))) == (MissReason.DIVERGED.value, 7)


def test_never_seen() -> None:
    assert reason(find(one_group(), tuple(range(30, 40)))) == (MissReason.COLD.value, 0)
    assert reason(find(PrefixCache([full()]), TEN)) == (MissReason.COLD.value, 0)
    assert reason(find(one_group(), (*TEN, 20, 21, 22))) == (MissReason.COLD.value, 8)


def test_evicted() -> None:
    cache = one_group()
    cache.evict(0, 6)
    hit = find(cache, TEN)
    assert hit.num_tokens == 4 and reason(hit) == (MissReason.EVICTED.value, 4)
    assert cache.stats.evictions == 1 and not cache.holds(0, 6)
    cache.evict(0, 6)  # unknown by now
    assert cache.stats.evictions == 1


def test_an_evicted_prefix_that_comes_back_is_a_hit_again() -> None:
    cache = one_group()
    cache.evict(0, 6)
    remember(cache, TEN, [5, 9])
    assert find(cache, TEN).blocks == ({0: 5, 1: 9},)
    assert reason(find(cache, TEN)) == (MissReason.NONE.value, 8)


def test_the_memory_of_evictions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "EVICTED_MEMORY", 1)
    cache = PrefixCache([full()])
    remember(cache, TEN[:4], [5])
    remember(cache, range(30, 34), [6])
    cache.evict(0, 5)
    cache.evict(0, 6)
    assert reason(find(cache, TEN)) == (MissReason.COLD.value, 0)
    assert reason(find(cache, range(30, 40))) == (MissReason.EVICTED.value, 0)


def test_salts_share_nothing_and_the_operator_sees_the_reason() -> None:
    cache = PrefixCache([full()])
    remember(cache, TEN, [5, 6], salt="red")
    assert find(cache, TEN, "red").num_tokens == 8
    for salt in ("", "blue"):
        hit = find(cache, TEN, salt)
        assert hit.num_tokens == 0 and reason(hit) == (MissReason.OTHER_SALT.value, 0)
    assert len({root_key(salt) for salt in ("", "red", "blue")}) == 3


def test_scopes_have_no_key_in_common() -> None:
    """A scope is a model and its KV format; a salt cannot imitate one."""
    chains = [
        BlockKeys(salt, 4, scope)
        for salt, scope in (("", b""), ("a", b""), ("", b"a"), ("a", b"a"), ("", b"b"))
    ]
    keys = [chain.extend(TEN)[0] for chain in chains]
    assert len({*keys, *(chain.root for chain in chains)}) == 10


def test_keys_are_the_same_bytes_on_every_host() -> None:
    root = hashlib.sha256(b"headrace/prefix/2/" + hashlib.sha256(b"model").digest() + "süß".encode()).digest()
    first = hashlib.sha256(root + bytes.fromhex("01000000 02000000 ff000000 00010000")).digest()
    second = hashlib.sha256(first + bytes.fromhex("78563412 00000000 ffffff7f 05000000")).digest()
    tokens = (1, 2, 255, 256, 0x12345678, 0, 2**31 - 1, 5, 9)
    assert BlockKeys("süß", 4, b"model").extend(tokens) == [first, second]
    assert first.hex() == "cfc29ffdf54fd053004effeef0ba02f63e2412eb3d1e9d44ecc09e69487a7720"


def test_an_evicted_salt_is_not_named() -> None:
    cache = PrefixCache([full()])
    remember(cache, TEN, [5, 6], salt="red")
    cache.evict(0, 6)
    cache.evict(0, 5)
    assert reason(find(cache, TEN, "blue")) == (MissReason.COLD.value, 0)
    assert len(cache) == 0


class Colliding:
    """A hash function with one value."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def digest(self) -> bytes:
        return b"\0" * 32


def test_tokens_are_verified_where_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "hashlib", SimpleNamespace(sha256=Colliding))
    cache = PrefixCache([full()])
    remember(cache, TEN[:4], [5])
    assert find(cache, TEN).num_tokens == 4
    assert find(cache, (*range(30, 34), 1)).num_tokens == 0
    remember(cache, range(30, 34), [6])  # the key is taken
    assert find(cache, (*range(30, 34), 1)).num_tokens == 0
    assert not cache.holds(0, 6)


def test_the_prefix_is_verified_where_hashes_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tokens after another prefix are other KV, even where the keys agree."""

    class Weak(Colliding):
        def digest(self) -> bytes:  # forgets the parent: the last four tokens alone, and the root
            return self._data[-16:].rjust(32, b"\0")

    monkeypatch.setattr(prefix_cache, "hashlib", SimpleNamespace(sha256=Weak))
    cache = PrefixCache([full()])
    remember(cache, (1, 1, 1, 1, 7, 7, 7, 7), [5, 6])
    remember(cache, (2, 2, 2, 2), [8])
    assert find(cache, (1, 1, 1, 1, 7, 7, 7, 7, 0)).num_tokens == 8
    assert find(cache, (2, 2, 2, 2, 7, 7, 7, 7, 0)).num_tokens == 4


def test_a_partly_evicted_node_accepts_no_other_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "hashlib", SimpleNamespace(sha256=Colliding))
    cache = PrefixCache([full(), window(4)])
    remember(cache, TEN[:4], [5], [5])
    cache.evict(1, 5)
    remember(cache, range(30, 34), [6], [6])
    assert not cache.holds(1, 6)
    assert find(cache, TEN).num_tokens == 0


def test_a_known_key_keeps_its_block() -> None:
    cache = one_group()
    remember(cache, TEN, [7, 8])
    assert find(cache, TEN).blocks == ({0: 5, 1: 6},)
    assert not cache.holds(0, 7)


def test_a_known_block_keeps_its_key() -> None:
    cache = one_group()
    remember(cache, range(30, 38), [8, 5])
    assert find(cache, TEN).blocks == ({0: 5, 1: 6},)
    assert find(cache, range(30, 39)).num_tokens == 4


def test_a_hybrid_hit_needs_every_group() -> None:
    cache = PrefixCache([full(), window(6)])
    remember(cache, range(16), [0, 1, 2, 3], [None, None, 2, 3])
    hit = find(cache, range(17))  # position 16 sees 11 … 15
    assert hit.num_tokens == 16 and hit.blocks == ({0: 0, 1: 1, 2: 2, 3: 3}, {2: 2, 3: 3})
    assert find(cache, range(16)).num_tokens == 0  # position 12 sees 7 … 11, and 7 is gone
    cache.evict(0, 2)
    hit = find(cache, range(17))
    assert hit.num_tokens == 0 and reason(hit) == (MissReason.EVICTED.value, 0)


def test_sinks_belong_to_a_hit() -> None:
    cache = PrefixCache([sinks(3, 4)])
    remember(cache, range(16), [0, None, None, 3])
    assert find(cache, range(17)).blocks == ({0: 0, 3: 3},)
    cache.evict(0, 0)
    assert find(cache, range(17)).num_tokens == 0


def test_a_window_is_found_after_evicted_blocks() -> None:
    """Where every group has a window, the next token needs no block before it."""
    cache = PrefixCache([window(6)])
    remember(cache, range(40), range(10))
    for block in range(7):
        cache.evict(0, block)
    assert find(cache, range(37)).blocks == ({7: 7, 8: 8},)
    assert find(cache, (99, *range(1, 37))).num_tokens == 0  # the same blocks after another beginning
    cache.evict(0, 8)
    assert find(cache, range(37)).num_tokens == 0
    assert find(cache, range(41)).num_tokens == 0


def test_a_window_of_one_finds_only_known_prefixes() -> None:
    cache = PrefixCache([window(1)])
    assert find(cache, range(41)).num_tokens == 0
    remember(cache, range(8), [3, 4])
    assert find(cache, range(41)).num_tokens == 8


GROUPS: tuple[KVGroupSpec, ...] = (
    full(),
    window(1),
    window(2),
    window(5),
    window(9),
    sinks(1, 3),
    sinks(6, 5),
)


@pytest.mark.parametrize("seed", range(40))
def test_hits_equal_their_definition(seed: int) -> None:
    """The longest prefix for which every group holds all that the next token sees."""
    rng = Random(seed)
    groups = rng.sample(GROUPS, rng.randint(1, 3))
    cache = PrefixCache(groups)
    tokens = tuple(rng.randrange(3) for _ in range(41))
    gaps = rng.choice((0.0, 0.1, 0.3))
    held = [[None if rng.random() < gaps else index for index in range(10)] for _ in groups]
    if any(all(row[index] is None for row in held) for index in range(10)):
        held[0] = list(range(10))
    remember(cache, tokens, *held)

    def usable(length: int) -> bool:
        return all(
            row[position // 4] is not None
            for group, row in zip(groups, held, strict=True)
            for position in visible(group, length * 4)
        )

    # A window of one sees no earlier token, so any prefix counts as cached.
    best = max(length for length in range(11) if length == 0 or usable(length))
    hit = find(cache, tokens)
    assert hit.num_tokens == best * 4
    for group, blocks in zip(groups, hit.blocks, strict=True):
        required = {position // 4 for position in visible(group, best * 4)}
        assert required <= set(blocks) <= required | set(range(group.sink_blocks))
        assert all(index == block for index, block in blocks.items())


@pytest.mark.parametrize(("tokens_seen", "every"), [(8, 1), (400, 1), (400, 99), (400, 100), (1600, 3)])
@pytest.mark.parametrize("group", [window, partial(sinks, 9)])
def test_a_lookup_takes_time_in_proportion_to_the_prompt(
    group: Callable[[int], KVGroupSpec], tokens_seen: int, every: int
) -> None:
    """Also where a window group has holes, so that every length fails: one at the end of each window."""

    class Counting(list[int | None]):
        touched = 0

        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            Counting.touched += 1
            return super().__getitem__(index)

    blocks = 400
    cache = PrefixCache([full(), group(tokens_seen)])
    tokens = tuple(at % 7 for at in range(4 * blocks + 1))
    remember(cache, tokens, range(blocks), [None if at % every == every - 1 else at for at in range(blocks)])
    for node in cache._nodes.values():
        node.blocks = Counting(node.blocks)
    find(cache, tokens)
    assert Counting.touched < 6 * blocks


def test_a_miss_is_explained_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only on request: 5,000 prompts begin with the same block and differ after it."""
    compared: list[int] = []
    original = prefix_cache._common
    monkeypatch.setattr(prefix_cache, "_common", lambda *args: compared.append(1) or original(*args))
    cache = PrefixCache([full()])
    for at in range(5_000):
        remember(cache, (*TEN[:4], *divmod(at, 71), 3, 3), [5, at])
    keys, tokens = BlockKeys("", 4), (*TEN[:4], 30, 30, 4, 4, 9)
    hit = cache.lookup(keys, tokens, "")
    assert hit.num_tokens == 4 and compared == []
    assert cache.explain(hit, keys, tokens, "").token == 6
    assert len(compared) <= 2


@pytest.mark.parametrize("seed", range(20))
def test_divergence_equals_a_search_among_all(seed: int) -> None:
    rng = Random(seed)
    cache = PrefixCache([full(400)])
    known = {tuple(rng.randrange(3) for _ in range(4)) for _ in range(rng.choice((1, 5, 40)))}
    for at, tokens in enumerate(sorted(known, key=lambda tokens: rng.random())):
        remember(cache, tokens, [at])
    for block in rng.sample(range(len(known)), len(known) // 3):
        known.discard(cache._node_of_block[0][block].tokens)
        cache.evict(0, block)
    cache._evicted.clear()
    for _ in range(30):
        tokens = tuple(rng.randrange(3) for _ in range(5))
        common = max((next((i for i in range(4) if one[i] != tokens[i]), 4) for one in known), default=-1)
        expected = (MissReason.DIVERGED.value, common) if common > 0 else (MissReason.COLD.value, 0)
        if common < 4:
            assert reason(find(cache, tokens)) == expected


def test_statistics_count_used_tokens() -> None:
    cache = one_group()
    hit = find(cache, TEN)
    assert cache.stats.queries == 0
    cache.record(hit.miss, hit.num_tokens, len(TEN))
    cache.record(find(cache, range(30, 40)).miss, 0, 10)
    assert (cache.stats.queries, cache.stats.hits) == (20, 8)
    assert cache.stats.misses == {MissReason.NONE.value: 1, MissReason.COLD.value: 1}
