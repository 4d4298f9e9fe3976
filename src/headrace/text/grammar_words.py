"""Texts in the words of llguidance's Lark: ordinary ones, and tokens that stand for a marker as a whole."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import cached_property

from headrace.text.reply.markers import begun
from headrace.text.tokenizer import Tokenizer


def quoted(text: str) -> str:
    """A text as a string of Lark, which has JSON's escapes."""
    return json.dumps(text, ensure_ascii=False)


class Words:
    """How texts are written where `tokenizer` makes ids of them; None knows no markers.

    A marker that is a token of its own is written as that token, because llguidance takes such a token for no text.
    """

    def __init__(self, tokenizer: Tokenizer | None, markers: Collection[str]) -> None:
        self._tokenizer = tokenizer
        self._markers = tuple(markers)

    def literal(self, text: str) -> str:
        """A text, with the markers in it."""
        return " ".join(self._parts(text))

    def token(self, marker: str) -> str | None:
        """A marker as its token; None where it is text like any other."""
        found = self._structural.get(marker)
        return None if found is None else f"<[{found}]>"

    def others(self, marks: Collection[str]) -> str | None:
        """Any one token that is no text, but those whose names could make one of `marks` in a text that shows them.

        Tokens that end a text are left out, too. None where nothing is left.
        """
        assert self._tokenizer is not None or not self._structural
        ends: frozenset[int] = frozenset() if self._tokenizer is None else self._tokenizer.eos_ids
        ids = sorted(
            number
            for name, number in self._structural.items()
            if number not in ends and not any(mark in name or begun(name, mark) < len(name) for mark in marks)
        )
        return f"<[{','.join(_ranges(ids))}]>" if ids else None

    @cached_property
    def _structural(self) -> Mapping[str, int]:
        return {} if self._tokenizer is None else self._tokenizer.structural_tokens

    def _parts(self, text: str) -> list[str]:
        if not text:
            return []
        for marker in self._markers:
            token = self.token(marker)
            if token is not None and marker in text:
                before, _, after = text.partition(marker)
                return [*self._parts(before), token, *self._parts(after)]
        return [quoted(text)]


def _ranges(ids: list[int]) -> list[str]:
    """Sorted ids, neighbours together."""
    found: list[list[int]] = []
    for number in ids:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]
