"""The messages between the server process and the engine process: frozen, typed, bounded, never pickled.

A message is a msgpack array that begins with its kind. Decoding checks every type and length; a failure means that
the other side is broken, so it is an error of the connection. `translate` turns these into the core's types.
"""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from headrace.core.grammar import MAX_GRAMMAR_CHARS
from headrace.core.params import (
    MAX_BAD_SEQUENCES,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_TOKEN_LIST,
)
from headrace.core.scheduler import STEP_SIZES
from headrace.core.snapshot import MAX_CELLS, MAX_LANES, NOBODY, RUN, Phase
from headrace.core.types import MAX_NAME_CHARS, FinishReason, Pooling
from headrace.serving.wire.frames import WireError

MAX_GROUPS = 256

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=NOBODY)]


class LaneNow(Struct, frozen=True, array_like=True):
    """Lane."""

    request_id: Name
    index: Annotated[int, Meta(ge=0, lt=MAX_N)]
    phase: Phase
    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    num_prompt: Count
    num_computed: Count
    num_cached: Count
    num_output: Count
    num_preemptions: Count


class MapNow(Struct, frozen=True, array_like=True):
    """BlockMap."""

    name: Name
    num_blocks: Count
    block_size: Count
    blocks_per_cell: Annotated[int, Meta(ge=1)]
    held: Count
    findable: Count
    runs: Annotated[tuple[Number, ...], Meta(max_length=MAX_CELLS * RUN)]


Lanes = Annotated[tuple[LaneNow, ...], Meta(max_length=MAX_LANES)]
Maps = Annotated[tuple[MapNow, ...], Meta(max_length=MAX_GROUPS)]


MAX_PATH_CHARS = 8192
MAX_TEXT_CHARS = 16_384
"""Longest error sentence."""
MAX_CONFIG_CHARS = 1_000_000
MAX_TOKENS = 2**24
"""Most tokens of a prompt, or positions with log-probabilities, in one message."""
MAX_BATCH = 65_536
"""Most requests in one message of outputs."""
MAX_REASONS = 64
MAX_VECTOR_BYTES = 2**20
"""Longest embedding: 2^18 features of float32."""


Path = Annotated[str, Meta(max_length=MAX_PATH_CHARS)]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]

Seconds = Annotated[float, Meta(ge=0)]
Index = Annotated[int, Meta(ge=0, lt=MAX_N)]
Tokens = Annotated[tuple[int, ...], Meta(max_length=MAX_TOKENS)]
TokenList = Annotated[tuple[int, ...], Meta(max_length=MAX_TOKEN_LIST)]


class Plain(Struct, frozen=True, array_like=True):
    """Parts of messages."""


class GrammarSource(Plain, frozen=True):
    """Grammar."""

    kind: Name
    source: Annotated[str, Meta(max_length=MAX_GRAMMAR_CHARS)]


class Params(Plain, frozen=True):
    """SamplingParams, field by field; its constructor checks the ranges again on the other side."""

    n: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Annotated[dict[int, float], Meta(max_length=MAX_TOKEN_LIST)] | None
    allowed_token_ids: TokenList | None
    banned_token_ids: TokenList | None
    bad_words: Annotated[tuple[TokenList, ...], Meta(max_length=MAX_BAD_SEQUENCES)]
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: Annotated[
        tuple[Annotated[str, Meta(max_length=MAX_STOP_STRING_CHARS)], ...], Meta(max_length=MAX_STOP_STRINGS)
    ]
    stop_token_ids: TokenList
    include_stop_str_in_output: bool
    ignore_eos: bool
    logprobs: int | None
    prompt_logprobs: int | None
    skip_special_tokens: bool
    grammar: GrammarSource | None


class LogprobsAt(Plain, frozen=True):
    """TokenLogprobs."""

    token: int
    logprob: float
    rank: int
    top: Annotated[tuple[tuple[int, float, int], ...], Meta(max_length=MAX_LOGPROBS)]


class Miss(Plain, frozen=True):
    """CacheMiss."""

    reason: Text
    token: int
    detail: Text


class Times(Plain, frozen=True):
    """RequestStats."""

    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    finished_s: float | None
    num_prompt: Count
    num_cached: Count
    num_computed: Count
    num_pinned: Count
    num_preemptions: Count
    num_output: Count
    num_drafted: Count
    num_accepted: Count
    miss: Miss | None


class News(Plain, frozen=True):
    """Output."""

    request_id: Name
    index: Index
    tokens: Tokens
    logprobs: Annotated[tuple[LogprobsAt, ...], Meta(max_length=MAX_TOKENS)]
    prompt_logprobs: Annotated[tuple[LogprobsAt, ...], Meta(max_length=MAX_TOKENS)]
    finish_reason: FinishReason | None
    error: Text | None
    stop_token: int | None
    stats: Times | None
    pooled: Annotated[bytes, Meta(max_length=MAX_VECTOR_BYTES)] | None = None


