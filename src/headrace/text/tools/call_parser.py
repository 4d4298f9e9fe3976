"""What the parsers of call formats share: states, text that is held back, calls in JSON, and those named before it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from headrace.text.tools.call_json import MAX_NAME_CHARS, USUAL_KEYS, CallReader, Keys
from headrace.text.tools.json_text import JsonSpan
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, Prose, begun, cut_off, past_space

Tools = Mapping[str, Mapping[str, Any] | None]
"""The tools of a request by name, each with the JSON Schema of its arguments, if it has one."""

State = Callable[[str, int, list[Piece]], int]
"""Reads some of text[at:], adds to the pieces, and returns where it stopped: after a character, or in another state."""


class CallParser:
    """A reply read in states. `_held` is text of a call that is not certain yet; if it is not a call, it is content.

    hidden: markers to leave out of the content, see `Prose`.
    """

    marks: tuple[str, ...] = ()
    """Each begins a call, or a list of them, anywhere in a reply."""
    closings: tuple[str, ...] = ()
    """What may follow a call, each at most once and in this order."""
    keys: Keys = USUAL_KEYS
    """Of calls in JSON."""

    def __init__(self, hidden: Collection[str] = ()) -> None:
        self._prose = Prose(hidden)
        self._any_mark = re.compile("|".join(map(re.escape, self.marks)) or r"[^\s\S]")
        self._mark = ""
        """The one that was read last."""
        self._closed = 0
        """How many of the closings cannot follow any more."""
        self._calls = 0
        self._call: CallReader | None = None
        self._span: JsonSpan | None = None
        self._held: list[str] = []
        self._word: list[str] = []
        """The name or key that is being read."""
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
        """Content up to a mark."""
        found = self._any_mark.search(text, at)
        if found is None:
            end = min((begun(text, mark, at) for mark in self.marks), default=len(text))
            self._prose.add(text[at:end], pieces)
            self._rest = text[end:]
            return len(text)
        self._prose.add(text[at : found.start()], pieces)
        self._mark = found[0]
        self._held.append(self._mark)
        self._begin()
        return found.end()

    def _read_call(self, text: str, at: int, pieces: list[Piece]) -> int:
        """A call in JSON."""
        assert self._call is not None
        at = self._call.read(text, at, pieces)
        if self._call.ended or self._call.broken:
            self._end_call(self._call, pieces)
        return at

    def _read_arguments(self, text: str, at: int, pieces: list[Piece]) -> int:
        """The arguments of a call whose name is known, an object in JSON."""
        assert self._span is not None
        end = self._span.read(text, at)
        if end > at:
            pieces.append(CallArguments(self._calls, text[at:end]))
        if self._span.ended:
            self._span = None
            self._called()
        return end

    def _read_after(self, text: str, at: int, pieces: list[Piece]) -> int:
        """What follows a call."""
        at = past_space(text, at)
        for number in range(self._closed, len(self.closings)):
            if text.startswith(self.closings[number], at):
                self._closed = number + 1
                return at + len(self.closings[number])
        if any(cut_off(text, at, mark) for mark in self.closings[self._closed :]):
            self._rest = text[at:]
            return len(text)
        self._state = self._read_content
        return at

    # ---- Changes of state ----

    def _begin(self) -> None:
        """After the marker."""
        self._begin_call()

    def _begin_call(self, names: Collection[str] | None = None) -> None:
        """A call in JSON, of one of the tools with these names, or of any tool."""
        self._call = CallReader(self._calls, names, before="".join(self._held), keys=self.keys)
        self._held = []
        self._state = self._read_call

    def _begin_arguments(self, name: str, pieces: list[Piece]) -> None:
        """The call is certain; the first character of its arguments comes next."""
        pieces.append(CallBegins(self._calls, name))
        self._held = []
        self._prose.call()
        self._span = JsonSpan()
        self._state = self._read_arguments

    def _end_call(self, call: CallReader, pieces: list[Piece]) -> None:
        self._call = None
        if call.broken:
            self._no_call(call.raw, pieces)
        else:
            self._called()

    def _called(self) -> None:
        """A call is complete."""
        self._calls += 1
        self._closed = 0
        self._held = []
        self._prose.call()
        self._state = self._read_after

    def _no_call(self, text: str, pieces: list[Piece]) -> None:
        """What is held, and `text`, is content."""
        self._prose.add("".join(self._held) + text, pieces)
        self._held = []
        self._state = self._read_content

    # ---- Parts of states ----

    def _waits(self, text: str, at: int, mark: str) -> bool:
        """Whether text[at:] may become `mark`; then it is kept for the next piece."""
        if not cut_off(text, at, mark):
            return False
        self._rest = text[at:]
        return True

    def _read_word(
        self, pattern: re.Pattern[str], text: str, at: int, pieces: list[Piece], most: int = MAX_NAME_CHARS
    ) -> int:
        """Hold a part of a word of at most so many characters; a longer one is not a call. Returns where it ends."""
        match = pattern.match(text, at)
        end = at if match is None else match.end()
        room = most - sum(map(len, self._word))
        if end - at > room:
            self._no_call(text[at : at + room], pieces)
            return at + room
        self._word.append(text[at:end])
        self._held.append(text[at:end])
        return end

    def _hold(self, pattern: re.Pattern[str], text: str, at: int) -> int:
        """Hold what matches at text[at]. Returns where it ends."""
        match = pattern.match(text, at)
        end = at if match is None else match.end()
        self._held.append(text[at:end])
        return end
