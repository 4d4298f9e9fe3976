"""How many tokens a sequence's slice gets, and KV blocks for them and for the drafts that may follow."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.kv_manager import KVManager
from headrace.core.policy import SchedulerConfig
from headrace.core.request import Request
from headrace.core.types import BlockCopy


class Grants:
    """What sequences get in the step that is being planned."""

    def __init__(self, config: SchedulerConfig, kv: KVManager) -> None:
        self._config, self._kv = config, kv
        self.room = config.max_draft  # drafts that may follow a slice of the next step
        self.draft_budget = 0  # tokens of the step that drafts may still take
        self.tokens_left = 0  # of the step, whatever prompts may take

    def tokens_due(self, request: Request, budget: int) -> int:
        """Tokens of its next slice, drafts included; 0 where it has to wait."""
        known = len(request.tokens) - request.num_computed  # drafts may be cut short, prompts may not
        if (
            known > budget
            and not self._config.chunked_prefill
            and budget < self._config.max_num_batched_tokens
        ):
            return 0  # whole prompts only: wait for a step that has the full budget
        eviction = request.eviction
        if eviction is not None and request.num_computed >= eviction.reusable(request.num_prompt):
            window = min(self.tokens_left, eviction.window)  # a few tokens, which come in one slice
            budget = max(budget, window)
        return self.whole(request, min(known + min(len(request.draft), self.draft_budget), budget))

    def usable(self, request: Request, budget: int) -> int:
        """Tokens of the step that can let a waiting request join, where prompts may take `budget`."""
        return budget if request.eviction is None else max(budget, self.tokens_left)

    def whole(self, request: Request, count: int) -> int:
        """Of `count` tokens those that its next slice may have, see core.eviction."""
        if request.eviction is None:
            return count
        return request.eviction.grant(request.num_prompt, request.num_computed, count)

    def grow(self, request: Request, count: int, copies: list[BlockCopy]) -> bool:
        """Make room for a slice of `count` tokens, and where blocks allow for the drafts that follow it."""
        count = request.span(count)
        end = request.num_computed + count
        request.room = 0
        if self.room and end >= len(request.tokens) and request.params.samples:
            room = min(self.room, request.limit - end - 1)
            if (
                end <= request.num_stored
            ):  # an earlier slice of this step writes its last block, so it cannot be copied
                room = 0
            if room > 0 and self._kv.grow(request, count, copies, room):
                request.room = room
                return True
        return self._kv.grow(request, count, copies)

    def cut_drafts(
        self, request: Request, running: Sequence[Request], granted: list[tuple[Request, int]]
    ) -> bool:
        """Free blocks that another sequence holds for drafts: first for those that may follow, then for those of this
        step, each of the least urgent sequence."""
        counts = {id(other): (at, count) for at, (other, count) in enumerate(granted)}
        for keep_drafts in (True, False):
            for other in reversed(running):
                if other is request or (not keep_drafts and self._kv.has_states):
                    continue
                known = len(other.tokens) - other.num_computed
                at, count = counts.get(id(other), (-1, known))
                kept = count if keep_drafts else min(count, known)
                if not self._kv.trim(other, other.num_computed + other.span(kept)):
                    continue
                other.room = 0
                if at >= 0:
                    granted[at] = (other, kept)
                return True
        return False
