"""What the parsers of call formats share: states, text that is held back, and calls in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from headrace.text.tools.call_json import CallReader
from headrace.text.tools.pieces import Piece, Prose, begun

State = Callable[[str, int, list[Piece]], int]
"""Reads some of text[at:], adds to the pieces, and returns where it stopped: after a character, or in another state."""


class CallParser:
    """A reply read in states. `_held` is text of a call that is not certain yet; if it is no call, it is content.

    hidden: markers to leave out of the content, see `Prose`.
    """

    marker = ""
    """Begins a call anywhere in a reply."""

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self._prose = Prose(hidden)
        self._calls = 0
        self._call: CallReader | None = None
        self._held: list[str] = []
        self._rest = ""
        """The end of the text so far, which may begin a marker."""
        self._state: State = self._read_content

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            at = self._state(text, at, pieces)
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._call is not None:
            self._call.finish()
            self._end_call(self._call, pieces)
        self._no_call(self._rest, pieces)
        self._rest = ""
        self._prose.finish(pieces)
        return pieces

    # ---- States ----

    def _read_content(self, text: str, at: int, pieces: list[Piece]) -> int:
        """Content up to the marker."""
        found = text.find(self.marker, at)
        end = begun(text, self.marker, at) if found < 0 else found
        self._prose.add(text[at:end], pieces)
        if found < 0:
            self._rest = text[end:]
            return len(text)
        self._held.append(self.marker)
        self._begin()
        return end + len(self.marker)

    def _read_call(self, text: str, at: int, pieces: list[Piece]) -> int:
        """A call in JSON."""
        assert self._call is not None
        at = self._call.read(text, at, pieces)
        if self._call.ended or self._call.broken:
            self._end_call(self._call, pieces)
        return at

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        """What follows a call."""
        raise NotImplementedError

    # ---- Changes of state ----

    def _begin(self) -> None:
        """After the marker."""
        self._begin_call()

    def _begin_call(self, names: Collection[str] | None = None) -> None:
        """A call in JSON, of one of the tools with these names, or of any tool."""
        self._call = CallReader(self._calls, names, before="".join(self._held))
        self._held = []
        self._state = self._read_call

    def _end_call(self, call: CallReader, pieces: list[Piece]) -> None:
        self._call = None
        if call.broken:
            self._no_call(call.raw, pieces)
        else:
            self._called()

    def _called(self) -> None:
        """A call is complete."""
        self._calls += 1
        self._held = []
        self._prose.call()
        self._state = self._read_after

    def _no_call(self, text: str, pieces: list[Piece]) -> None:
        """What is held, and `text`, is content."""
        self._prose.add("".join(self._held) + text, pieces)
        self._held = []
        self._state = self._read_content

    # ---- Parts of states ----

    def _hold(self, pattern: re.Pattern[str], text: str, at: int) -> int:
        """Hold what matches at text[at]. Returns where it ends."""
        match = pattern.match(text, at)
        end = at if match is None else match.end()
        self._held.append(text[at:end])
        return end
