"""Calls as FunctionGemma and Gemma 4 write them: `MARK call:NAME{key:QUOTE text QUOTE,other:[1,true]} CLOSING`.

Keys and words stand bare, and a marker takes the place of quotes. Arguments are passed on as JSON as they arrive. JSON
itself is read, too: forced calls have it between the braces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from headrace.text.tools.call_json import MAX_NAME_CHARS, is_name
from headrace.text.tools.call_parser import CallParser, Tools
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, begun, cut_off, past_space
from headrace.text.tools.value_kinds import as_string

MAX_BARE_CHARS = 4 * MAX_NAME_CHARS
"""Longest bare key or value; a call with a longer one ends before it."""
MAX_LEVELS = 64

_BARE = re.compile(r"[^,:{}\[\]<\"]*")
_JSON_TEXT = re.compile(r'[^"\\]*')


class ObjectReader:
    """Reads one object from its brace on, and returns JSON.

    quote: the marker around texts. broken: what follows is not part of an object; its JSON is incomplete.
    """

    def __init__(self, quote: str) -> None:
        self.ended = False
        self.broken = False
        self._quote = quote
        self._levels: list[str] = []
        self._bare: list[str] = []
        self._is_key = False
        self._escaped = False
        self._state: Callable[[str, int, list[str]], int] = self._open

    def read(self, text: str, at: int, written: list[str]) -> int:
        """Read from text[at] on, and add to `written`. Returns where it stopped: at the end of the object, at a fault,
        or before what needs more text."""
        while at < len(text) and not (self.ended or self.broken):
            before, state = at, self._state
            at = self._state(text, at, written)
            if at == before and state == self._state:
                break
        return at

    @property
    def cut(self) -> str:
        """JSON of a bare key or value whose end was not read."""
        if self._state != self._word:
            return ""
        word = "".join(self._bare)
        return as_string(word)[:-1] if self._is_key and word else word

    # ---- States; each returns where it stopped ----

    def _open(self, text: str, at: int, written: list[str]) -> int:
        return self._push(text[at], at, written)

    def _first(self, text: str, at: int, written: list[str]) -> int:
        """A key or value, or the end of an empty object or list."""
        at = past_space(text, at)
        if at < len(text) and text[at] == ("}" if self._levels[-1] == "{" else "]"):
            return self._pop(text[at], at, written)
        if at < len(text):
            self._state = self._key if self._levels[-1] == "{" else self._item
        return at

    def _key(self, text: str, at: int, written: list[str]) -> int:
        return self._begin(text, at, written, key=True)

    def _item(self, text: str, at: int, written: list[str]) -> int:
        return self._begin(text, at, written, key=False)

    def _begin(self, text: str, at: int, written: list[str], key: bool) -> int:
        at = past_space(text, at)
        if at == len(text) or cut_off(text, at, self._quote):
            return at
        self._is_key = key
        if text.startswith(self._quote, at) or text[at] == '"':
            written.append('"')
            marked = text[at] != '"'
            self._state = self._marked if marked else self._quoted
            return at + (len(self._quote) if marked else 1)
        if not key and text[at] in "{[":
            return self._push(text[at], at, written)
        self._bare = []
        self._state = self._word
        return at

    def _marked(self, text: str, at: int, written: list[str]) -> int:
        """Text up to the marker."""
        found = text.find(self._quote, at)
        end = begun(text, self._quote, at) if found < 0 else found
        if end > at:
            written.append(as_string(text[at:end])[1:-1])
        if found < 0:
            return end
        return self._value_ends(end + len(self._quote), written, '"')

    def _quoted(self, text: str, at: int, written: list[str]) -> int:
        """A string in JSON."""
        if self._escaped:
            self._escaped = False
            written.append(text[at])
            return at + 1
        match = _JSON_TEXT.match(text, at)
        end = at if match is None else match.end()
        if end > at:
            # Line breaks and the like are escaped; the rest stays as it is.
            written.append(as_string(text[at:end])[1:-1])
        if end == len(text):
            return end
        if text[end] == "\\":
            self._escaped = True
            written.append("\\")
            return end + 1
        return self._value_ends(end + 1, written, '"')

    def _word(self, text: str, at: int, written: list[str]) -> int:
        """A bare key or value."""
        match = _BARE.match(text, at)
        end = at if match is None else match.end()
        room = MAX_BARE_CHARS - sum(map(len, self._bare))
        if end - at > room:
            self._bare.append(text[at : at + room])
            self.broken = True
            return at + room
        self._bare.append(text[at:end])
        if end == len(text):
            return end
        word = "".join(self._bare).strip()
        if not word or (text[end] == ":") != self._is_key:
            self.broken = True
            return end
        return self._value_ends(end, written, as_string(word) if self._is_key else _scalar(word))

    def _colon(self, text: str, at: int, written: list[str]) -> int:
        at = past_space(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            self.broken = True
            return at
        written.append(": ")
        self._state = self._item
        return at + 1

    def _after(self, text: str, at: int, written: list[str]) -> int:
        at = past_space(text, at)
        if at == len(text):
            return at
        if text[at] == ",":
            written.append(", ")
            self._state = self._key if self._levels[-1] == "{" else self._item
            return at + 1
        if text[at] in "}]":
            return self._pop(text[at], at, written)
        self.broken = True
        return at

    # ---- Parts of states ----

    def _value_ends(self, at: int, written: list[str], ending: str) -> int:
        written.append(ending)
        self._state = self._colon if self._is_key else self._after
        return at

    def _push(self, bracket: str, at: int, written: list[str]) -> int:
        if len(self._levels) == MAX_LEVELS:
            self.broken = True
            return at
        self._levels.append(bracket)
        written.append(bracket)
        self._state = self._first
        return at + 1

    def _pop(self, bracket: str, at: int, written: list[str]) -> int:
        if bracket != ("}" if self._levels[-1] == "{" else "]"):
            self.broken = True
            return at
        self._levels.pop()
        written.append(bracket)
        self._state = self._after
        self.ended = not self._levels
        return at + 1


def _scalar(word: str) -> str:
    """A bare value in JSON: itself if it is JSON, else a string."""
    try:
        value = json.loads(word)
        return word if value == value and value not in (float("inf"), float("-inf")) else as_string(word)
    except ValueError:
        return as_string(word)


class GemmaParser(CallParser):
    """A reply with calls after a mark, which may be anywhere. A call is certain with its brace.

    tools: unused: after the mark any name is a call. hidden: see `CallParser`.
    """

    quote = ""

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._object: ObjectReader | None = None

    def finish(self) -> list[Piece]:
        if self._object is None:
            return super().finish()
        self._rest = ""  # the beginning of a quote
        cut = self._object.cut
        return ([CallArguments(self._calls, cut)] if cut else []) + super().finish()

    def _begin(self) -> None:
        self._state = self._read_call

    def _read_call(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._hold(_SPACE, text, at)
        if end == len(text) or self._waits(text, end, "call:"):
            return len(text)
        if text.startswith("call:", end):
            self._held.append("call:")
            self._word = []
            self._state = self._read_name
            return end + len("call:")
        self._no_call("", pieces)
        return end

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = self._read_word(_NAME, text, at, pieces)
        if end == len(text) or self._state != self._read_name:
            return end
        name = "".join(self._word)
        if text[end] != "{" or not is_name(name):
            self._no_call("", pieces)
            return end
        self._held = []
        self._prose.call()
        pieces.append(CallBegins(self._calls, name))
        self._object = ObjectReader(self.quote)
        self._state = self._read_object
        return end

    def _read_object(self, text: str, at: int, pieces: list[Piece]) -> int:
        assert self._object is not None
        written: list[str] = []
        end = self._object.read(text, at, written)
        if self._object.broken:
            written.append(self._object.cut)
        if any(written):
            pieces.append(CallArguments(self._calls, "".join(written)))
        if self._object.ended or self._object.broken:
            self._object = None
            self._called()
        elif end < len(text):
            self._rest = text[end:]
            return len(text)
        return end


_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[\w.\-:/]*", re.ASCII)


class FunctionGemmaParser(GemmaParser):
    """FunctionGemma: `<start_function_call>call:f{city:<escape>Oslo<escape>}<end_function_call>`."""

    quote = "<escape>"
    marks = ("<start_function_call>",)
    closings = ("<end_function_call>",)


class Gemma4Parser(GemmaParser):
    """Gemma 4: `<|tool_call>call:f{city:<|"|>Oslo<|"|>}<tool_call|>`."""

    quote = '<|"|>'
    marks = ("<|tool_call>",)
    closings = ("<tool_call|>",)
