"""Lets the head of the queue join: KV blocks for its first slice, some of them shared with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.grants import Grants
from headrace.core.kv_manager import KVManager
from headrace.core.policy import SchedulerConfig
from headrace.core.prefix_cache import Hit, MissReason
from headrace.core.request import Request
from headrace.core.scheduler_counts import SchedulerStats
from headrace.core.types import BlockCopy, CacheMiss


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the head of the queue could not join: while nothing has changed, its lookup is not repeated."""

    request: Request
    hit: Hit | None
    source: Request | None
    free: tuple[int, ...]  # blocks of each pool
    joined: int
    running: int
    budget: int  # the largest with which it cannot join


class Admission:
    """`running` is the scheduler's list, in which every request is that has joined."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVManager,
        grants: Grants,
        running: Sequence[Request],
        stats: SchedulerStats,
    ) -> None:
        self._config, self._kv, self._grants = config, kv, grants
        self._running, self._stats = running, stats
        self.joined = 0  # admissions since the start, those after a preemption included
        self.last: Refusal | None = None

    @property
    def spare_blocks(self) -> int:
        """Blocks that stay free when a sequence joins: one for the growth of each running sequence, or the new one
        would soon be preempted. None where a block holds a whole sequence, as in the contiguous layout."""
        longest = self._config.max_model_len
        return 0 if longest is not None and self._kv.block_size >= longest else len(self._running)

    def refused_again(self, request: Request, budget: int) -> bool:
        """Whether the request would be refused as before: nothing has changed that could let it join."""
        last = self.last
        return (
            last is not None
            and last.request is request
            and bool(self._running)
            and len(self._running) >= last.running
            and self.joined == last.joined
            and self._grants.usable(request, budget) <= last.budget
            and all(pool.num_free <= free for pool, free in zip(self._kv.pools, last.free, strict=True))
            and not self._kv.may_find_other(request, last.hit, last.source)
        )

    def try_admit(self, request: Request, budget: int, copies: list[BlockCopy]) -> int:
        """Take blocks for a waiting request's first slice. Returns its tokens, 0 with nothing taken if it must wait."""
        self._kv.hold(None)
        source = self._kv.fork(request) if self._config.kv_cache else None
        hit = None if source is not None else self._kv.lookup(request)
        if hit is not None:
            self._kv.admit(request, hit)
        count = due = self._grants.tokens_due(request, budget)
        fits = not (self._running and self._kv.blocks_short(request, len(request.tokens), self.spare_blocks))
        if fits and not self._running:
            count = self._grants.whole(request, min(count, self._kv.fits(request)))
        if not count or not fits or not self._grants.grow(request, count, copies):
            self._kv.free(request)
            free = tuple(pool.num_free for pool in self._kv.pools)
            most = self._config.max_num_batched_tokens if due else self._grants.usable(request, budget)
            self._kv.hold(hit)
            self.last = Refusal(request, hit, source, free, self.joined, len(self._running), most)
            return 0
        self.last = None
        miss = None
        if hit is not None and self._kv.cache is not None:
            miss = self._kv.cache.explain(hit, request.keys, self._kv.findable(request), request.salt)
        if source is not None:
            self._stats.forks += 1
            if source.first is not request.first:  # another request: its caller sees a cache hit
                miss = CacheMiss(MissReason.NONE.value, request.num_computed)
        if miss is not None and self._kv.cache is not None:
            self._kv.cache.record(miss, request.num_computed, len(request.tokens))
        if request.stats.first_token_s is None and not request.stats.num_preemptions:
            request.stats.num_cached = min(request.num_computed, request.num_prompt)
            request.stats.miss = miss
        return count

    def found_keys(self) -> set[bytes]:
        """Keys of the prefix that the request refused last has found in the prefix cache, and what that follows."""
        last = self.last
        if last is None or last.hit is None:
            return set()
        keys = last.request.keys
        return {keys.root, *keys.keys[: last.hit.num_known]}
