"""Replies put together again from their pieces, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.text.tools.pieces import CallArguments, CallBegins, Content, Piece, Reasoning


@dataclass
class Reply:
    """calls: [name, arguments] in order."""

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)


def reply_of(pieces: Iterable[Piece]) -> Reply:
    """The reply that pieces make, which must come in order."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[str, list[str]]] = []
    for piece in pieces:
        match piece:
            case Content(text):
                content.append(text)
            case Reasoning(text):
                reasoning.append(text)
            case CallBegins(index, name):
                assert index == len(calls)
                calls.append((name, []))
            case CallArguments(index, text):
                assert index == len(calls) - 1
                calls[index][1].append(text)
    return Reply("".join(content), "".join(reasoning), [[name, "".join(parts)] for name, parts in calls])


def read(parser: object, pieces: Iterable[str]) -> Reply:
    """The reply that a parser or reader makes of these pieces of text."""
    said: list[Piece] = []
    for piece in pieces:
        said += parser.push(piece)  # type: ignore[attr-defined]
    return reply_of(said + parser.finish())  # type: ignore[attr-defined]
