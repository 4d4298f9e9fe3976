"""The requests of a benchmark client: conversations of one or more turns, with lengths and words from a seed.

Words are common English ones, so that the same seed gives the same requests to any server without its tokenizer; the
tokens per word are measured once (`WordRate`). Exact token counts are those of the server's answers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.errors import ConfigError

MAX_LEN = 2**20

WORDS = (
    "a", "the", "and", "then", "was", "it", "so", "he", "she", "they", "in", "on", "at", "to", "for",
    "with", "little", "big", "old", "new", "good", "red", "blue", "day", "night", "sun", "moon", "tree",
    "house", "river", "bird", "dog", "cat", "fox", "bear", "boy", "girl", "friend", "mother", "garden",
    "water", "home", "happy", "sad", "cold", "warm", "fast", "slow", "went", "came", "saw", "said", "made",
    "found", "took", "gave", "ran", "sat", "played", "sang", "looked", "asked", "told", "wanted", "could",
    "would"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts with a lognormal distribution, as in real chats: half are below `median`, and the
    logarithm has the standard deviation `sigma` (0: always the median). Draws outside low … high are drawn again."""

    median: float
    sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ConfigError(f"lengths must be between 1 and more than that, got {self.low} to {self.high}")

    @classmethod
    def fixed(cls, tokens: int) -> Lengths:
        return cls(tokens, 0.0, tokens, tokens)

    def within(self, high: int) -> Lengths:
        """The same, cut off above `high`, which may be below the median."""
        high = max(1, high)
        return replace(self, low=min(self.low, high), high=min(self.high, high))

    def draw(self, rng: random.Random) -> int:
        if self.sigma == 0:
            return min(self.high, max(self.low, round(self.median)))
        for _ in range(1000):
            length = round(rng.lognormvariate(math.log(self.median), self.sigma))
            if self.low <= length <= self.high:
                return length
        return self.high  # of a range far from the median


SHAREGPT_INPUT = Lengths(120, 1.1, 4, 4096)
SHAREGPT_OUTPUT = Lengths(130, 0.9, 4, 2048)
"""Means of about 220 and 195 tokens: as published for the ShareGPT conversations."""


@dataclass(frozen=True, slots=True)
class WordRate:
    """A text of n words has about `fixed + each * n` tokens, chat template included."""

    fixed: float = 0.0
    each: float = 1.3

    def words(self, tokens: int) -> int:
        """Words of a text of so many tokens, at least one."""
        return max(1, round((tokens - self.fixed) / self.each))


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    """Turns of one conversation; each is sent after the answer to the previous one."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The lengths of a session: the number of the shared text that it begins with, if any, and for each turn the tokens
    of its prompt beyond that text, and of its answer."""

    prefix: int | None
    turns: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """`prefixes`: how many texts of `prefix_tokens` there are; every session begins with one of them. 0: none."""

    inputs: Lengths = SHAREGPT_INPUT
    outputs: Lengths = SHAREGPT_OUTPUT
    turns: int = 1
    prefixes: int = 0
    prefix_tokens: int = 0

    def within(self, max_model_len: int) -> Workload:
        """Lengths cut so that whole sessions fit, with an eighth left for a chat template and words of many tokens.

        Raises ConfigError where they cannot, or where fixed lengths would have to change.
        """
        room = (max_model_len - self._shared) * 7 // 8 // self.turns
        if room < 2:
            raise ConfigError(
                f"{self.turns} turns after {self._shared} shared tokens do not fit the model's {max_model_len}"
            )
        outputs = self.outputs.within(room // 2)
        inputs = self.inputs.within(room - outputs.high)
        for given, fitting in ((self.inputs, inputs), (self.outputs, outputs)):
            if given.sigma == 0 and fitting != given and self._fixed > max_model_len:
                raise ConfigError(
                    f"{self.inputs.high} prompt and {self.outputs.high} output tokens do not fit the model's "
                    f"{max_model_len}"
                )
        if self.inputs.sigma == 0 and self.outputs.sigma == 0:
            return self
        return replace(self, inputs=inputs, outputs=outputs)

    @property
    def _shared(self) -> int:
        return self.prefix_tokens if self.prefixes else 0

    @property
    def _fixed(self) -> int:
        """The longest session."""
        return self._shared + self.turns * (self.inputs.high + self.outputs.high)

    def plans(self, seed: int) -> Iterator[SessionPlan]:
        """The lengths of an endless sequence of sessions, the same for the same seed."""
        rng = random.Random(f"workload {seed}")
        while True:
            prefix = rng.randrange(self.prefixes) if self.prefixes else None
            turns = tuple((self.inputs.draw(rng), self.outputs.draw(rng)) for _ in range(self.turns))
            yield SessionPlan(prefix, turns)

    def sessions(self, seed: int, rate: WordRate) -> Iterator[Session]:
        """The same with words: about so many tokens of them."""
        rng = random.Random(f"words {seed}")
        prefixes = [
            words(random.Random(f"prefix {seed} {number}"), rate.words(self.prefix_tokens))
            for number in range(self.prefixes)
        ]
        for plan in self.plans(seed):
            before = "" if plan.prefix is None else f"{prefixes[plan.prefix]} "
            turns = []
            for tokens, max_tokens in plan.turns:
                turns.append(Turn(before + words(rng, rate.words(tokens)), max_tokens))
                before = ""
            yield Session(tuple(turns))


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))
