"""The requests that every technique serves: long-tailed answers after one shared prompt."""

from __future__ import annotations

import random

from headrace.bench.workload import Arrival, shared_prompt_chats
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.text.tokenizer import Tokenizer

SHARED_TOKENS, OWN_TOKENS = 96, 24
_MOST_TOKENS = 380


def requests(count: int, tokenizer: Tokenizer | None, vocab_size: int, rate_per_s: float) -> list[Arrival]:
    """Greedy requests of exact lengths, arriving at random: chats where the model has a template, else random tokens.

    Equal for equal arguments.
    """
    if tokenizer is not None and tokenizer.has_chat_template:
        return shared_prompt_chats(count, tokenizer.encode_chat, rate_per_s=rate_per_s)
    rng = random.Random("techniques")
    shared = [rng.randrange(vocab_size) for _ in range(SHARED_TOKENS)]
    arrivals, now = [], 0.0
    for index in range(count):
        own = [rng.randrange(vocab_size) for _ in range(OWN_TOKENS)]
        tokens = min(_MOST_TOKENS, max(4, round(rng.lognormvariate(2.2, 1.6))))
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        arrivals.append(Arrival(now, NewRequest(f"report-{index}", (*shared, *own), params)))
        now += rng.expovariate(rate_per_s)
    return arrivals
