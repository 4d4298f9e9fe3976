"""What the scheduler and an executor exchange: frozen, tensor-free, made of plain values.

There are no phases. A request has `num_computed` tokens whose KV is stored, chasing `len(tokens) + len(draft)`;
a slice grants it some of that gap. Prefill, chunked prefill, decode, recompute and draft verification differ
only in how large the gap is.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.core import trees
from headrace.core.grammar import is_unicode
from headrace.core.params import MAX_TOKENS_LIMIT, SamplingParams, as_int, is_real
from headrace.core.record import record
from headrace.errors import InvalidParams

NO_USER = ""
UNFULFILLABLE = "what the request asks for cannot be fulfilled: "
"""Prefix of an error that is the request's own fault, although it is found only while it runs."""
MAX_NAME_CHARS = 1024
MAX_PRIORITY = 2**31 - 1
MAX_TIMEOUT_S = 7 * 86_400.0
MAX_CACHE_PIN_TTL_S = 3600.0
MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e3


class Retention(enum.Enum):
    """Which past keys a layer can still attend to."""

    FULL = "full"
    WINDOW = "window"  # the last `window` positions
    SINKS = (
        "sinks+window"  # the first `sinks` positions and the last `window` (StreamingLLM, Xiao et al. 2023)
    )
    STATE = "state"  # all positions, in a recurrent state of a fixed size


