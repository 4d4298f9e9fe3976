"""One call written as a JSON object, `{"name": "f", "arguments": {…}}`, read as it arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.text.tools.json_text import JsonSpan
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, past_space

MAX_NAME_CHARS = 256
"""Longest name of a tool that a model may call."""

_NAME = re.compile(r"[\w.\-:/]+", re.ASCII)
_SCALAR = re.compile(r"[\w+\-.]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of an object that is a call; it has no others."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    ignored: tuple[str, ...] = ("id", "type")


USUAL_KEYS = Keys()

_MAX_SMALL_CHARS = 4 * MAX_NAME_CHARS
"""Longest key, and longest value of an ignored key; an object with longer ones is not a call."""


def is_name(text: str) -> bool:
    """Whether it could be the name of a tool."""
    return len(text) <= MAX_NAME_CHARS and _NAME.fullmatch(text) is not None


_Expect = Callable[[str, int, list[Piece]], int]


class CallReader:
    """Reads one object. Until the call is certain, its text is kept in `raw`: it may turn out to be content.

    It is certain once the name is known and the arguments have begun, or the object has ended without any. From then
    on arguments are passed on as they arrive, and a fault only ends the call: pieces cannot be taken back.

    index: the call's number in the reply. names: the only tools that it may call; None for any.
    before: text before the object that belongs to `raw`.
    """

    def __init__(
        self, index: int, names: Collection[str] | None = None, before: str = "", keys: Keys = USUAL_KEYS
    ) -> None:
        self.index = index
        self.certain = False
        self.ended = False
        self.broken = False
        self._names = names
        self._keys = keys
        self._raw = [before]
        self._name: str | None = None
        self._key: str | None = None
        self._early: list[str] | None = None
        """Arguments that came before the name."""
        self._has_arguments = False
        self._small: list[str] | None = None
        """The key or value that is being read, where it matters as a whole."""
        self._small_chars = 0
        self._span: JsonSpan | None = None
        self._expect: _Expect = self._open

    @property
    def raw(self) -> str:
        """What has been read of an object that is not a call."""
        return "".join(self._raw)

    def read(self, text: str, at: int, pieces: list[Piece]) -> int:
        """Read from text[at] on; returns where this object ends (`ended`), where it breaks (`broken`), or len(text)."""
        while at < len(text) and not (self.ended or self.broken):
            start = at
            at = self._expect(text, at, pieces)
            if not self.certain:
                self._raw.append(text[start:at])
        return at

    def finish(self) -> None:
        """There is no more text; a call that is not certain is broken."""
        if not (self.certain or self.ended):
            self.broken = True

    # ---- What may come next. Each takes some of the text and returns where it stopped. ----

    def _open(self, text: str, at: int, pieces: list[Piece]) -> int:
        return self._mark(text, at, "{", self._first_key)

    def _first_key(self, text: str, at: int, pieces: list[Piece]) -> int:
        at = past_space(text, at)
        if text[at : at + 1] == "}":
            return self._close(at, pieces)
        return self._begin_key(text, at)

    def _next_key(self, text: str, at: int, pieces: list[Piece]) -> int:
        return self._begin_key(text, past_space(text, at))

    def _begin_key(self, text: str, at: int) -> int:
        if at < len(text):
            if text[at] != '"':
                return self._fail(at)
            self._begin_small(self._key_text)
        return at

    def _key_text(self, text: str, at: int, pieces: list[Piece]) -> int:
        at, value = self._read_small(text, at)
        if value is not None:
            self._key = value
            if value != self._keys.name and value not in (*self._keys.arguments, *self._keys.ignored):
                return self._fail(at)
            self._expect = self._colon
        return at

    def _colon(self, text: str, at: int, pieces: list[Piece]) -> int:
        return self._mark(text, at, ":", self._value)

    def _value(self, text: str, at: int, pieces: list[Piece]) -> int:
        at = past_space(text, at)
        if at == len(text):
            return at
        first = text[at]
        if self._key in self._keys.arguments:
            if self._has_arguments:
                return self._fail(at)
            self._has_arguments = True
        if self._key in self._keys.arguments and first == "{":
            self._span = JsonSpan()
            self._expect = self._arguments
            self._begin_arguments(pieces)
        elif first == '"':
            self._begin_small(
                self._arguments_text if self._key in self._keys.arguments else self._string_value
            )
        elif self._key in self._keys.arguments or self._key in self._keys.ignored:
            self._small, self._small_chars = [], 0
            self._expect = self._scalar
        else:
            return self._fail(at)
        return at

    def _arguments(self, text: str, at: int, pieces: list[Piece]) -> int:
        assert self._span is not None
        end = self._span.read(text, at)
        self._add_arguments(text[at:end], pieces)
        if self._span.ended:
            self._expect = self._after_value
        return end

    def _arguments_text(self, text: str, at: int, pieces: list[Piece]) -> int:
        """Arguments as a string that holds JSON, passed on once that is certain."""
        at, value = self._read_small(text, at, limited=False)
        if value is not None:
            if not _is_object(value):
                return self._fail(at)
            self._begin_arguments(pieces)
            self._add_arguments(value, pieces)
            self._expect = self._after_value
        return at

    def _string_value(self, text: str, at: int, pieces: list[Piece]) -> int:
        at, value = self._read_small(text, at)
        if value is not None:
            if self._key == self._keys.name and self._name is None:
                if not is_name(value) or not (self._names is None or value in self._names):
                    return self._fail(at)
                self._name = value
                if self._early is not None:
                    self._commit(pieces)
            self._expect = self._after_value
        return at

    def _scalar(self, text: str, at: int, pieces: list[Piece]) -> int:
        assert self._small is not None
        match = _SCALAR.match(text, at)
        end = at if match is None else match.end()
        if self._small_chars + end - at > _MAX_SMALL_CHARS:
            return self._fail(at + _MAX_SMALL_CHARS - self._small_chars)
        self._small.append(text[at:end])
        self._small_chars += end - at
        if end < len(text):
            word, self._small = "".join(self._small), None
            if not word or (self._key in self._keys.arguments and word != "null"):
                return self._fail(end)
            self._expect = self._after_value
        return end

    def _after_value(self, text: str, at: int, pieces: list[Piece]) -> int:
        at = past_space(text, at)
        if text[at : at + 1] == "}":
            return self._close(at, pieces)
        return self._mark(text, at, ",", self._next_key)

    # ---- Parts of these ----

    def _mark(self, text: str, at: int, mark: str, follow: _Expect) -> int:
        """White space, then the character `mark`; `follow` comes next."""
        at = past_space(text, at)
        if at == len(text):
            return at
        if text[at] != mark:
            return self._fail(at)
        self._expect = follow
        return at + 1

    def _begin_small(self, follow: _Expect) -> None:
        self._small, self._small_chars = [], 0
        self._span = JsonSpan()
        self._expect = follow

    def _read_small(self, text: str, at: int, limited: bool = True) -> tuple[int, str | None]:
        """(where it stopped, the string if it has ended)."""
        assert self._span is not None and self._small is not None
        end = self._span.read(text, at)
        if limited and self._small_chars + end - at > _MAX_SMALL_CHARS:
            # At the same character for any pieces, as the result must not depend on them.
            return self._fail(at + _MAX_SMALL_CHARS - self._small_chars), None
        self._small.append(text[at:end])
        self._small_chars += end - at
        if not self._span.ended:
            return end, None
        written, self._small = "".join(self._small), None
        try:
            value = json.loads(written, strict=False)
            value.encode()
        except ValueError:  # no JSON, or half of a surrogate pair
            return self._fail(end), None
        return end, value

    def _commit(self, pieces: list[Piece]) -> None:
        if self.certain:
            return
        assert self._name is not None
        self.certain = True
        self._raw = []
        pieces.append(CallBegins(self.index, self._name))
        if self._early:
            pieces.append(CallArguments(self.index, "".join(self._early)))
        self._early = []

    def _begin_arguments(self, pieces: list[Piece]) -> None:
        if self._name is None:
            self._early = []
        else:
            self._commit(pieces)

    def _add_arguments(self, text: str, pieces: list[Piece]) -> None:
        if not self.certain:
            assert self._early is not None
            self._early.append(text)
        elif text:
            pieces.append(CallArguments(self.index, text))

    def _close(self, at: int, pieces: list[Piece]) -> int:
        if self._name is None:
            return self._fail(at)
        if not self.certain:
            self._early = ["{}"]
            self._commit(pieces)
        self.ended = True
        return at + 1

    def _fail(self, at: int) -> int:
        if self.certain:
            self.ended = True
        else:
            self.broken = True
        return at


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
