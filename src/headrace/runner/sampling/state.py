"""What the sampler keeps of one sequence: parameters, seed, output length and counts of its tokens."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.core.params import SamplingParams
from headrace.core.types import NewSequence
from headrace.runner.sampling.bad_words import BadWords

if TYPE_CHECKING:
    from headrace._native import SampleRules
    from headrace.runner.sampling.token_masks import Matcher

_FIRST_CAPACITY = 64

WIDTHS = (64, 256, 1024)
"""Prefixes of the sorted row that are tried before a full sort. See `first_width`."""


def first_width(k: int, vocab_size: int) -> int:
    """The narrowest prefix that can decide the first k ranks with one more value after them.

    A partial selection pays off up to an eighth of the vocabulary; past that the whole row is sorted.
    """
    return next((w for w in WIDTHS if k < w <= vocab_size // 8), vocab_size)


class Draw(enum.IntEnum):
    """How a sequence's token is chosen: depends on its own parameters, never on its batch."""

    GREEDY = 0  # argmax of the untouched logits
    EDITED = 1  # argmax after masks, bias or penalties
    WHOLE = 2  # from the whole distribution
    NUCLEUS = 3  # top_p alone: sorted, the mass is measured over the whole vocabulary
    RANKED = 4  # top_k, with or without top_p: only the first `width` ranks matter


class SeenTokens:
    """Distinct tokens of one sequence, with what presence and frequency penalties subtract from their logits.

    Tokens of the prompt alone subtract nothing; they are kept only where a repetition penalty needs them.
    """

    __slots__ = ("_amounts", "_counts", "_frequency", "_ids", "_presence", "_size", "_slots", "_vocab_size")

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._vocab_size = vocab_size
        kept = prompt if params.repetition_penalty != 1.0 else ()
        distinct = np.unique(np.array(kept, dtype=np.int64))
        distinct = distinct[(distinct >= 0) & (distinct < vocab_size)]
        self._size = len(distinct)
        capacity = max(_FIRST_CAPACITY, 2 * self._size)
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._counts = np.zeros(capacity, dtype=np.int64)
        self._amounts = np.zeros(capacity, dtype=np.float32)
        self._ids[: self._size] = distinct
        self._slots: dict[int, int] = {token: slot for slot, token in enumerate(distinct.tolist())}

    def add(self, tokens: Iterable[int]) -> None:
        """Count output tokens. Ids outside the vocabulary have no logit and are skipped."""
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                continue
            slot = self._slots.get(token)
            if slot is None:
                slot = self._append(token)
            self._counts[slot] += 1
            self._amounts[slot] = self._amount(int(self._counts[slot]))

    def entries(self, assumed: Sequence[int] = ()) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Token ids [E], each once, and the amounts [E] to subtract, as if `assumed` had been emitted too.

        Without `assumed` these are views, valid until the next `add`.
        """
        ids, amounts = self._ids[: self._size], self._amounts[: self._size]
        if not assumed:
            return ids, amounts
        amounts = amounts.copy()
        new_ids: list[int] = []
        new_amounts: list[float] = []
        for token, times in Counter(assumed).items():
            slot = self._slots.get(token)
            if slot is not None:
                amounts[slot] = self._amount(int(self._counts[slot]) + times)
            elif 0 <= token < self._vocab_size:
                new_ids.append(token)
                new_amounts.append(self._amount(times))
        return (
            np.concatenate((ids, np.array(new_ids, dtype=np.int64))),
            np.concatenate((amounts, np.array(new_amounts, dtype=np.float32))),
        )

    def _amount(self, count: int) -> float:
        return self._frequency * count + self._presence

    def _append(self, token: int) -> int:
        slot = self._size
        if slot == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._amounts = np.concatenate((self._amounts, np.zeros_like(self._amounts)))
        self._ids[slot] = token
        self._slots[token] = slot
        self._size += 1
        return slot


class SequenceState:
    """The sampler's view of one sequence. Created from a NewSequence; `extend` records every emitted token.

    Raises InvalidParams where the parameters name token ids outside the vocabulary.
    """

    __slots__ = (
        "__weakref__", "bad_words", "banned", "draw", "follows_output", "matcher", "min_tokens", "num_output", "params",
        "rules", "seed", "seen", "stop_ids", "width",
    )  # fmt: skip

    def __init__(self, new: NewSequence, vocab_size: int, matcher: Matcher | None = None) -> None:
        params = new.params
        params.check_vocab(vocab_size)
        self.params = params
        self.matcher = matcher
        # A grammar's masks ban stop ids themselves: only they know when no other token is allowed.
        self.min_tokens = params.min_tokens if matcher is None else 0
        self.seed = new.seed
        self.num_output = len(new.tokens) - new.num_prompt
        self.rules: SampleRules | None = None  # the native sampler's own form of the parameters
        # An end-of-sequence id past the model's vocabulary can never be sampled, so it needs no ban.
        self.stop_ids = np.array(sorted(t for t in new.stop_ids if 0 <= t < vocab_size), dtype=np.int64)
        self.seen: SeenTokens | None = None
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            self.seen = SeenTokens(params, new.tokens[: new.num_prompt], vocab_size)
            self.seen.add(new.tokens[new.num_prompt :])
        words = [word for word in params.bad_words if not isinstance(word, str)]
        self.banned = (*(params.banned_token_ids or ()), *(word[0] for word in words if len(word) == 1))
        """Tokens that are never sampled."""
        longer = [word for word in words if len(word) > 1]
        self.bad_words = BadWords(longer, new.tokens[new.num_prompt :]) if longer else None
        self.follows_output = self.seen is not None or self.bad_words is not None
        """Some logits change with the output so far."""
        self.draw = self._choose_draw(vocab_size)
        self.width = first_width(params.top_k, vocab_size) if self.draw is Draw.RANKED else 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Record tokens that the sequence has emitted, and that its matcher has accepted already."""
        self.num_output += len(tokens)
        if self.follows_output:
            if self.seen is not None:
                self.seen.add(tokens)
            if self.bad_words is not None:
                self.bad_words.add(tokens)

    def subtracted(self, assumed: Sequence[int] = ()) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
        """Token ids [E] and the amounts [E] to subtract from their logits, as if `assumed` had been emitted too: the
        penalties, then infinity for what would complete a bad word. None for nothing."""
        entries = None if self.seen is None else self.seen.entries(assumed)
        banned = () if self.bad_words is None else self.bad_words.banned(assumed)
        if not banned:
            return entries
        ids, amounts = np.array(banned, dtype=np.int64), np.full(len(banned), np.inf, dtype=np.float32)
        if entries is None:
            return ids, amounts
        return np.concatenate((entries[0], ids)), np.concatenate((entries[1], amounts))

    def _choose_draw(self, vocab_size: int) -> Draw:
        params = self.params
        if params.greedy:
            masked = self.matcher is not None or params.allowed_token_ids is not None or self.banned
            edited = masked or params.logit_bias or self.min_tokens or self.follows_output
            return Draw.EDITED if edited else Draw.GREEDY
        if 0 < params.top_k < vocab_size:
            return Draw.RANKED
        return Draw.NUCLEUS if params.top_p < 1.0 else Draw.WHOLE


class SampleRow(NamedTuple):
    """One row of logits to sample from: a sequence, and the tokens assumed to follow its recorded output.

    `assumed` is empty in ordinary decoding. For the verification of a draft, the row after draft token i
    assumes the first i draft tokens, which sets its output position and is counted by the penalties.
    """

    state: SequenceState
    assumed: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """The output position of the token to be sampled, from 0."""
        return self.state.num_output + len(self.assumed)