NOWHERE = -1
"""No slot: the state before the first token, which is zero."""


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers that share one block table: same retention, same block size.

    `num_blocks` counts usable blocks of this group's pool. `window` and `sinks` are in tokens. An executor has
    `scratch` more blocks after these, for branches of trees of drafts; the scheduler never names them.

    In a group of retention STATE a block is a slot, which holds the state after some number of tokens. A sequence has
    one. For the prefix cache, states are kept every `interval` tokens, a multiple of block_size (None: never), and
    at the last block border of a prompt.
    """

    name: str
    num_blocks: int
    block_size: int
    retention: Retention = Retention.FULL
    window: int | None = None
    sinks: int = 0
    interval: int | None = None
    scratch: int = 0

    @property
    def memory_blocks(self) -> int:
        """Blocks that memory is needed for."""
        return self.num_blocks + self.scratch

    @property
    def is_state(self) -> bool:
        return self.retention is Retention.STATE

    @property
    def reach(self) -> int | None:
        """Tokens, its own included, whose KV or state a token's step reads; None for all."""
        return 2 if self.is_state else self.window

    @property
    def sink_blocks(self) -> int:
        """Blocks at the front of a table that never fall out of the window."""
        return -(-self.sinks // self.block_size)

    @property
    def reach_blocks(self) -> int | None:
        """The most blocks that one token's step needs, at any length; None where that grows with the length."""
        if self.is_state:
            return 1
        if self.window is None:
            return None
        return self.sink_blocks + -(-(self.window - 1) // self.block_size) + 1


class Pooling(enum.Enum):
    """How a prompt's hidden states, after the final norm, become one vector."""

    MEAN = "mean"  # of all of its tokens
    LAST = "last"  # of its last token
    ALL = "all"  # no vector: the states of all of its tokens, one after the other


class FinishReason(enum.Enum):
    STOP = "stop"  # end-of-sequence, a stop id, a stop string or the end of a grammar
    LENGTH = "length"  # max_tokens, the model's length or the pool's size
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"  # a deadline of the request passed first


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"  # waiting again, all of its KV freed
    FINISHED = "finished"


@record
class TableUpdate:
    """Change of one request's block table in one KV group.

    A table lists live blocks only: the sink blocks, then the blocks still in reach. `dropped` is the total number
    of blocks that have fallen out of the window so far, so live entry i covers logical block i for
    i < sink_blocks and logical block i + dropped after them. To apply: first drop the new leading window blocks,
    then replace `live[first:]` by `blocks`. With `first` 0 the table is a new one, whatever it was before.

    `evicted` tokens of the sequence are gone, see core.eviction: the token at position p has place p - evicted of the
    table.
    """

    first: int = 0
    blocks: tuple[int, ...] = ()
    dropped: int = 0
    evicted: int = 0


@record
class StateSlots:
    """Where a slice's recurrent state lies in one KV group: it starts from slot `source`, or from zero if that is
    NOWHERE, and after the first `count` tokens the state goes to `slot`, for each (count, slot) of `writes`.

    `writes` is in rising order and ends with all tokens of the slice. A slot may be both read and written. Slices of
    a step take turns: each finds what the ones before it wrote.
    """

    source: int
    writes: tuple[tuple[int, int], ...]


@record
class Observation:
    """A slice whose last `rows` tokens decide which keys stay, see core.eviction. Attention to each key is summed over
    them; sums start at zero with the first of them where `fresh`. In a group with `targets` what stays is copied to
    these blocks."""

    rows: int
    fresh: bool
    targets: tuple[
        tuple[int, ...], ...
    ] = ()  # one per KV group, () for one that keeps all; () before the last row


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one block's KV before the step's own writes (copy-on-write)."""

    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class NewSequence:
    """What an executor must know of a sequence that it sees for the first time, or again after preemption."""

    params: SamplingParams
    tokens: tuple[int, ...]  # prompt and all output so far
    num_prompt: int
    seed: int  # resolved; the randomness of output position p is a function of (seed, p) alone
    stop_ids: frozenset[int]  # ids that end the request; banned until min_tokens
    pooling: Pooling | None = None  # the vector is due with the slice that ends the prompt
    owner: tuple[str, str] = (NO_USER, "")  # its user and cache salt


@record
class SeqSlice:
    """The work granted to one sequence in one step: compute KV of `tokens` at positions start, start+1, …

    The last `num_draft` of `tokens` are unverified drafts. With `sample` set, the executor samples after the last
    non-draft token and after every accepted draft; otherwise it emits nothing. The first `num_stored` of `tokens` are
    computed for their logits alone: their KV is in the slice's blocks, or an earlier slice of the step writes it there,
    and it must not be written again. Up to `room` drafts may follow one another in the next step: the tables have
    places for the KV of so many tokens after the slice. Drafts of a tree (`draft_parents`) stand at the position of
    their depth. The tables have one place for each depth, for the main chain until it is known which path was right.
    """

    request_id: int
    tokens: tuple[int, ...]
    start: int
    sample: bool
    num_draft: int = 0
    room: int = 0
    tables: tuple[TableUpdate | None, ...] = ()  # one per KV group; None where nothing changed
    new: NewSequence | None = None
    num_stored: int = 0
    states: tuple[
        StateSlots | None, ...
    ] = ()  # one per KV group, None except for retention STATE; () if there is none
    draft_parents: tuple[int, ...] = ()  # of a tree of drafts, see core.trees; () for a chain
    observation: Observation | None = None
    evicted: int = 0  # tokens before `start` that are gone, see core.eviction

    @property
    def known(self) -> int:
        """Tokens that are not drafts."""
        return len(self.tokens) - self.num_draft

    @property
    def span(self) -> int:
        """Positions that the slice covers: drafts of a tree that are equally deep share one."""
        if not self.draft_parents:
            return len(self.tokens)
        return self.known + trees.depth(self.draft_parents, self.num_draft)


@record
class StepPlan:
    """One step. State of `released` ids is dropped first, then `copies` are made, then `slices` run.

    A slice may read blocks that an earlier slice of the same step writes: in every layer, all writes come before reads.
    """

    step_id: int
    slices: tuple[SeqSlice, ...] = ()
    released: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    wait_until: float | None = None  # nothing to run before this time unless a request arrives

    @property
    def empty(self) -> bool:
        """True when an executor has nothing to do."""
        return not (self.slices or self.released or self.copies)


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position, natural logarithm, of the model's own distribution.

    `top` holds (token, logprob, rank) in falling order; the chosen token's rank counts from 1.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float, int], ...] = ()


@record
class SliceResult:
    """What one slice produced. `tokens` is empty without sampling, else accepted drafts plus one sampled token."""

    request_id: int
    tokens: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()  # proposals for the next step
    draft_parents: tuple[int, ...] = ()  # where they are a tree, see core.trees
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # for the prompt positions of this slice, see Request
    pooled: bytes | None = (
        None  # where the slice ends the prompt of a pooling sequence: float32, little-endian
    )
    error: str | None = None  # only this request fails
    done: bool = False  # nothing can follow these tokens: the grammar is at its end


@record
class StepResult:
    step_id: int
    results: tuple[SliceResult, ...] = ()
    rests: bool = False  # no draft will follow the next step: it needs no room for any


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Why prefix lookup stopped where it did."""

    reason: str  # see prefix_cache.MissReason
    token: int  # first prompt position that had to be computed
    detail: str = ""


@dataclass(slots=True)
class RequestStats:
    """Times in seconds on the engine's clock; None until it happened."""

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None
    num_prompt: int = 0
    num_cached: int = 0  # prompt tokens taken from the prefix cache at first admission
    num_computed: int = 0  # prompt tokens that were granted to a step, or cached: how far prefill came
    num_pinned: int = 0  # prompt tokens whose blocks stay pinned for `cache_pin_ttl_s`
    num_preemptions: int = 0
    num_output: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    miss: CacheMiss | None = None

    def copy(self) -> RequestStats:
        """A snapshot. Five times as fast as `dataclasses.replace`."""
        return RequestStats(
            self.arrival_s, self.first_scheduled_s, self.first_token_s, self.last_token_s, self.finished_s,
            self.num_prompt, self.num_cached, self.num_computed, self.num_pinned, self.num_preemptions,
            self.num_output, self.num_drafted, self.num_accepted, self.miss,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as it enters the core: token ids, parameters, and its user.

    `request_id` is the caller's name for it; the n completions differ by their index. A client of another process
    numbers its requests (`submission`, from 1), so that an id may be used again before the engine has reported the
    end of the request that had it. A lower `priority` runs first. Requests with different `cache_salt` never share
    prefix blocks. Under the fair order a user of twice the `weight` gets twice the tokens. The timeouts count from
    arrival, in seconds: a request that was not scheduled within `queue_timeout_s`, or has not ended within
    `timeout_s`, ends with the reason "timeout". With `pooling` it is for the embedding of its prompt: it samples
    nothing (max_tokens 0) and has no prompt_logprobs.

    The full prefix blocks among the first `cache_pin_tokens` of the prompt are pinned for `cache_pin_ttl_s` seconds
    from when they are computed or found; a request that names them again prolongs that. Pinned blocks are evicted last.
    It is not a reservation: where no other block is left, or too many are pinned, pins are broken and counted.
    """

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    user: str = NO_USER
    cache_salt: str = ""
    weight: float = 1.0
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    pooling: Pooling | None = None
    cache_pin_tokens: int = 0
    cache_pin_ttl_s: float | None = None
    submission: int = 0

    @property
    def key(self) -> str:
        """What the engine and its outputs call the request: its id, and the submission if it is numbered."""
        return f"{self.request_id}@{self.submission}" if self.submission else self.request_id

    def __post_init__(self) -> None:
        for name in ("request_id", "user", "cache_salt"):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > MAX_NAME_CHARS:
                raise InvalidParams(f"{name} must be text of at most {MAX_NAME_CHARS} characters")
            if not is_unicode(text):
                raise InvalidParams(f"{name} holds half of a surrogate pair: it must be valid Unicode")
        urgency = as_int(self.priority)
        if urgency is None or abs(urgency) > MAX_PRIORITY:
            raise InvalidParams(f"priority must be a whole number between {-MAX_PRIORITY} and {MAX_PRIORITY}")
        put = object.__setattr__
        put(self, "priority", urgency)
        if not is_real(self.weight) or not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:  # NaN is in no range
            raise InvalidParams(f"weight must be a number between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}")
        put(self, "weight", float(self.weight))
        for name in ("queue_timeout_s", "timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not (is_real(seconds) and 0 <= seconds <= MAX_TIMEOUT_S):
                raise InvalidParams(f"{name} must be a number of seconds between 0 and {MAX_TIMEOUT_S:g}")
            put(self, name, None if seconds is None else float(seconds))
        self._check_pin()
        if not isinstance(self.prompt, tuple):
            raise InvalidParams("prompt must be a tuple of token ids")
        if not isinstance(self.params, SamplingParams):
            raise InvalidParams("params must be SamplingParams")
        if self.pooling is not None and not isinstance(self.pooling, Pooling):
            raise InvalidParams("pooling must be a Pooling")
        if any(isinstance(word, str) for word in self.params.bad_words):
            raise InvalidParams(
                "bad_words must be token ids here: headrace.text.bad_words makes them of text"
            )
        if self.pooling is not None and (self.params.samples or self.params.n != 1):
            raise InvalidParams("an embedding needs max_tokens 0 and n 1: nothing is sampled")
        if self.pooling is not None and self.params.prompt_logprobs is not None:
            raise InvalidParams("an embedding has no prompt_logprobs: ask for them in a request of their own")

    def _check_pin(self) -> None:
        count = as_int(self.cache_pin_tokens)
        if count is None or not 0 <= count <= MAX_TOKENS_LIMIT:
            raise InvalidParams(f"cache_pin_tokens must be a whole number between 0 and {MAX_TOKENS_LIMIT}")
        seconds = self.cache_pin_ttl_s
        if seconds is not None and not (is_real(seconds) and 0 < seconds <= MAX_CACHE_PIN_TTL_S):
            raise InvalidParams(
                f"cache_pin_ttl_s must be a number of seconds above 0 and at most {MAX_CACHE_PIN_TTL_S:g}"
            )
        if bool(count) != (seconds is not None):
            raise InvalidParams("cache_pin_tokens and cache_pin_ttl_s come together")
        object.__setattr__(self, "cache_pin_tokens", count)
        object.__setattr__(self, "cache_pin_ttl_s", None if seconds is None else float(seconds))


class Output(NamedTuple):
    """What completion `index` of a request gained in one step. A tuple: messages carry it without field names."""

    request_id: str  # NewRequest.key
    index: int  # type: ignore[assignment]  # hides tuple.index
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
    stop_token: int | None = None  # the id that ended it, if one did
    stats: RequestStats | None = None  # a snapshot, with the first tokens and the last output of a completion
    pooled: bytes | None = None  # the prompt's embedding, float32, little-endian
