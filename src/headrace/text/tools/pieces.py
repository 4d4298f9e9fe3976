"""What a reply consists of, in order: pieces, the markers between them, and the text around calls."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text in which the model reasons."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The model calls a tool; `index` counts the calls of a reply from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A part of a call's arguments. All parts joined are JSON, if the model wrote JSON."""

    index: int
    text: str


Piece = Content | Reasoning | CallBegins | CallArguments


class Parser(Protocol):
    """Takes a text in pieces; see the package for what holds for all parsers."""

    def push(self, text: str) -> list[Piece]:
        """Take the next piece of text; return what is certain now."""
        ...

    def finish(self) -> list[Piece]:
        """The rest, after the last piece of text."""
        ...


def begun(text: str, marker: str, start: int = 0) -> int:
    """Where the longest end of `text` after `start` begins that more text could complete to the marker; len(text) if
    there is none.

    Reads fewer characters than the marker has.
    """
    at = max(start, len(text) - len(marker) + 1)
    while (at := text.find(marker[0], at)) >= 0:
        if marker.startswith(text[at:]):
            return at
        at += 1
    return len(text)


def cut_off(text: str, at: int, marker: str) -> bool:
    """Whether the text ends inside a marker that begins at `at`, or at `at` itself."""
    return len(text) - at < len(marker) and marker.startswith(text[at:])


_SPACE = re.compile(r"\s*")


def past_space(text: str, at: int) -> int:
    """Where the white space at text[at] ends."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


class Prose:
    """Content. White space next to a call is dropped, so it is held back until what follows it is known.

    hidden: markers that are left out. They were special tokens, which parsers need and content does not show.
    """

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self._hidden = tuple(hidden)
        self._marker = re.compile("|".join(map(re.escape, hidden))) if hidden else None
        self._cut = ""
        """The end of the text so far, if it may begin a hidden marker."""
        self._spaces: list[str] = []
        self._after_call = False

    def add(self, text: str, pieces: list[Piece]) -> None:
        """More content."""
        if self._marker is not None:
            text = self._without_markers(self._marker, self._cut + text)
        self._add(text, pieces)

    def call(self) -> None:
        """There is a call here."""
        self._cut = ""
        self._spaces = []
        self._after_call = True

    def finish(self, pieces: list[Piece]) -> None:
        """After the last piece."""
        cut, self._cut = self._cut, ""
        self._add(cut, pieces)
        if self._spaces:
            pieces.append(Content("".join(self._spaces)))
            self._spaces = []

    def _add(self, text: str, pieces: list[Piece]) -> None:
        if self._after_call:
            text = text.lstrip()
            if not text:
                return
            self._after_call = False
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
