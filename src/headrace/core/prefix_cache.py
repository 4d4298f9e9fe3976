"""Finds blocks whose KV was computed for the same tokens in the same place, and the reason why a match ends.

A full block has a key: SHA-256 over its parent's key and its own tokens, so a key stands for a whole prefix. The scope
(the model and the format of its KV) and the salt enter at the root, so neither other models nor requests with other
salts have a key in common. The bytes of a key are the same on every host. Keys form a radix tree; tokens are compared
on every hit, so that not even a hash collision could hand out foreign KV.
"""

from __future__ import annotations

import enum
import hashlib
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct

from headrace.core.types import CacheMiss, KVGroupSpec

EVICTED_MEMORY = (
    65_536  # how many keys of evicted blocks are remembered, to distinguish "evicted" from "never seen"
)


class MissReason(enum.Enum):
    NONE = "everything that can be shared was shared"
    BELOW_ONE_BLOCK = "below one block"
    DIVERGED = "diverged"
    EVICTED = "evicted"
    NO_STATE = "no state kept"  # the tokens are known, but recurrent states are kept at some borders only
    OTHER_SALT = "other salt"  # for operators: never report it to callers with another salt
    COLD = "never seen"


def root_key(salt: str, scope: bytes = b"") -> bytes:
    """The parent of all first blocks. `scope` stands for the model and the format of its KV."""
    return hashlib.sha256(b"headrace/prefix/2/" + hashlib.sha256(scope).digest() + salt.encode()).digest()


