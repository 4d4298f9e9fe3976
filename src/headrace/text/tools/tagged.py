"""Calls whose arguments are text between tags: Qwen3-Coder, Seed-OSS, GLM-4.5.

```
<tool_call>                      <tool_call>f
<function=f>                     <arg_key>city</arg_key>
<parameter=city>                 <arg_value>Oslo</arg_value>
Oslo                             </tool_call>
</parameter>
</function>
</tool_call>
```

The tool's schema decides which arguments are text and which are JSON (`value_kinds`). Text is passed on as it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from headrace.text.tools.call_json import MAX_NAME_CHARS, is_name
from headrace.text.tools.call_parser import CallParser, Tools
from headrace.text.tools.pieces import CallArguments, CallBegins, Piece, begun, past_space
from headrace.text.tools.value_kinds import ANY_KIND, TEXT, Kinds, as_json, as_string, kinds_of

MAX_KEY_CHARS = 4 * MAX_NAME_CHARS

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands around the parts of a call: `call` NAME `named`, then `key` KEY `keyed`, `value` VALUE `ended` for
    each argument, then `done` and `closed`.

    call: begins a call anywhere; `function` stands between it and the name, and begins a call alone, too, as models
    forget the tag before it. lines: values stand in lines of their own.
    """

    call: str
    function: str
    named: str
    key: str
    keyed: str
    value: str
    ended: str
    done: str
    closed: str
    lines: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that vocabularies have as tokens."""
        tags = (self.call, self.key, self.keyed, self.value, self.ended, self.done, self.closed)
        return tuple(dict.fromkeys(tag for tag in tags if tag.startswith("<") and tag.endswith(">")))


QWEN = Tags(
    "<tool_call>", "<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", "</tool_call>", lines=True
)  # fmt: skip
SEED = Tags(
    "<seed:tool_call>", "<function=", ">", "<parameter=", ">", "", "</parameter>", "</function>", "</seed:tool_call>",
    lines=True,
)  # fmt: skip
GLM = Tags(
    "<tool_call>", "", "", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>", ""
)  # fmt: skip


class TaggedParser(CallParser):
    """A reply with calls in tags anywhere.

    A call is certain with its first argument, or at its end. From then on a fault only ends it.

    tools: their schemas say what arguments are; after `call` any name is a call, after `function` alone only theirs.
    hidden: see `CallParser`.
    """

    tags: Tags

    def __init__(self, tools: Tools, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden)
        self._tools = tools
        self._name = ""
        self._certain = False
        self._keys = 0
        self._kinds: Kinds = ANY_KIND
        self._value: list[str] = []
        self._fresh = False
        """The value has not begun."""

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        if self._certain:  # it was cut off: what there is of its arguments stays incomplete
            rest, self._rest = self._rest, ""
            written = ""
            if self._state == self._read_value and self._kinds == TEXT:
                written = as_string(rest)[1:-1]
            elif self._state == self._read_value:
                written = "".join([*self._value, rest])
            elif self._state == self._read_key:
                written = self._before_key + as_string("".join([*self._word, rest]))[:-1]
            if written:
                pieces.append(CallArguments(self._calls, written))
        return pieces + super().finish()

    def _begin(self) -> None:
        self._certain = False
        self._keys = 0
        self._word = []
        self._state = (
            self._read_function if self._mark == self.tags.call and self.tags.function else self._read_name
        )

    # ---- States ----

    def _read_function(self, text: str, at: int, pieces: list[Piece]) -> int:
        """What stands before the name."""
        end = self._hold(_SPACE, text, at)
        if end == len(text) or self._waits(text, end, self.tags.function):
            return len(text)
        if text.startswith(self.tags.function, end):
            self._held.append(self.tags.function)
            self._state = self._read_name
            return end + len(self.tags.function)
        self._no_call("", pieces)
        return end

    def _read_name(self, text: str, at: int, pieces: list[Piece]) -> int:
        """The name, up to `named`, or to white space or a tag."""
        if not self._word:
            at = self._hold(_SPACE, text, at)
            if at == len(text):
                return at
        end = self._read_word(_NAME, text, at, pieces)
        if end == len(text) or self._state != self._read_name:
            return end
        self._name = "".join(self._word).strip()
        named = self.tags.named
        known = self._mark == self.tags.call or self._name in self._tools
        if is_name(self._name) and known and text.startswith(named, end):
            self._held.append(named)
            self._state = self._read_body
            return end + len(named)
        self._no_call("", pieces)
        return end

    def _read_body(self, text: str, at: int, pieces: list[Piece]) -> int:
        """An argument, or the end of the call."""
        tags = self.tags
        end = past_space(text, at)
        self._hold_or_drop(text[at:end])
        for tag in (tags.key, tags.done, tags.closed):
            if tag and text.startswith(tag, end):
                self._commit(pieces)
                if tag == tags.key:
                    self._word = []
                    self._state = self._read_key
                else:
                    self._end_arguments(pieces)
                    self._closed = 1 if tag == tags.closed else 0
                return end + len(tag)
        for tag in (tags.key, tags.done, tags.closed):
            if tag and self._waits(text, end, tag):
                return len(text)
        if self._certain:
            self._end_arguments(pieces)
        else:
            self._no_call("", pieces)
        return end

    def _read_key(self, text: str, at: int, pieces: list[Piece]) -> int:
        found = text.find(self.tags.keyed, at)
        end = begun(text, self.tags.keyed, at) if found < 0 else found
        room = MAX_KEY_CHARS - sum(map(len, self._word))
        if end - at > room:
            self._end_arguments(pieces)
            self._prose.add("".join([self.tags.key, *self._word, text[at : at + room]]), pieces)
            return at + room
        self._word.append(text[at:end])
        if found < 0:
            self._rest = text[end:]
            return len(text)
        key = "".join(self._word).strip()
        self._kinds = kinds_of(self._tools.get(self._name), key)
        pieces.append(CallArguments(self._calls, f"{self._before_key}{as_string(key)}: "))
        self._keys += 1
        self._state = self._read_value_tag
        return end + len(self.tags.keyed)

    def _read_value_tag(self, text: str, at: int, pieces: list[Piece]) -> int:
        end = past_space(text, at) if self.tags.value else at
        if self.tags.value and self._waits(text, end, self.tags.value):
            return len(text)
        end += len(self.tags.value) if text.startswith(self.tags.value, end) else 0
        self._fresh = True
        self._value = []
        if self._kinds == TEXT:
            pieces.append(CallArguments(self._calls, '"'))
        self._state = self._read_value
        return end

    def _read_value(self, text: str, at: int, pieces: list[Piece]) -> int:
        """Text up to `ended`. The line breaks next to the tags are not part of it."""
        tags = self.tags
        if self._fresh:
            self._fresh = False
            if tags.lines and text[at] == "\n":
                return at + 1
        found = text.find(tags.ended, at)
        if found >= 0:
            end = found - 1 if tags.lines and found > at and text[found - 1] == "\n" else found
        else:
            end = begun(text, tags.ended, at)
            if tags.lines:
                end = min(end, begun(text, "\n" + tags.ended, at))
        self._add_value(text[at:end], pieces)
        if found < 0:
            self._rest = text[end:]
            return len(text)
        ending = '"' if self._kinds == TEXT else as_json("".join(self._value), self._kinds)
        pieces.append(CallArguments(self._calls, ending))
        self._state = self._read_body
        return found + len(tags.ended)

    # ---- Parts of states ----

    def _hold_or_drop(self, space: str) -> None:
        if not self._certain:
            self._held.append(space)

    @property
    def _before_key(self) -> str:
        return ", " if self._keys else "{"

    def _add_value(self, text: str, pieces: list[Piece]) -> None:
        if self._kinds != TEXT:
            self._value.append(text)
        elif text:
            pieces.append(CallArguments(self._calls, as_string(text)[1:-1]))

    def _commit(self, pieces: list[Piece]) -> None:
        if not self._certain:
            self._certain = True
            self._held = []
            self._prose.call()
            pieces.append(CallBegins(self._calls, self._name))

    def _end_arguments(self, pieces: list[Piece]) -> None:
        pieces.append(CallArguments(self._calls, "}" if self._keys else "{}"))
        self._certain = False
        self._called()


_NAME = re.compile(r"[^\s<>={}\"']*")


class QwenCoderParser(TaggedParser):
    """Qwen3-Coder, Qwen3-Next's coders, Qwen 3.5."""

    tags = QWEN
    marks = (QWEN.call, QWEN.function)
    closings = (QWEN.closed,)


class SeedParser(TaggedParser):
    """Seed-OSS."""

    tags = SEED
    marks = (SEED.call, SEED.function)
    closings = (SEED.closed,)


class GlmParser(TaggedParser):
    """GLM-4.5 and later."""

    tags = GLM
    marks = (GLM.call,)
