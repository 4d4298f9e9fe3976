"""Scheduling choices as plain data and pure functions: admission, order, victim."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.eviction import Eviction
from headrace.core.params import MAX_LOGPROBS
from headrace.core.request import Request


class Batching(enum.Enum):
    """When waiting requests may join the running ones."""

    STATIC = "static"  # a batch starts when the last has ended, with the requests that wait then
    DYNAMIC = "dynamic"  # like static, but waits for the batch to fill, up to a time or token limit
    CONTINUOUS = "continuous"  # at every step (Orca, Yu et al. 2022)


class Order(enum.Enum):
    """The scheduling order."""

    FCFS = "fcfs"
    PRIORITY = "priority"  # lower number first, then arrival
    FAIR = "fair"  # the user who was served the fewest tokens (Sheng et al. 2024), then as by priority


class Victim(enum.Enum):
    """Which sequence is preempted when blocks run out, among those after the request that needs them."""

    LAST = "last"  # the one that would be served last
    CHEAPEST = "cheapest"  # the one with the fewest computed tokens to redo


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Sizes in tokens or requests, times in seconds. `max_model_len` None means that windows bound every layer.

    `kv_cache` False recomputes every sequence at every step: the baseline that shows what a cache is worth.
    `max_draft` is the most tokens that are drafted for a sequence at once.
    `seed` is the root of the seeds of requests without one. `max_logprobs` is the most alternatives that a request
    may ask for at a position. `eviction`: tokens that sequences give up; needs the KV cache, and no drafts.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    vocab_size: int
    eos_ids: frozenset[int] = frozenset()
    batching: Batching = Batching.CONTINUOUS
    batch_size: int = 8
    batch_wait_s: float = 0.05
    batch_max_tokens: int = 8192
    order: Order = Order.FCFS
    victim: Victim = Victim.LAST
    chunked_prefill: bool = True
    kv_cache: bool = True
    max_draft: int = 0
    seed: int = 0
    max_logprobs: int = MAX_LOGPROBS
    eviction: Eviction | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """How many requests may join now; `wait_until` is when a batch that is not full yet will start anyway."""

    requests: int
    wait_until: float | None = None


def batch_room(
    config: SchedulerConfig, waiting: int, waiting_tokens: int, oldest_s: float, now: float
) -> Room:
    """Room in a batch that starts while none is running. `oldest_s` is the earliest arrival among the waiting."""
    if config.batching is Batching.CONTINUOUS:
        return Room(config.max_num_seqs)
    size = min(config.batch_size, config.max_num_seqs)
    if config.batching is Batching.DYNAMIC:
        start = oldest_s + config.batch_wait_s
        if waiting < size and waiting_tokens < config.batch_max_tokens and now < start:
            return Room(0, start)
    return Room(min(size, waiting))


def takes_place(config: SchedulerConfig, lead: float, victim: Request) -> bool:
    """Whether a user who waits for a place takes the one of `victim`, whose user was served `lead` more, by weight.

    The lead must exceed a whole step plus the tokens that the victim must recompute. So the time until users take turns
    does not depend on the length of requests, and recomputed tokens stay the smaller part of the work.
    """
    return lead * victim.weight > config.max_num_batched_tokens + victim.num_computed


def choose_victim(config: SchedulerConfig, later: Sequence[Request]) -> Request | None:
    """The sequence to preempt among `later`: those served after the one that lacks blocks, in that order."""
    if not later:
        return None
    if config.victim is Victim.CHEAPEST:
        return min(reversed(later), key=lambda request: request.num_computed)
    return later[-1]
