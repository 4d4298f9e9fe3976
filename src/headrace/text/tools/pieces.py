"""What a reply is made of, in order: pieces, the markers between them, and the prose around calls."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The model calls a tool; `index` counts the calls of a reply from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: all of them joined are JSON, if the model wrote JSON."""

    index: int
    text: str


Piece = Content | Reasoning | CallBegins | CallArguments


class Parser(Protocol):
    """Takes a text in pieces; see the package for what all parsers promise."""

    def push(self, text: str) -> list[Piece]:
        """Take the next piece of text; return what it makes certain."""
        ...

    def finish(self) -> list[Piece]:
        """What is left, once no more text will come."""
        ...


def begun(text: str, marker: str, start: int = 0) -> int:
    """Where the longest ending of `text` behind `start` begins that more text could make the marker; len(text) if none.

    Looks at fewer characters than the marker has.
    """
    at = max(start, len(text) - len(marker) + 1)
    while (at := text.find(marker[0], at)) >= 0:
        if marker.startswith(text[at:]):
            return at
        at += 1
    return len(text)


def cut_off(text: str, at: int, marker: str) -> bool:
    """The text ends inside of a marker that begins at `at`, or at `at` itself."""
    return len(text) - at < len(marker) and marker.startswith(text[at:])


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
