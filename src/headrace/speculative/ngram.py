"""Prompt look-up: what followed the last tokens where they stood before is likely to follow them again.

Saxena, "Prompt lookup decoding" (2023). It costs a few look-ups a token and pays where an answer repeats its prompt:
summaries, edits, code, quotations.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.types import BlockCopy
from headrace.runner.drafting import Drafted
from headrace.speculative.method import NOTHING, Proposal


class NGramIndex:
    """The places in one sequence where its last tokens stood before.

    `at` is the place after the earlier occurrence that is followed now, None where there is none, and `length` the
    number of equal tokens before it. An occurrence is followed as long as it goes on; then the latest one of the
    longest of `sizes` tokens is taken.
    """

    __slots__ = ("_places", "_tokens", "at", "length")

    def __init__(self, sizes: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._places: dict[int, dict[tuple[int, ...], int]] = {
            size: {} for size in sorted(sizes, reverse=True)
        }
        self.at: int | None = None
        self.length = 0

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the sequence."""
        history = self._tokens
        for token in tokens:
            going_on = self.at is not None and history[self.at] == token
            history.append(token)
            if going_on:
                assert self.at is not None
                self.at, self.length = self.at + 1, self.length + 1
            else:
                self.at, self.length = None, 0
            for size, places in self._places.items():
                if len(history) < size:
                    continue
                key = tuple(history[-size:])
                if self.at is None and (place := places.get(key)) is not None:
                    self.at, self.length = place, size
                places[key] = len(history)

    def continuation(self, count: int) -> tuple[int, ...]:
        """Up to `count` tokens that followed the earlier occurrence; it may run into the present and repeat."""
        if self.at is None:
            return ()
        history, at = self._tokens, self.at
        found = history[at : at + count]
        period = len(history) - at
        while len(found) < count:  # the occurrence ends where the sequence does: its period goes on
            found.append(found[len(found) - period])
        return tuple(found)


class NGramMethod:
    """Drafts from each sequence's own tokens; satisfies `method.Method`.

    An occurrence of n equal tokens is followed for at most n times `factor` tokens.
    """

    name, free, needs_hidden, needs_states, outline = "ngram", True, False, False, None

    def __init__(self, sizes: Sequence[int] = (2, 4), factor: int = 2) -> None:
        self._sizes, self._factor = tuple(sizes), factor
        self._indices: dict[int, NGramIndex] = {}

    def propose(self, sequences: Sequence[Drafted]) -> list[Proposal]:
        return [self._propose(one) for one in sequences]

    def _propose(self, one: Drafted) -> Proposal:
        if not one.room:
            return NOTHING
        index = self._indices.get(one.request_id)
        if index is None:
            index = self._indices[one.request_id] = NGramIndex(self._sizes)
        index.extend(one.tokens[len(index) :])
        tokens = index.continuation(min(one.room, self._factor * index.length))
        return Proposal(tokens, index.length.bit_length())

    def pass_over(self, sequences: Sequence[Drafted]) -> None:
        """It reads what it missed when it is asked again."""

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """There is no KV."""

    def release(self, request_id: int) -> None:
        self._indices.pop(request_id, None)
