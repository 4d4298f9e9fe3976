"""Bugs planted into the core are found by the seeded runs, which pass without them (see test_stateful.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.core import kv_manager, prefix_cache, same_prompts, slice_results, table
from headrace.core.block_pool import BlockPool
from headrace.core.grants import Grants
from headrace.core.kv_manager import KVManager
from headrace.core.prefix_cache import BlockKeys, Hit, PrefixCache
from headrace.core.request import Request
from headrace.core.scheduler import Scheduler
from headrace.core.step_writes import Cell, StepWrites
from headrace.core.types import SeqSlice, SliceResult, TableUpdate
from tests.core import build, driver
from tests.core.checks import Broken
from tests.core.random_runs import MOVES, SEEDS, random_run

Patch = pytest.MonkeyPatch


def once(patch: Patch, owner: type, name: str, bug: Callable[..., Any], when: Callable[..., bool]) -> None:
    """Replace one call of a method, the first for which `when` holds, by `bug(original, self, …)`."""
    original, planted = getattr(owner, name), []

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if planted or not when(self, *args):
            return original(self, *args, **kwargs)
        planted.append(True)
        return bug(original, self, *args, **kwargs)

    patch.setattr(owner, name, method)


def leak_a_block(patch: Patch) -> None:
    once(patch, BlockPool, "release", lambda original, *args, **kwargs: None, lambda *args: True)


def free_a_shared_block_twice(patch: Patch) -> None:
    def twice(original: Any, kv: KVManager, group: int, block: int) -> None:
        original(kv, group, block)
        original(kv, group, block)

    once(patch, KVManager, "_release", twice, lambda kv, group, block: kv.pools[group].references(block) > 1)


def free_a_block_twice(patch: Patch) -> None:
    def twice(original: Any, kv: KVManager, group: int, block: int) -> None:
        original(kv, group, block)
        original(kv, group, block)

    once(patch, KVManager, "_release", twice, lambda kv, group, block: kv.pools[group].references(block) == 1)


def link_a_held_block(patch: Patch) -> None:
    """A block goes to the free list while a sequence still holds it."""

    def early(original: Any, pool: BlockPool, block: int) -> None:
        original(pool, block)
        pool._link(block, pool.num_blocks)

    once(patch, BlockPool, "share", early, lambda pool, block: pool.references(block) > 0)


def ignore_salts(patch: Patch) -> None:
    patch.setattr(prefix_cache, "root_key", lambda salt, scope, original=prefix_cache.root_key: original(""))


def skip_copies(patch: Patch) -> None:
    patch.setattr(KVManager, "_shared", lambda *args: [])


def skip_copies_unseen(patch: Patch) -> None:
    """Without the check of plans: the effect of the missing copy on tokens and on the cache."""
    skip_copies(patch)
    patch.setattr(driver, "check_plan", lambda *args: None)


def narrow_windows(patch: Patch) -> None:
    original = table.dropped_blocks

    def early(spec: Any, num_computed: int) -> int:
        return original(spec, num_computed + spec.block_size)

    patch.setattr(kv_manager, "dropped_blocks", early)
    patch.setattr(same_prompts, "dropped_blocks", early)


def lengthen_hits(patch: Patch) -> None:
    """A hit includes one more block, of a prompt that diverged."""
    original = PrefixCache.lookup

    def lookup(self: PrefixCache, keys: BlockKeys, tokens: Sequence[int], salt: str) -> Hit:
        hit = original(self, keys, tokens, salt)
        length = hit.num_tokens // self.block_size
        parent = keys.keys[length - 1] if length else keys.root
        for node in self._children.get(parent, []):
            if None not in node.blocks and (length + 1) * self.block_size < len(tokens):
                blocks = tuple(
                    {**held, length: block} for held, block in zip(hit.blocks, node.blocks, strict=True)
                )
                return replace(hit, num_tokens=hit.num_tokens + self.block_size, blocks=blocks)
        return hit

    patch.setattr(PrefixCache, "lookup", lookup)


def forget_the_preempted(patch: Patch) -> None:
    original = Scheduler._preempt

    def preempt(self: Scheduler, request: Request) -> None:
        original(self, request)
        self.waiting.remove(request)

    patch.setattr(Scheduler, "_preempt", preempt)


def keep_evicted_keys(patch: Patch) -> None:
    patch.setattr(PrefixCache, "evict", lambda *args, **kwargs: None)


def keep_evicted_keys_unseen(patch: Patch) -> None:
    keep_evicted_keys(patch)
    patch.setattr(driver, "check_plan", lambda *args: None)


def register_what_is_not_computed(patch: Patch) -> None:
    """The last token of a step counts as computed, and so do rejected drafts."""
    original = KVManager.register

    def register(self: KVManager, request: Request, first: int, last: int) -> list[Cell]:
        return original(self, request, first, len(request.tokens))

    patch.setattr(KVManager, "register", register)


def keep_what_a_failed_slice_was_to_write(patch: Patch) -> None:
    patch.setattr(KVManager, "take_back", lambda *args: None)


def keep_what_was_read_of_a_failed_slice(patch: Patch) -> None:
    patch.setattr(StepWrites, "reads_from", lambda *args: False)


def write_what_is_shared_to_its_end(patch: Patch) -> None:
    """The last token of a shared prompt is written again, in a block that another sequence has."""
    original = Scheduler._slice

    def cut(self: Scheduler, request: Request, count: int) -> SeqSlice:
        return replace(original(self, request, count), num_stored=0)

    patch.setattr(Scheduler, "_slice", cut)


def lose_a_table_update(patch: Patch) -> None:
    def none(original: Any, kv: KVManager, request: Request) -> tuple[TableUpdate | None, ...]:
        return tuple(None for _ in original(kv, request))

    once(patch, KVManager, "updates", none, lambda kv, request: True)


def count_rejected_drafts(patch: Patch) -> None:
    original = Scheduler._commit_slice

    def commit(self: Scheduler, request: Request, work: SeqSlice, part: SliceResult, now: float) -> Any:
        output = original(self, request, work, part, now)
        if part.error is None and work.num_draft >= len(part.tokens):
            request.num_computed += 1
        return output

    patch.setattr(Scheduler, "_commit_slice", commit)


def overdraw_the_budget(patch: Patch) -> None:
    patch.setattr(Grants, "tokens_due", lambda self, request, budget: request.gap)


def repeat_prompt_logprobs(patch: Patch) -> None:
    patch.setattr(slice_results, "new_prompt_logprobs", lambda request, work, part: part.prompt_logprobs)


@pytest.mark.parametrize(
    ("plant", "failure"),
    [
        (leak_a_block, r"^reference counts"),
        (free_a_block_twice, r"released more often than it was taken"),
        (free_a_shared_block_twice, r"^(reference counts|block \d+ was released more often)"),
        (link_a_held_block, r"^free list"),
        (ignore_salts, r"^(tokens|cache content)"),
        (skip_copies, r"^(shared write: block \d+ has [2-9] references|cache index)"),
        (skip_copies_unseen, r"^(tokens|shared write|stale KV|cache content|cache index)"),
        (narrow_windows, r"^(table: position|stale KV)"),
        (lengthen_hits, r"^(tokens|stale KV|cache content)"),
        (forget_the_preempted, r"^queues: hold"),
        (keep_evicted_keys, r"^(shared write: block \d+ is in the prefix cache|cache content)"),
        (keep_evicted_keys_unseen, r"^(cache content|tokens|stale KV)"),
        (register_what_is_not_computed, r"^cache (content|index)"),
        (keep_what_a_failed_slice_was_to_write, r"^(cache content|tokens)"),
        (keep_what_was_read_of_a_failed_slice, r"^(cache content|tokens)"),
        (write_what_is_shared_to_its_end, r"^shared write"),
        (lose_a_table_update, r"^table: "),
        (count_rejected_drafts, r"^(starts at \d+, \d+ are computed|table: no block)"),
        (overdraw_the_budget, r"^limits: \d+ tokens"),
        (repeat_prompt_logprobs, r"^prompt logprobs"),
    ],
)
def test_planted_bugs_are_found(plant: Callable[[Patch], None], failure: str, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, ValueError), match=failure):
        for seed in SEEDS:
            random_run(seed, MOVES)


@pytest.mark.parametrize("planted", [False, True])
def test_a_preempted_sequence_that_is_not_requeued_starves(planted: bool, monkeypatch: Patch) -> None:
    """The check of queues would find it at once; this is its effect without that check."""
    monkeypatch.setattr(driver, "check_queues", lambda *args: None)
    if planted:
        forget_the_preempted(monkeypatch)
    engine = build.driver(build.full(9), caching=False)
    for name in "abc":
        engine.add(build.new(name, 8, max_tokens=16))
    if planted:
        with pytest.raises(Broken, match=r"^starved"):
            engine.drain()
    else:
        engine.drain()
    assert engine.events["preemptions"] > 0