class SchedulerCounts(Plain, frozen=True):
    """SchedulerStats."""

    steps: Count
    scheduled_tokens: Count
    output_tokens: Count
    preemptions: Count
    forks: Count
    retried_slices: Count
    block_copies: Count
    step_sizes: Annotated[tuple[Count, ...], Meta(max_length=STEP_SIZES)]


class CacheCounts(Plain, frozen=True):
    """CacheStats."""

    queries: Count
    hits: Count
    evictions: Count
    misses: Annotated[dict[Name, Count], Meta(max_length=MAX_REASONS)]
    pins: Count
    pins_broken: Count


class Message(Struct, frozen=True, array_like=True, tag=True):
    """What a frame holds."""


# ---- To the engine process ----


class Hello(Message, frozen=True):
    """The first message: EngineConfig as JSON, and the version of the sender, which must be the receiver's."""

    version: Name
    config: Annotated[str, Meta(max_length=MAX_CONFIG_CHARS)]


class Add(Message, frozen=True):
    """NewRequest. Answered by Accepted or Refused, before any Outputs."""

    request_id: Name
    prompt: Tokens
    params: Params
    priority: int
    user: Name
    cache_salt: Name
    weight: float
    queue_timeout_s: float | None
    timeout_s: float | None
    pooling: Pooling | None
    cache_pin_tokens: int
    cache_pin_ttl_s: float | None


class Abort(Message, frozen=True):
    """End a request, or one completion of it, because its caller has gone or found a stop string."""

    request_id: Name
    index: Index | None
    stopped: bool


class StatsRequest(Message, frozen=True):
    """Answered by Stats with the same number."""

    number: Count


class Ping(Message, frozen=True):
    """Answered by Pong, between two steps: a sign of life."""


class SnapshotRequest(Message, frozen=True):
    """Answered by Snapshot with the same number."""

    number: Count


class Shutdown(Message, frozen=True):
    """End at once, dropping what runs."""


# ---- From the engine process ----


class Ready(Message, frozen=True):
    """The model is loaded; ModelFacts."""

    model: Path
    vocab_size: Count
    max_model_len: Count | None
    tokenizer_folder: Path | None
    device: Name
    dtype: Name
    max_num_seqs: Count
    block_size: Count
    num_kv_blocks: Count
    hidden_size: Count
    sampling_defaults: dict[Name, float | int]


class Accepted(Message, frozen=True):
    request_id: Name


class Refused(Message, frozen=True):
    """The request alone has failed; `kind` is the error's class in `headrace.errors`."""

    request_id: Name
    kind: Name
    text: Text


class Dropped(Message, frozen=True):
    """A request was aborted before the engine had it: nothing was computed, and no Outputs will follow."""

    request_id: Name


class Outputs(Message, frozen=True):
    """The news of one step, or part of it where it is much."""

    news: Annotated[tuple[News, ...], Meta(max_length=MAX_BATCH)]


class Stats(Message, frozen=True):
    """EngineStats."""

    number: Count
    running: Count
    waiting: Count
    total_blocks: Count
    free_blocks: Count
    scheduler: SchedulerCounts
    cache: CacheCounts | None


class Pong(Message, frozen=True):
    """The answer to Ping."""


class StepBegun(Message, frozen=True):
    """A step of so many tokens begins, which are enough to explain a silence. By the speed of earlier steps it takes
    `expected_s` at most; None where there were none like it."""

    tokens: Count
    expected_s: Seconds | None


class Snapshot(Message, frozen=True):
    """View: the engine's Snapshot, and what has ended since the last one was asked for."""

    number: Count
    now: float
    stats: Stats
    max_num_seqs: Count
    max_num_batched_tokens: Count
    lanes: Lanes
    maps: Maps
    ended: Outputs | None


class Failed(Message, frozen=True):
    """The engine could not start, or has ended; the process exits behind this."""

    kind: Name
    text: Text


ToEngine = Hello | Add | Abort | StatsRequest | SnapshotRequest | Ping | Shutdown
FromEngine = Ready | Accepted | Refused | Dropped | Outputs | Stats | Snapshot | Pong | StepBegun | Failed

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: Message) -> bytes:
    """Raises WireError for values that the format cannot hold, such as integers beyond 64 bits."""
    try:
        return _encoder.encode(message)
    except (OverflowError, TypeError, ValueError) as error:
        raise WireError(f"a {type(message).__name__} message cannot be written: {error}") from error


def is_unicode(value: object) -> bool:
    """False where JSON data holds half of a surrogate pair, which no message could carry. Raises RecursionError.

    One native pass, about 50 times as fast as the json module's.
    """
    try:
        try:
            _encoder.encode(value)
        except OverflowError:  # a number of more than 64 bits
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def decode_to_engine(payload: bytes) -> ToEngine:
    """Raises WireError for anything but a message to the engine."""
    try:
        return _to_engine.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message to the engine: {error}") from error


def decode_from_engine(payload: bytes) -> FromEngine:
    """Raises WireError for anything but a message from the engine."""
    try:
        return _from_engine.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message from the engine: {error}") from error
