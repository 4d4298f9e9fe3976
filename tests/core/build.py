"""Short names for what the tests of the core build over and over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.prefix_cache import BlockKeys
from headrace.core.request import Request
from headrace.core.step_budget import StepBudget
from headrace.core.types import KVGroupSpec, NewRequest, Retention, SeqSlice, StepPlan
from tests.core.driver import Driver, Setup

VOCAB = 50
CONFIG = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, vocab_size=VOCAB)


def full(blocks: int = 32, size: int = 4) -> KVGroupSpec:
    return KVGroupSpec("full", blocks, size)


def window(tokens: int, blocks: int = 32, size: int = 4) -> KVGroupSpec:
    return KVGroupSpec("window", blocks, size, Retention.WINDOW, tokens)


def sinks(first: int, tokens: int, blocks: int = 32, size: int = 4) -> KVGroupSpec:
    return KVGroupSpec("sinks", blocks, size, Retention.SINKS, tokens, first)


def state(slots: int = 8, size: int = 4, interval: int | None = 8) -> KVGroupSpec:
    return KVGroupSpec("state", slots, size, Retention.STATE, interval=interval)


def new(
    name: str,
    prompt: Sequence[int] | int,
    *,
    priority: int = 0,
    user: str = "",
    salt: str = "",
    weight: float = 1.0,
    queue_timeout_s: float | None = None,
    timeout_s: float | None = None,
    pin: tuple[int, float] | None = None,
    **params: Any,
) -> NewRequest:
    """A request; a number as the prompt gives that many tokens that no other name has in front."""
    if isinstance(prompt, int):
        prompt = [(sum(name.encode()) + at * at) % VOCAB for at in range(prompt)]
    return NewRequest(
        name,
        tuple(prompt),
        SamplingParams(**params),
        priority,
        user,
        salt,
        weight,
        queue_timeout_s,
        timeout_s,
        cache_pin_tokens=pin[0] if pin else 0,
        cache_pin_ttl_s=pin[1] if pin else None,
    )


def driver(
    *groups: KVGroupSpec,
    caching: bool = True,
    draft: tuple[int, int] = (0, 0),
    tree: bool = False,
    step_budget: StepBudget | None = None,
    **changes: Any,
) -> Driver:
    """An engine over the fake executor; `changes` go to CONFIG."""
    config = replace(CONFIG, **{"max_draft": sum(draft), **changes})
    return Driver(
        Setup(config, groups or (full(),), caching, lambda length: draft, lambda length: tree, step_budget)
    )


def request(number: int, tokens: Sequence[int], groups: Sequence[KVGroupSpec], **fields: Any) -> Request:
    """A request outside any scheduler."""
    return Request(
        number, new(f"r{number}", tokens, **fields), 0, seed=0, stop_ids=frozenset(), limit=10**6,
        num_groups=len(groups), keys=BlockKeys(fields.get("salt", ""), groups[0].block_size), now=0.0,
    )  # fmt: skip


def work(engine: Driver, plan: StepPlan) -> dict[str, SeqSlice]:
    """The slices of a plan by "name" or, after the first completion, "name.index"."""
    names = {
        track.number: name + (f".{index}" if index else "") for (name, index), track in engine.tracks.items()
    }
    return {names[part.request_id]: part for part in plan.slices}


def granted(engine: Driver, plan: StepPlan) -> dict[str, int]:
    """How many tokens each sequence computes in a plan."""
    return {name: len(part.tokens) for name, part in work(engine, plan).items()}
