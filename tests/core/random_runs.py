"""Random setups, requests and moves, drawn from any object with the interface of random.Random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from headrace.core.params import SamplingParams
from headrace.core.policy import Batching, Order, SchedulerConfig, Victim
from headrace.core.types import KVGroupSpec, NewRequest, Pooling, Retention
from headrace.errors import PromptTooLong
from tests.core.driver import Driver, Setup

SEEDS, MOVES = range(80, 200), 60  # of the short run; the long one has its own
VOCAB = 7
PINS: tuple[dict[str, Any], ...] = (
    {}, {}, *({"cache_pin_tokens": count, "cache_pin_ttl_s": seconds} for count, seconds in ((9, 0.1), (40, 1.0))),
)  # fmt: skip
SALTS = ("", "", "red", "blue")
USERS = ("ann", "bob", "cat")
STEMS = ((1,) * 4, (1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5), (5, 4) * 10)  # prompts begin alike
LAYOUTS = (
    ("full",), ("window",), ("sinks",), ("full", "window"), ("full", "sinks"), ("window", "full", "window"),
    ("full", "state"), ("state", "full"), ("state",), ("window", "state", "full"),
)  # fmt: skip


def draw_group(rng: Random, kind: str, index: int, block_size: int) -> KVGroupSpec:
    """A pool of so few tokens that sequences compete for it."""
    blocks = max(2, rng.choice((12, 16, 24, 36, 60)) // block_size)
    window, sinks = rng.choice((1, 2, 5, 8, 16)), rng.choice((1, 3, 4))
    if kind == "full":
        return KVGroupSpec(f"{kind}{index}", blocks, block_size)
    if kind == "state":
        interval = rng.choice((1, 1, 2, 3, None))
        slots = rng.choice((1, 2, 3, 6, 12))
        return KVGroupSpec(
            f"{kind}{index}", slots, block_size, Retention.STATE, interval=interval and interval * block_size
        )
    if kind == "window":
        return KVGroupSpec(f"{kind}{index}", blocks, block_size, Retention.WINDOW, window)
    return KVGroupSpec(f"{kind}{index}", blocks, block_size, Retention.SINKS, window, sinks)


def draw_setup(rng: Random) -> Setup:
    block_size = rng.choice((1, 2, 4, 4, 16))
    kinds = rng.choice(LAYOUTS)
    groups = tuple(draw_group(rng, kind, index, block_size) for index, kind in enumerate(kinds))
    most = rng.choice((0, 0, 2, 4))  # drafts
    config = SchedulerConfig(
        max_num_seqs=rng.choice((1, 2, 4, 6, 8)),
        max_num_batched_tokens=rng.choice((1, 3, 8, 16, 64)),
        max_model_len=rng.choice((32, 48)) if "full" in kinds or rng.random() < 0.5 else None,
        vocab_size=VOCAB,
        eos_ids=frozenset({0}),
        batching=rng.choice((Batching.CONTINUOUS, Batching.CONTINUOUS, Batching.STATIC, Batching.DYNAMIC)),
        batch_size=rng.choice((1, 2, 3)),
        batch_wait_s=0.5,
        batch_max_tokens=rng.choice((8, 40)),
        order=rng.choice(tuple(Order)),
        victim=rng.choice(tuple(Victim)),
        chunked_prefill=rng.random() < 0.7,
        kv_cache=rng.random() < 0.9,
        max_draft=most,
        seed=3,
    )

    salt = rng.randrange(1000)

    def draft(length: int) -> tuple[int, int]:
        good = hash((salt, length)) % (most + 1)
        return good, most - good

    trees = rng.random() < 0.5
    return Setup(
        config, groups, rng.random() < 0.75, draft, lambda length: trees and hash((salt, length)) % 4 > 0
    )


def draw_request(rng: Random, name: str) -> NewRequest:
    stem = rng.choice(STEMS)
    prompt = stem[: rng.randint(1, rng.choice((3, len(stem))))] + tuple(
        rng.randrange(VOCAB) for _ in range(rng.choice((0, 0, 0, 2, 9)))
    )
    max_tokens = rng.choice((1, 3, 8, 20, 40, 40))
    params = SamplingParams(
        n=rng.choice((1, 1, 1, 2, 3, 4)),
        temperature=rng.choice((0.0, 1.0, 1.0)),
        max_tokens=max_tokens,
        min_tokens=rng.choice((0, 0, min(3, max_tokens))),
        stop_token_ids=rng.choice(((), (), (2,), (2, 3))),
        ignore_eos=rng.random() < 0.7,
        seed=rng.choice((None, 1, 2)),
        logprobs=rng.choice((None, 0)),
        prompt_logprobs=rng.choice((None, None, None, 0)),
    )
    kind = Random(f"{name} {prompt}").randrange(50)  # a few only need their prompt computed
    pooling = {0: Pooling.MEAN, 1: Pooling.LAST}.get(kind)
    if kind <= 2:
        params = replace(params, n=1, max_tokens=0, min_tokens=0)
    if pooling is not None:
        params = replace(params, prompt_logprobs=None)
    return NewRequest(
        name, prompt, params, rng.choice((0, 0, 1, 2)), rng.choice(USERS), rng.choice(SALTS),
        weight=rng.choice((1.0, 0.5, 3.0)), queue_timeout_s=rng.choice((*[None] * 9, 0.0, 0.1, 0.5)),
        timeout_s=rng.choice((*[None] * 4, 0.1, 0.3, 1.0)), pooling=pooling,
        **Random(f"pin {name} {prompt}").choice(PINS),
    )  # fmt: skip


@dataclass
class RandomRun:
    """One engine under random moves."""

    rng: Random
    driver: Driver

    def move(self) -> None:
        """A random move: mostly steps, so that queues neither run dry nor grow without end."""
        roll = self.rng.random()
        if roll < 0.62:
            self.step()
        elif roll < 0.85 and len(self.driver.engine._requests) < 12:
            self.add()
        elif roll < 0.92:
            self.abort()
        else:
            self.advance()

    def step(self) -> None:
        numbers = list(self.driver.engine._requests)
        if numbers and self.rng.random() < 0.02:
            self.driver.fail(self.rng.choice(numbers))
        actions = (self.add, self.abort, *[int] * 18)  # int does nothing
        self.driver.now += 0.02  # a step takes its time
        self.driver.step(self.rng.choice(actions), self.rng.choice(actions))

    def add(self) -> None:
        request = draw_request(self.rng, f"r{self.driver.operations}")
        ended = [track for track in self.driver.tracks.values() if track.reason and track.tokens]
        turn = Random(f"turn {request.request_id} {request.prompt}")
        if ended and turn.random() < 0.15:  # the next turn of a conversation
            last = turn.choice(ended)
            prompt = (*last.new.prompt, *last.tokens, *request.prompt[: turn.randint(0, 3)])
            request = replace(request, prompt=prompt, cache_salt=last.new.cache_salt)
        try:
            track = self.driver.add(request)[0]
            if self.rng.random() < 0.2:  # the same at the same time, to share what may fail
                self.driver.add(replace(request, request_id=f"{request.request_id} again"))
                if self.rng.random() < 0.2:
                    self.driver.fail(track.number)
        except PromptTooLong:
            self.driver.events["refused"] += 1

    def advance(self) -> None:
        self.driver.advance(self.rng.choice((0.0, 0.1, 0.3)))

    def abort(self) -> None:
        requests = list(self.driver.engine._requests.values())
        if requests:
            request = self.rng.choice(requests)
            self.driver.abort(request.name, self.rng.choice((None, request.index)))


def random_run(seed: int, moves: int) -> RandomRun:
    """A whole run from its seed: setup, moves, then every request runs to its end."""
    rng = Random(seed)
    run = RandomRun(rng, Driver(draw_setup(rng)))
    for _ in range(moves):
        run.move()
    run.driver.drain()
    return run
