"""Requests of a benchmark: prompts as token ids, output lengths and arrival times, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and when it arrives, in seconds after the start."""

    at_s: float
    request: NewRequest


def fixed_lengths(
    count: int, *, prompt_tokens: int, output_tokens: int, vocab_size: int, seed: int = 0
) -> list[Arrival]:
    """`count` requests of random token ids, all at once; greedy, running to exactly `output_tokens`."""
    return mixed_lengths(
        count,
        prompt_tokens=(prompt_tokens, prompt_tokens),
        output_tokens=(output_tokens, output_tokens),
        vocab_size=vocab_size,
        seed=seed,
    )


def mixed_lengths(
    count: int,
    *,
    prompt_tokens: tuple[int, int],
    output_tokens: tuple[int, int],
    vocab_size: int,
    seed: int = 0,
    prompt_seed: int | None = None,
) -> list[Arrival]:
    """Like `fixed_lengths`, with the lengths of each request drawn evenly from the given inclusive ranges.

    The lengths follow from `seed` alone; the tokens from `prompt_seed`, which is `seed` if None.
    """
    rng = random.Random(seed)
    words = random.Random(f"tokens {seed if prompt_seed is None else prompt_seed}")
    arrivals = []
    for index in range(count):
        prompt = _random_ids(words, rng.randint(*prompt_tokens), vocab_size)
        params = SamplingParams(temperature=0.0, max_tokens=rng.randint(*output_tokens), ignore_eos=True)
        arrivals.append(Arrival(0.0, NewRequest(f"bench-{index}", prompt, params)))
    return arrivals


SYSTEM_PROMPT = (
    "You are Tale, a storyteller for children. Keep your stories kind and easy to follow. Give every hero a wish, "
    "let something go wrong, and let a friend help. Never leave a hero alone in the dark. Use short sentences and "
    "plain words. When somebody asks about a story that you told, answer in one sentence and stay with what happened "
    "in it. When somebody is sad, be gentle. End each story with a moral that a small child can understand."
)
HEROES = ("fox", "bear", "rabbit", "duck", "mouse", "cat", "dog", "owl", "hen", "pig", "horse", "frog")
THINGS = ("boat", "kite", "lamp", "drum", "ball", "cake", "hat", "bell", "book", "map", "wagon", "flute")


URGENT = -10
"""The priority of urgent requests; 0 is that of all others."""
_URGENT_EVERY = 10
_MOST_TOKENS = 380


def shared_prompt_chats(
    count: int, encode_chat: Callable[[list[dict[str, str]]], list[int]], *, rate_per_s: float, seed: int = 0
) -> list[Arrival]:
    """Requests for stories after one long system prompt, arriving at random (Poisson); every tenth is urgent.

    Output lengths are long-tailed, as those of chats are: log-normal, half of them at most 9 tokens, one in ten more
    than 70, up to 380.
    """
    rng = random.Random(seed)
    arrivals, now = [], 0.0
    for index in range(count):
        wish = f"Tell me a story about a {rng.choice(HEROES)} who wants a {rng.choice(THINGS)}."
        messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": wish}]
        tokens = min(_MOST_TOKENS, max(4, round(rng.lognormvariate(2.2, 1.6))))
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        priority = URGENT if index % _URGENT_EVERY == _URGENT_EVERY - 1 else 0
        prompt = tuple(encode_chat(messages))
        arrivals.append(Arrival(now, NewRequest(f"demo-{index}", prompt, params, priority)))
        now += rng.expovariate(rate_per_s)
    return arrivals


def _random_ids(rng: random.Random, count: int, vocab_size: int) -> tuple[int, ...]:
    return tuple(rng.randrange(vocab_size) for _ in range(count))


def total_tokens(arrivals: Sequence[Arrival]) -> tuple[int, int]:
    """(prompt tokens, most output tokens) of a workload."""
    prompt = sum(len(arrival.request.prompt) for arrival in arrivals)
    return prompt, sum(arrival.request.params.max_tokens or 0 for arrival in arrivals)
