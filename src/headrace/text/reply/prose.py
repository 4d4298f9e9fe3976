"""Content around calls, without the white space that only separates them."""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.text.reply.markers import begun
from headrace.text.reply.pieces import Content, Piece


class Prose:
    """White space beside a call is dropped, so it is kept back until what follows it is known.

    hidden: markers that are left out. They were special tokens, which are shown to parsers and not to readers.
    """

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self._hidden = tuple(hidden)
        self._marker = re.compile("|".join(map(re.escape, hidden))) if hidden else None
        self._cut = ""
        """The end of the text so far, if it may begin a hidden marker."""
        self._spaces: list[str] = []
        self._behind_call = False

    def before(self, marker: str, text: str, at: int, pieces: list[Piece]) -> tuple[int, str]:
        """Add what stands in front of `marker` in text[at:].

        Returns (where the marker is, "") or (-1, what at the end may be its beginning).
        """
        found = text.find(marker, at)
        end = begun(text, marker, at) if found < 0 else found
        self.add(text[at:end], pieces)
        return found, text[end:] if found < 0 else ""

    def add(self, text: str, pieces: list[Piece]) -> None:
        """More content."""
        if self._marker is not None:
            text = self._without_markers(self._marker, self._cut + text)
        self._add(text, pieces)

    def call(self) -> None:
        """A call stands here."""
        self._cut = ""
        self._spaces = []
        self._behind_call = True

    def finish(self, pieces: list[Piece]) -> None:
        """No more will come."""
        cut, self._cut = self._cut, ""
        self._add(cut, pieces)
        if self._spaces:
            pieces.append(Content("".join(self._spaces)))
            self._spaces = []

    def _add(self, text: str, pieces: list[Piece]) -> None:
        if self._behind_call:
            text = text.lstrip()
            if not text:
                return
            self._behind_call = False
        body = text.rstrip()
        if body:
            pieces.append(Content("".join(self._spaces) + body))
            self._spaces = []
        if len(body) < len(text):
            self._spaces.append(text[len(body) :])

    def _without_markers(self, marker: re.Pattern[str], text: str) -> str:
        left, at = [], 0
        for found in marker.finditer(text):
            left.append(text[at : found.start()])
            at = found.end()
        end = min(begun(text, each, at) for each in self._hidden)
        self._cut = text[end:]
        return "".join([*left, text[at:end]])


class PlainParser:
    """A reply without calls. hidden: markers to leave out."""

    def __init__(self, hidden: Collection[str]) -> None:
        self._prose = Prose(hidden)

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        self._prose.add(text, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        self._prose.finish(pieces)
        return pieces
