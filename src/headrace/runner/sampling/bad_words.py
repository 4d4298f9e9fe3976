"""Sequences of tokens that must not occur: which token would complete one, given the output so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class BadWords:
    """The sequences of one request, and the end of one output.

    Sequences are looked up by the tokens before their last one: one lookup for each length that occurs, however many
    sequences there are. Prompts do not count, as in vLLM.
    """

    __slots__ = ("_ends", "_lasts", "_lengths")

    def __init__(self, sequences: Iterable[Sequence[int]], output: Iterable[int] = ()) -> None:
        """`sequences` of at least two tokens; `output` is what has been emitted already."""
        self._lasts: dict[tuple[int, ...], list[int]] = {}  # by the tokens before
        for sequence in sequences:
            self._lasts.setdefault(tuple(sequence[:-1]), []).append(sequence[-1])
        self._lengths = sorted({len(before) for before in self._lasts})
        self._ends = deque(output, maxlen=self._lengths[-1])

    def add(self, tokens: Iterable[int]) -> None:
        """Record emitted tokens."""
        self._ends.extend(tokens)

    def banned(self, assumed: Sequence[int] = ()) -> list[int]:
        """The tokens that would complete a sequence, as if `assumed` had been emitted too; some perhaps twice."""
        end = (*self._ends, *assumed)
        found: list[int] = []
        for length in self._lengths:
            if length > len(end):
                break
            found += self._lasts.get(end[-length:], ())
        return found
