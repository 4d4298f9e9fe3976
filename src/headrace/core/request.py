"""One sequence in the scheduler: counters, an enum, and its block tables (`table`)."""

from __future__ import annotations

from headrace.core import trees
from headrace.core.eviction import Eviction
from headrace.core.params import SamplingParams
from headrace.core.prefix_cache import BlockKeys
from headrace.core.table import Table
from headrace.core.types import NewRequest, NewSequence, RequestStats, Status


class Request:
    """Completion `index` of a request. `num_computed` chases `len(tokens) + len(draft)`."""

    __slots__ = (
        "charged", "draft", "draft_parents", "eviction", "finish_by", "first", "index", "key", "keys", "known",
        "limit", "name", "num_computed", "num_prompt", "num_stored", "number", "params", "pin_blocks", "pin_ttl_s",
        "pooling", "priority", "prompt_key", "prompt_logprobs_done", "room", "salt", "seed", "start_by", "stats",
        "status", "stop_ids", "tables", "tokens", "user", "weight",
    )  # fmt: skip

    def __init__(
        self, number: int, new: NewRequest, index: int, *, seed: int, stop_ids: frozenset[int], limit: int,
        num_groups: int, keys: BlockKeys, now: float, eviction: Eviction | None = None,
    ) -> None:  # fmt: skip
        self.number = number  # the executor's name for it; rises with arrival
        self.name = new.request_id
        self.key = new.key
        self.index = index
        self.params: SamplingParams = new.params
        self.tokens: list[int] = list(new.prompt)
        self.num_prompt = len(new.prompt)
        self.num_computed = 0
        # Leading tokens whose KV its blocks hold. Beyond num_computed only where a prompt is shared to its end: the
        # last token is then computed for its logits alone, and its KV is not written again.
        self.num_stored = 0
        self.pin_blocks = (
            min(new.cache_pin_tokens, self.num_prompt) // keys.block_size
        )  # to be pinned when computed
        self.pin_ttl_s = new.cache_pin_ttl_s or 0.0
        self.draft: tuple[int, ...] = ()
        self.draft_parents: tuple[int, ...] = ()  # where the draft is a tree
        self.room = 0  # drafts that may follow the slice just granted
        self.status = Status.WAITING
        self.pooling = new.pooling
        self.priority = new.priority
        self.user = new.user
        self.weight = new.weight
        self.salt = new.cache_salt
        self.seed = seed
        self.stop_ids = stop_ids
        self.limit = limit  # longest total length in tokens
        self.eviction = eviction if self.params.samples else None
        # Times on the engine's clock: to be scheduled first, and to have ended.
        self.start_by = None if new.queue_timeout_s is None else now + new.queue_timeout_s
        self.finish_by = None if new.timeout_s is None else now + new.timeout_s
        self.first = self  # completion 0 of the same request
        self.prompt_key = 0  # equal for those that may share a whole prompt; set by the scheduler
        self.tables = [Table() for _ in range(num_groups)]
        self.keys = keys
        self.known = False  # the executor holds state for it
        self.charged = 0  # leading tokens that its user has been charged for
        self.prompt_logprobs_done = 0
        self.stats = RequestStats(arrival_s=now, num_prompt=self.num_prompt)

    @property
    def gap(self) -> int:
        """Tokens still to be computed, drafts included."""
        return len(self.tokens) + len(self.draft) - self.num_computed

    def span(self, count: int) -> int:
        """Positions that the next `count` tokens take: drafts of a tree that are equally deep have the same one."""
        known = len(self.tokens) - self.num_computed
        if count <= known or not self.draft_parents:
            return count
        return known + trees.depth(self.draft_parents, count - known)

    def forget_draft(self) -> None:
        self.draft = self.draft_parents = ()

    @property
    def next_point(self) -> int | None:
        """The length at which it gives tokens up next; None where it never does."""
        if self.eviction is None:
            return None
        return self.eviction.next_point(self.num_prompt, self.num_computed)

    @property
    def evicted(self) -> int:
        """Tokens that groups which keep everything have given up."""
        return 0 if self.eviction is None else max(table.evicted for table in self.tables)

    @property
    def started(self) -> bool:
        """It or the first completion of its request has been scheduled: the request waits no more."""
        return self.stats.first_scheduled_s is not None or self.first.stats.first_scheduled_s is not None

    def has_prompt_of(self, other: Request) -> bool:
        """Whether both start from the same tokens under the same salt."""
        return self.first is other.first or (
            self.salt == other.salt
            and self.num_prompt == other.num_prompt
            and self.tokens[: self.num_prompt] == other.tokens[: self.num_prompt]
        )

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def decodes(self) -> bool:
        """It computes its newest token to get the next one. Recomputing after a preemption is a prefill."""
        # The last token's KV is computed by the step that samples the next one.
        return len(self.tokens) > self.num_prompt and len(self.tokens) - self.num_computed <= 1

    @property
    def order(self) -> tuple[int, int, int]:
        """Urgency: smaller runs first. Equal priorities keep the order of arrival."""
        return (self.priority, self.number, self.index)

    def describe(self) -> NewSequence:
        return NewSequence(
            self.params, tuple(self.tokens), self.num_prompt, self.seed, self.stop_ids, self.pooling,
            owner=(self.user, self.salt),
        )  # fmt: skip
