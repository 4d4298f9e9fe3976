"""Content around calls, without the white space that only separates them."""

from __future__ import annotations

from headrace.text.reply.pieces import Content, Piece


class Prose:
    """White space beside a call is dropped, so it is kept back until what follows it is known."""

    def __init__(self) -> None:
        self._spaces: list[str] = []
        self._behind_call = False

    def add(self, text: str, pieces: list[Piece]) -> None:
        """More content."""
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

    def call(self) -> None:
        """A call stands here."""
        self._spaces = []
        self._behind_call = True

    def finish(self, pieces: list[Piece]) -> None:
        """No more will come."""
        if self._spaces:
            pieces.append(Content("".join(self._spaces)))
            self._spaces = []
