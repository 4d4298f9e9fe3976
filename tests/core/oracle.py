"""A tiny model: every output depends on every visible key, and on nothing else.

The hidden state at a position is a hash over the tenant (the cache salt), the token, the position and the hidden
states that each KV group's retention lets it see; that hash is also the "KV" of the position. One wrong,
missing or foreign key anywhere in the past therefore changes all later tokens. Hashes of integers and tuples of
integers do not depend on PYTHONHASHSEED.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from headrace.core.params import SamplingParams
from headrace.core.types import KVGroupSpec, Pooling, TokenLogprobs


def visible(group: KVGroupSpec, position: int) -> tuple[int, ...]:
    """Earlier positions whose keys the query at `position` sees."""
    return _visible(group.reach, group.sinks, position)


@cache
def _visible(window: int | None, sinks: int, position: int) -> tuple[int, ...]:
    first = 0 if window is None else max(0, position - window + 1)
    return (*range(min(sinks, first)), *range(first, position))


def hidden_state(tenant: str, token: int, position: int, seen: tuple[tuple[int, ...], ...]) -> int:
    """`seen` holds, for each KV group, the hidden states at its visible positions."""
    return hash((*tenant.encode(), -1, token, position, seen)) & 0xFFFFFFFFFFFF


def score(hidden: int, token: int) -> TokenLogprobs:
    """The log-probability of `token` after a position."""
    return TokenLogprobs(token, -(hash((hidden, token)) % 1000) / 100, 1)


def pooled(kind: Pooling, states: Sequence[int]) -> bytes:
    """The embedding of a prompt with these hidden states; the order matters, as it does for rounding."""
    return repr(tuple(states) if kind is Pooling.MEAN else states[-1]).encode()


@dataclass(frozen=True)
class Sampling:
    """The inputs of sampling besides the hidden state and the position in the output."""

    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    vocab: int

    def choose(self, hidden: int, output_position: int) -> int:
        randomness = 0 if self.params.greedy else self.seed
        token = hash((hidden, randomness, output_position)) % self.vocab
        while output_position < self.params.min_tokens and token in self.stop_ids:
            token = (token + 1) % self.vocab
        return token


class Oracle:
    """The model over one growing sequence, with all past states in a plain list: no blocks, no engine."""

    def __init__(self, groups: Sequence[KVGroupSpec], tenant: str, tokens: Sequence[int]) -> None:
        self._groups = groups
        self._tenant = tenant
        self.states: list[int] = []
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        position = len(self.states)
        seen = tuple(tuple([self.states[p] for p in visible(group, position)]) for group in self._groups)
        self.states.append(hidden_state(self._tenant, token, position, seen))

    def fork(self) -> Oracle:
        twin = Oracle(self._groups, self._tenant, ())
        twin.states = list(self.states)
        return twin


def propose(oracle: Oracle, sampling: Sampling, num_prompt: int, *, good: int, bad: int) -> tuple[int, ...]:
    """`good` draft tokens that the model will accept, then `bad` ones that it will not, unless all are good."""
    oracle = oracle.fork()
    draft = []
    for index in range(good + bad):
        token = sampling.choose(oracle.states[-1], len(oracle.states) - num_prompt)
        if index >= good:
            token = (token + 1) % sampling.vocab
        draft.append(token)
        oracle.push(token)
    return tuple(draft)


def propose_tree(
    oracle: Oracle, sampling: Sampling, num_prompt: int, *, good: int, wrong: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`good` nested draft tokens that the model will accept and `wrong` others, as tokens and parents (see core.trees).

    Where the wrong ones stand depends on the sequence: before the right one of their depth or after it, and some of
    them after another wrong one.
    """
    right = propose(oracle, sampling, num_prompt, good=good + 1, bad=0)
    mix = hash(tuple(oracle.states[-3:])) & 0xFFFFFF
    tokens: list[int] = []
    parents: list[int] = []

    def add(token: int, parent: int) -> int:
        tokens.append(token % sampling.vocab)
        parents.append(parent)
        return len(tokens) - 1

    last = -1
    for index in range(good + 1):
        count = wrong if index == good else min(wrong, (mix >> index) % 3)
        wrong -= count
        before = (mix >> (index + 5)) % (count + 1)
        earlier, here = last, -1
        for at in range(count + 1):
            if at == before:
                if index < good:
                    here = add(right[index], last)
                continue
            nested = earlier != last and (mix >> (at + index)) % 2
            earlier = add(right[index] + at + 1, earlier if nested else last)
        last = here
    return tuple(tokens), tuple(parents)