class BlockKeys:
    """The chain of block keys of one growing token list, extended as blocks fill up."""

    __slots__ = ("_pack", "block_size", "keys", "root")

    def __init__(self, salt: str, block_size: int, scope: bytes = b"") -> None:
        self.root = root_key(salt, scope)
        self.keys: list[bytes] = []
        self.block_size = block_size
        self._pack = Struct(f"<{block_size}I").pack  # in one byte order on every host

    def extend(self, tokens: Sequence[int]) -> list[bytes]:
        """Keys of all full blocks of `tokens`, which must only ever grow."""
        size, keys = self.block_size, self.keys
        for index in range(len(keys), len(tokens) // size):
            parent = keys[-1] if index else self.root
            content = self._pack(*tokens[index * size : (index + 1) * size])
            keys.append(hashlib.sha256(parent + content).digest())
        return keys


@dataclass(slots=True)
class _Node:
    key: bytes
    parent: bytes
    tokens: tuple[int, ...]
    blocks: list[int | None]  # one per KV group
    salt: str
    first: bool

    def stands_for(self, parent: bytes, tokens: Sequence[int]) -> bool:
        """Whether this is the block after `parent` with these tokens; does not rely on its key."""
        return self.parent == parent and self.tokens == tuple(tokens)


@dataclass(frozen=True, slots=True)
class Hit:
    """`num_tokens` leading tokens whose KV exists. `blocks[g]` maps logical block index to block id for group g;
    groups with a window or a state list only the blocks that are in reach of the next token. `num_known` leading blocks
    are known in some group."""

    num_tokens: int
    blocks: tuple[dict[int, int], ...]
    num_known: int


@dataclass(slots=True)
class CacheStats:
    """Counts since the start, in tokens except `evictions`, `pins` and `pins_broken` (blocks)."""

    queries: int = 0
    hits: int = 0
    evictions: int = 0
    misses: Counter[str] = field(default_factory=Counter)  # lookups by reason
    pins: int = 0  # of blocks that were not pinned before
    pins_broken: int = 0  # ended before their time

    def snapshot(self) -> CacheStats:
        return replace(self, misses=Counter(self.misses))


class PrefixCache:
    """Which block holds the KV of which prefix, for all KV groups. Holds no references itself."""

    def __init__(self, groups: Sequence[KVGroupSpec]) -> None:
        self._groups = tuple(groups)
        self.block_size = groups[0].block_size
        self._needs_all = any(
            group.reach is None for group in groups
        )  # a hit is made of all blocks from the first on
        self.stats = CacheStats()
        self._nodes: dict[bytes, _Node] = {}
        self._children: dict[bytes, list[_Node]] = {}  # in the order of their tokens
        self._node_of_block: tuple[dict[int, _Node], ...] = tuple({} for _ in groups)
        self._evicted: OrderedDict[bytes, bool] = OrderedDict()  # key -> whether that broke a pin
        self._first_blocks: dict[tuple[int, ...], Counter[str]] = {}  # tokens of a first block -> salts

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, group: int, key: bytes) -> int | None:
        """The group's block of a key, if there is one."""
        return _block(self._nodes.get(key), group)

    def holds(self, group: int, block: int) -> bool:
        """True when the block's content can be found again."""
        return block in self._node_of_block[group]

    def findable(self, group: int) -> Collection[int]:
        """The blocks of a group whose content can be found again."""
        return self._node_of_block[group].keys()

    def insert(
        self, index: int, keys: BlockKeys, tokens: Sequence[int], salt: str, blocks: Sequence[int | None]
    ) -> list[tuple[int, int]]:
        """Make logical block `index` of a sequence findable. A key that is known keeps its present blocks.

        Returns the (group, block) that were not findable before.
        """
        size = self.block_size
        key = keys.keys[index]
        parent = keys.keys[index - 1] if index else keys.root
        content = tuple(tokens[index * size : (index + 1) * size])
        node = self._nodes.get(key)
        if node is None:
            if blocks.count(None) == len(blocks):
                return []
            node = self._nodes[key] = _Node(key, parent, content, [None] * len(blocks), salt, index == 0)
            siblings = self._children.get(parent)
            if siblings is None:
                self._children[parent] = [node]
            else:
                insort(siblings, node, key=_tokens)
            self._evicted.pop(key, None)
            if node.first:
                self._first_blocks.setdefault(content, Counter())[salt] += 1
        elif not node.stands_for(parent, content):
            return []  # two prefixes with one key: the first keeps it
        added = []
        for group, block in enumerate(blocks):
            if block is not None and node.blocks[group] is None and block not in self._node_of_block[group]:
                node.blocks[group] = block
                self._node_of_block[group][block] = node
                added.append((group, block))
        return added

    def kept(self, keys: BlockKeys, length: int) -> tuple[list[tuple[int, int]], bool]:
        """The (group, block) that the token after `length` blocks would find, and whether it finds all it needs."""
        nodes = [self._nodes.get(key) for key in keys.keys[:length]]
        cells: list[tuple[int, int]] = []
        complete = len(nodes) == length
        for group, spec in enumerate(self._groups):
            for index in self._visible(spec, length):
                block = _block(nodes[index], group) if index < len(nodes) else None
                if block is None:
                    complete = False
                else:
                    cells.append((group, block))
        return cells, complete

    def evict(self, group: int, block: int, *, pinned: bool = False) -> None:
        """Forget a block that is about to be overwritten; unknown blocks are fine."""
        node = self.forget(group, block)
        if node is None:
            return
        self.stats.evictions += 1
        self._evicted[node.key] = pinned
        self._evicted.move_to_end(node.key)
        if len(self._evicted) > EVICTED_MEMORY:
            self._evicted.popitem(last=False)

    def forget(self, group: int, block: int) -> _Node | None:
        """Make a block unfindable, and return its node; unknown blocks are fine."""
        node = self._node_of_block[group].pop(block, None)
        if node is not None:
            node.blocks[group] = None
            if node.blocks.count(None) == len(node.blocks):
                self._remove(node)
        return node

    def lookup(self, keys: BlockKeys, tokens: Sequence[int], salt: str) -> Hit:
        """The longest usable prefix of `tokens`, without the last token, whose logits are still needed."""
        size = self.block_size
        usable = (len(tokens) - 1) // size
        chain = keys.extend(tokens)[:usable]
        nodes: list[_Node | None] = []
        parent = keys.root
        for index, key in enumerate(chain):
            node = self._nodes.get(key)
            if node is not None and not node.stands_for(parent, tokens[index * size : (index + 1) * size]):
                node = None
            if node is None and self._needs_all:
                break
            nodes.append(node)
            parent = key
        while nodes and nodes[-1] is None:
            nodes.pop()
        length, blocks = self._longest(nodes)
        return Hit(length * size, blocks, len(nodes))

    def has_changed(self, hit: Hit, keys: BlockKeys) -> bool:
        """Whether a lookup may now find more, or something that needs fewer blocks. O(blocks in a window).

        That is so when the block after those that it knew has become known. In a group with a window it is so, too,
        when what it found is gone: to take over a whole window may need more free blocks than to compute it in chunks.
        """
        if hit.num_known < len(keys.keys) and keys.keys[hit.num_known] in self._nodes:
            return True
        for spec, nodes, blocks in zip(self._groups, self._node_of_block, hit.blocks, strict=True):
            if spec.reach is None:
                continue
            for index, block in blocks.items():
                node = nodes.get(block)
                if node is None or node.key != keys.keys[index]:
                    return True
        return False

    def record(self, miss: CacheMiss, num_found: int, num_tokens: int) -> None:
        """Count a lookup over `num_tokens` tokens, of which `num_found` are used."""
        self.stats.queries += num_tokens
        self.stats.hits += num_found
        self.stats.misses[miss.reason] += 1

    def _longest(self, nodes: Sequence[_Node | None]) -> tuple[int, tuple[dict[int, int], ...]]:
        """The largest number of leading blocks for which every group has what the next token can see."""
        most = len(nodes)
        windowed = []
        for group, spec in enumerate(self._groups):
            if spec.reach is None:  # needs every block, so its first gap is a bound for all groups
                most = next((at for at in range(most) if _block(nodes[at], group) is None), most)
            else:
                windowed.append((spec, _runs([_block(node, group) is not None for node in nodes[:most]])))
        for length in range(most, 0, -1):
            if nodes[length - 1] is not None and all(
                self._complete(spec, runs, length) for spec, runs in windowed
            ):
                return length, tuple(self._held(nodes, group, length) for group in range(len(self._groups)))
        return 0, tuple({} for _ in self._groups)

    def _start(self, spec: KVGroupSpec, length: int) -> int:
        """The first block of the window of the token after `length` blocks."""
        if spec.reach is None:
            return 0
        return max(0, length * self.block_size - spec.reach + 1) // self.block_size

    def _visible(self, spec: KVGroupSpec, length: int) -> tuple[int, ...]:
        """Logical blocks among the first `length` that the next token can see."""
        start = self._start(spec, length)
        return (*range(min(start, spec.sink_blocks)), *range(start, length))

    def _complete(self, spec: KVGroupSpec, runs: list[int], length: int) -> bool:
        """Whether the sinks and the window of the token after `length` blocks are there. O(1)."""
        start = self._start(spec, length)
        sinks = min(start, spec.sink_blocks)
        return length - start <= runs[length] and (not sinks or runs[sinks] == sinks)

    def _held(self, nodes: Sequence[_Node | None], group: int, length: int) -> dict[int, int]:
        """The blocks among the first `length` that the next token can see."""
        held = ((index, _block(nodes[index], group)) for index in self._visible(self._groups[group], length))
        return {index: block for index, block in held if block is not None}

    def explain(self, hit: Hit, keys: BlockKeys, tokens: Sequence[int], salt: str) -> CacheMiss:
        """Why a lookup, for which nothing was inserted since, found no more. O(log n) in the known blocks."""
        size = self.block_size
        start = hit.num_tokens
        length, usable = start // size, (len(tokens) - 1) // size
        if usable == 0:
            return CacheMiss(MissReason.BELOW_ONE_BLOCK.value, start, f"a block is {size} tokens")
        if length == usable:
            return CacheMiss(MissReason.NONE.value, start)
        key = keys.keys[length]
        if key in self._nodes and key not in self._evicted and any(group.is_state for group in self._groups):
            detail = f"tokens up to {hit.num_known * size} are known, but the last state kept is at {start}"
            return CacheMiss(MissReason.NO_STATE.value, start, detail)
        if key in self._evicted or key in self._nodes:  # known, but not in every group
            detail = f"block {length} was reused for other tokens"
            if self._evicted.get(key):
                detail += ", although it was pinned"
            return CacheMiss(MissReason.EVICTED.value, start, detail)
        rest = tuple(tokens[start : start + size])
        siblings = self._children.get(keys.keys[length - 1] if length else keys.root, [])
        at = bisect_left(siblings, rest, key=_tokens)
        # In the order of their tokens, the node with the longest prefix in common with `rest` is next to it.
        common = max((_common(node.tokens, rest) for node in siblings[max(0, at - 1) : at + 1]), default=-1)
        if common > 0 or (common == 0 and length):
            at = start + common
            return CacheMiss(MissReason.DIVERGED.value, at, f"diverged at token {at}")
        if length == 0 and any(other != salt for other in self._first_blocks.get(rest, ())):
            return CacheMiss(MissReason.OTHER_SALT.value, 0, "the same tokens are cached under another salt")
        return CacheMiss(MissReason.COLD.value, start)

    def _remove(self, node: _Node) -> None:
        del self._nodes[node.key]
        siblings = self._children[node.parent]
        if len(siblings) == 1:
            del self._children[node.parent]
        else:
            del siblings[bisect_left(siblings, node.tokens, key=_tokens)]
        if node.first:
            salts = self._first_blocks[node.tokens]
            salts[node.salt] -= 1
            if not salts[node.salt]:
                del salts[node.salt]
            if not salts:
                del self._first_blocks[node.tokens]


def _tokens(node: _Node) -> tuple[int, ...]:
    return node.tokens


def _block(node: _Node | None, group: int) -> int | None:
    return None if node is None else node.blocks[group]


def _runs(held: Sequence[bool]) -> list[int]:
    """Entry i says how many in a row are held up to number i - 1, the last included."""
    runs = [0]
    for one in held:
        runs.append(runs[-1] + 1 if one else 0)
    return runs


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count
