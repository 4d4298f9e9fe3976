"""Replies of gpt-oss in OpenAI's harmony format: messages in channels.

A message is a header, `<|message|>`, text, and `<|end|>`, `<|call|>` or `<|return|>`; the next one begins with
`<|start|>assistant`. The header names the channel and, for a call, its recipient; the prompt ends inside of the first:

```
<|channel|>analysis<|message|>I look it up.<|end|>
<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>
```

`analysis` is reasoning, a message to `functions.NAME` a call, and everything else content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from headrace.text.tools.call_json import MAX_NAME_CHARS, is_name
from headrace.text.tools.call_parser import Tools
from headrace.text.tools.json_text import JsonSpan
from headrace.text.tools.pieces import (
    CallArguments,
    CallBegins,
    Content,
    Piece,
    Prose,
    Reasoning,
    begun,
    cut_off,
    past_space,
)

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
FUNCTIONS = "functions."

MAX_HEADER_CHARS = 2 * MAX_NAME_CHARS
"""Longest header; a longer one is content."""

_HEADS = (START, CHANNEL, MESSAGE, CONSTRAIN, "to=")
_ENDS = (END, CALL, RETURN, START)
_ANY_END = re.compile("|".join(map(re.escape, _ENDS)))
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CUT_HEADER = re.compile(
    r"\s*(?:<\|start\|>\w*)?(?:\s*to=[^\s<]*)?(?:\s*<\|channel\|>\s*\w*)?(?:\s*to=[^\s<]*)?\s*"
    r"(?:<\|constrain\|>\s*)?\w*\s*(?:<\|?\w*\|?)?"
)
"""A header or its beginning: not shown where a reply is cut off in it."""

_State = Callable[[str, int, list[Piece]], int]


class HarmonyParser:
    """A whole reply: reasoning, content and calls. Text outside of messages is content.

    tools: None leaves calls as content. reasons: False leaves reasoning as content. shows: False leaves out the
    content. inside: the prompt ends in the text of a message of reasoning. answering: it ends in that of the answer.
    hidden: markers to leave out of texts, see `Prose`.
    """

    def __init__(
        self,
        tools: Tools | None = None,
        hidden: Collection[str] = (),
        *,
        reasons: bool = True,
        shows: bool = True,
        inside: bool = False,
        answering: bool = False,
    ) -> None:
        self._tools = tools
        self._reasons = reasons
        self._shows = shows
        self._hidden = hidden
        self._calls = 0
        self._rest = ""
        self._header: list[str] = []
        self._prose = Prose(hidden)
        self._thinks = False
        self._ended: set[bool] = set()
        """Messages of content (False) and of reasoning (True) have ended: a line break stands before the next one."""
        self._written: set[bool] = set()
        """Kinds of messages that have text."""
        self._name = ""
        self._span: JsonSpan | None = None
        self._state: _State = self._read_start
        if inside or answering:
            self._begin_text(thinks=inside and reasons)

    @property
    def reasons(self) -> bool:
        """Whether the next text may be reasoning."""
        return self._reasons and (self._thinks or self._state in (self._read_start, self._read_header))

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            at = self._state(text, at, pieces)
        return self._shown(pieces)

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        rest, self._rest = self._rest, ""
        if self._state == self._read_text:
            self._add_text(rest, pieces)
        elif self._state in (self._read_start, self._read_header, self._read_tail):
            left = "".join([*self._header, rest])
            self._begin_text(thinks=False)
            if not (left.strip() and _CUT_HEADER.fullmatch(left)):
                self._add_text(left, pieces)
        self._end_text(pieces)
        return self._shown(pieces)

    # ---- States ----

    def _read_start(self, text: str, at: int, pieces: list[Piece]) -> int:
        """A header, or text without one."""
        end = past_space(text, at)
        self._header.append(text[at:end])
        if any(text.startswith(head, end) for head in _HEADS):
            self._state = self._read_header
        elif end == len(text) or any(cut_off(text, end, head) for head in _HEADS):
            self._rest = text[end:]
            return len(text)
        else:
            spaces, self._header = "".join(self._header), []
            self._begin_text(thinks=False)
            self._add_text(spaces, pieces)
        return end

    def _read_header(self, text: str, at: int, pieces: list[Piece]) -> int:
        """What stands before `<|message|>`."""
        found = text.find(MESSAGE, at)
        end = begun(text, MESSAGE, at) if found < 0 else found
        room = MAX_HEADER_CHARS - sum(map(len, self._header))
        if end - at > room:
            self._begin_text(thinks=False)
            self._add_text("".join([*self._header, text[at : at + room]]), pieces)
            self._header = []
            return at + room
        self._header.append(text[at:end])
        if found < 0:
            self._rest = text[end:]
            return len(text)
        header, self._header = "".join(self._header), []
        self._begin_message(header, pieces)
        return end + len(MESSAGE)

    def _read_text(self, text: str, at: int, pieces: list[Piece]) -> int:
        """The text of a message that is not a call."""
        found = _ANY_END.search(text, at)
        end = min(begun(text, mark, at) for mark in _ENDS) if found is None else found.start()
        self._add_text(text[at:end], pieces)
        if found is None:
            self._rest = text[end:]
            return len(text)
        self._end_text(pieces)
        self._state = self._read_start
        return end if found[0] == START else found.end()

    def _read_call(self, text: str, at: int, pieces: list[Piece]) -> int:
        """The first character of a call's arguments. If it is not a brace, the message is content."""
        end = past_space(text, at)
        if end == len(text):
            return end
        if text[end] == "{":
            self._begin_call(pieces)
            self._span = JsonSpan()
            self._state = self._read_arguments
            return end
        if any(text.startswith(mark, end) for mark in _ENDS):
            self._begin_call(pieces)
            pieces.append(CallArguments(self._calls, "{}"))
            self._calls += 1
            self._state = self._read_tail
        elif any(cut_off(text, end, mark) for mark in _ENDS):
            self._rest = text[end:]
            return len(text)
        else:
            self._begin_text(thinks=False)
        return end

    def _read_arguments(self, text: str, at: int, pieces: list[Piece]) -> int:
        assert self._span is not None
        end = self._span.read(text, at)
        if end > at:
            pieces.append(CallArguments(self._calls, text[at:end]))
        if self._span.ended:
            self._span = None
            self._calls += 1
            self._state = self._read_tail
        return end

    def _read_tail(self, text: str, at: int, pieces: list[Piece]) -> int:
        """What follows a call in its message: its end, or text."""
        end = past_space(text, at)
        for mark in _ENDS:
            if text.startswith(mark, end):
                self._state = self._read_start
                return end if mark == START else end + len(mark)
        if end == len(text) or any(cut_off(text, end, mark) for mark in _ENDS):
            self._rest = text[end:]
            return len(text)
        self._begin_text(thinks=False)
        return end

    # ---- Parts of states ----

    def _begin_message(self, header: str, pieces: list[Piece]) -> None:
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        name = "" if recipient is None else recipient[1]
        if self._tools is not None and (name.startswith(FUNCTIONS) or name in self._tools):
            self._name = name.removeprefix(FUNCTIONS)
            if is_name(self._name):
                self._state = self._read_call
                return
        self._begin_text(thinks=self._reasons and channel is not None and channel[1] == "analysis")
        if channel is None and recipient is None and not _CUT_HEADER.fullmatch(header):
            self._add_text(header, pieces)  # no header

    def _begin_call(self, pieces: list[Piece]) -> None:
        pieces.append(CallBegins(self._calls, self._name))

    def _begin_text(self, thinks: bool) -> None:
        self._thinks = thinks
        self._prose = Prose(self._hidden)
        self._state = self._read_text

    def _add_text(self, text: str, pieces: list[Piece]) -> None:
        made: list[Piece] = []
        self._prose.add(text, made)
        self._write(made, pieces)

    def _end_text(self, pieces: list[Piece]) -> None:
        made: list[Piece] = []
        self._prose.finish(made)
        self._write(made, pieces)
        self._prose = Prose(self._hidden)
        self._ended |= self._written
        self._thinks = False

    def _write(self, made: list[Piece], pieces: list[Piece]) -> None:
        """Content of the prose as content or reasoning."""
        for piece in made:
            assert isinstance(piece, Content)
            text = f"\n{piece.text}" if self._thinks in self._ended else piece.text
            self._ended.discard(self._thinks)
            self._written.add(self._thinks)
            pieces.append(Reasoning(text) if self._thinks else Content(text))

    def _shown(self, pieces: list[Piece]) -> list[Piece]:
        return pieces if self._shows else [piece for piece in pieces if not isinstance(piece, Content)]
