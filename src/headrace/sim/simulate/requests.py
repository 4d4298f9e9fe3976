"""Requests as the simulation sends them, with prompts made up so that they share what was said to be shared."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.sim.simulate.executor import answer

Prompt = tuple[int, ...]

_FILLER_SEED = 0
_FIRST_FILLER = 4096


@dataclass(frozen=True, slots=True)
class Turn:
    """`prompt_tokens` more than the conversation had before, and the length of the answer."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: turn `turn` of conversation `number`. later: the turns that follow, each once the one before was
    answered."""

    number: int
    arrival_s: float
    prompt: Prompt
    output_tokens: int
    user: str = ""
    later: tuple[Turn, ...] = ()
    turn: int = 0

    @property
    def key(self) -> str:
        """The id of the request."""
        return f"sim-{self.number}" if not self.turn else f"sim-{self.number}-{self.turn}"


class Asks(Protocol):
    """Where requests come from."""

    def first(self) -> Iterator[Ask]:
        """The first requests of all conversations, in the order of their arrival."""
        ...

    def after(self, ask: Ask, now: float) -> Ask | None:
        """The request that follows one that was answered at `now`, if there is one."""
        ...


class Prompts:
    """Makes prompts of token ids. Two prompts have a prefix in common only where they were made with the same one."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._filler: Prompt = ()

    def unique(self, number: int, count: int) -> Prompt:
        """`count` tokens, of which the first three are the number's digits: no other number's prompt begins so."""
        size = self._vocab_size
        digits = (number % size, number // size % size, number // size**2 % size)
        return (*digits[:count], *self.filler(count - len(digits)))

    def filler(self, count: int) -> Prompt:
        """`count` tokens, always the same ones."""
        if count <= 0:
            return ()
        if len(self._filler) < count:
            rng = random.Random(_FILLER_SEED)
            length = max(_FIRST_FILLER, 2 * count)
            self._filler = tuple(rng.choices(range(self._vocab_size), k=length))
        return self._filler[:count]

    def next(self, ask: Ask, turn: Turn) -> Prompt:
        """The prompt of the next turn: all that was said before, and more."""
        return (*ask.prompt, *answer(ask.prompt, ask.output_tokens), *self.filler(turn.prompt_tokens))
