"""What a reply is made of, in the order in which it was said."""

from __future__ import annotations

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
