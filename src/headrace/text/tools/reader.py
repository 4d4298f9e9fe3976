"""A reply as it arrives: reasoning first, then content and calls."""

from __future__ import annotations

from headrace.text.tools.harmony import HarmonyParser
from headrace.text.tools.pieces import CallArguments, CallBegins, Content, Parser, Piece
from headrace.text.tools.reasoning import ReasoningParser


class ReplyReader:
    """Parses the text of one completion.

    reasoning: reads it first, and may read calls, too. calls: reads the content that `reasoning` leaves.
    single: only the first call counts; others are dropped.
    """

    def __init__(
        self,
        reasoning: ReasoningParser | HarmonyParser | None = None,
        calls: Parser | None = None,
        *,
        single: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._single = single

    @property
    def reasons(self) -> bool:
        """Whether the next text may be reasoning."""
        return self._reasoning is not None and self._reasoning.reasons

    def push(self, text: str) -> list[Piece]:
        """The next piece of text."""
        if self._reasoning is None:
            pieces: list[Piece] = [Content(text)] if text else []
        else:
            pieces = self._reasoning.push(text)
        return self._split(pieces)

    def finish(self) -> list[Piece]:
        """The rest, after the last piece of text."""
        pieces = [] if self._reasoning is None else self._split(self._reasoning.finish())
        if self._calls is not None:
            pieces += self._selected(self._calls.finish())
        return pieces

    def _split(self, pieces: list[Piece]) -> list[Piece]:
        if self._calls is None:
            return self._selected(pieces)
        split: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content):
                split += self._selected(self._calls.push(piece.text))
            else:
                split.append(piece)
        return split

    def _selected(self, pieces: list[Piece]) -> list[Piece]:
        if not self._single:
            return pieces
        return [
            piece for piece in pieces if not (isinstance(piece, (CallBegins, CallArguments)) and piece.index)
        ]


class OnlyCalls:
    """A parser of answers that a grammar restricts to calls: other text is the beginning of an incomplete call."""

    def __init__(self, calls: Parser) -> None:
        self._calls = calls

    def push(self, text: str) -> list[Piece]:
        """See Parser."""
        return [piece for piece in self._calls.push(text) if not isinstance(piece, Content)]

    def finish(self) -> list[Piece]:
        """See Parser."""
        return [piece for piece in self._calls.finish() if not isinstance(piece, Content)]


class LeadingCalls:
    """A parser of answers that are either calls or content. An answer that does not begin with a call is content to its
    end, even if there are markers in it, such as in strings of JSON; otherwise `calls` reads all of it."""

    def __init__(self, calls: Parser) -> None:
        self._calls: Parser | None = calls
        self._undecided: list[str] | None = []

    def push(self, text: str) -> list[Piece]:
        """See Parser."""
        if self._calls is None:
            return [Content(text)]
        return self._decided(text, self._calls.push(text))

    def finish(self) -> list[Piece]:
        """See Parser."""
        return [] if self._calls is None else self._decided("", self._calls.finish())

    def _decided(self, text: str, pieces: list[Piece]) -> list[Piece]:
        if self._undecided is None:
            return pieces
        self._undecided.append(text)
        if not pieces:
            return []
        start, self._undecided = "".join(self._undecided), None
        if isinstance(pieces[0], Content):
            self._calls = None
            return [Content(start)]
        return pieces
