"""Building blocks of grammars (llguidance's Lark): text, markers, calls inside them, prose up to a marker.

Text continues after tokens that are not text (special ones, see `Words.others`), of which a parser may see the names,
or nothing. So no such token may follow text that ends with the beginning of a mark: without the token, the parser could
read a mark.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.pieces import begun


def quoted(text: str) -> str:
    """A text as a string of Lark, which has the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False)


class Words:
    """How texts are written for a vocabulary; without a tokenizer there are no markers.

    A marker that is a token is written as that token, because such a token is not text in llguidance.
    """

    def __init__(self, tokenizer: Tokenizer | None, markers: Collection[str]) -> None:
        self._tokenizer = tokenizer
        self._markers = tuple(markers)

    def literal(self, text: str) -> str:
        """A text that may contain markers."""
        return " ".join(self._parts(text))

    def token(self, marker: str) -> str | None:
        """A marker as its token; None if it is ordinary text."""
        found = self._structural.get(marker)
        return None if found is None else f"<[{found}]>"

    def others(self, marks: Collection[str]) -> str | None:
        """Any token that is not text, except those whose names could be a part of one of `marks`.

        Tokens that end a text are excluded, too. None if there is none.
        """
        assert self._tokenizer is not None or not self._structural
        ends: frozenset[int] = frozenset() if self._tokenizer is None else self._tokenizer.eos_ids
        ids = sorted(
            number
            for name, number in self._structural.items()
            if number not in ends and not any(mark in name or begun(name, mark) < len(name) for mark in marks)
        )
        return f"<[{','.join(_ranges(ids))}]>" if ids else None

    @cached_property
    def _structural(self) -> Mapping[str, int]:
        return {} if self._tokenizer is None else self._tokenizer.structural_tokens

    def _parts(self, text: str) -> list[str]:
        if not text:
            return []
        for marker in self._markers:
            token = self.token(marker)
            if token is not None and marker in text:
                before, _, after = text.partition(marker)
                return [*self._parts(before), token, *self._parts(after)]
        return [quoted(text)]


def _ranges(ids: list[int]) -> list[str]:
    """Sorted ids as ranges."""
    found: list[list[int]] = []
    for number in ids:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


JSON_LAYOUT = {"whitespace_pattern": " "}
"""White space between the parts of JSON: at most one space. A model that is unsure of its next token would write as
many as it may."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool's name and the JSON Schema of its arguments, an object."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


def json_value(schema: Mapping[str, Any], tool: ToolSchema) -> str:
    """JSON that follows a schema of `tool`. Raises InvalidParams if the schema is not JSON."""
    try:
        written = json.dumps({**schema, "x-guidance": JSON_LAYOUT}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParams(f"the parameters of tool {tool.name!r:.80} are not JSON") from error
    return f"%json {written}"


def object_rules(tools: Sequence[ToolSchema], key: str) -> list[str]:
    """The rule `tool`, one call as `{"name": …, key: …}` with the keys in this order; `arguments_n` are the arguments
    of tool n."""
    rules = ["tool: " + " | ".join(f"tool_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        head = f'{{"name": {quoted(tool.name)}, "{key}": '
        rules += [
            f'tool_{index}: {quoted(head)} arguments_{index} "}}"',
            f"arguments_{index}: {json_value({'type': 'object', **tool.parameters}, tool)}",
        ]
    return rules


SPACE = r"\s\x1c-\x1f"
"""Python's white space in a pattern of Rust, whose `\\s` lacks four of its characters; for use in brackets."""


@dataclass(frozen=True, slots=True)
class Prose:
    """`marks`: what parsers look for in an answer, or in the reasoning before it."""

    words: Words
    marks: tuple[str, ...]

    def terminals(self) -> list[str]:
        """ANY text; BLANK text; SAFE text, which tokens that are not text may follow; NOTHING, no text at all."""
        cut = sorted({mark[:end] for mark in self.marks for end in range(1, len(mark))})
        safe = f"ANY & ~(ANY ({' | '.join(map(quoted, cut))}))" if cut else "ANY"
        return ["ANY: /(?s:.)*/", f"BLANK: /[{SPACE}]*/", f"SAFE: {safe}", r"NOTHING: /[^\s\S]/"]

    def others(self, marks: Collection[str]) -> str:
        """Any token that is not text and has none of `marks` in its name."""
        return self.words.others(marks) or "NOTHING"

    def until(self, name: str, mark: str, text: str = "ANY") -> list[str]:
        """The rule `name`, text up to the first `mark`, and the mark as a token or as text."""
        written = self.words.literal(mark)
        either = f" | {text} {written}" if written != quoted(mark) else ""
        return [f"{name}_spelled[lazy]: {text} {quoted(mark)}", f"{name}: {name}_spelled{either}"]

    def until_any(self, name: str, marks: Sequence[str], text: str = "ANY") -> list[str]:
        """The rule `name`, text up to the first of several marks, and the mark."""
        each = [f"{name}_{index}" for index in range(len(marks))]
        rules = [rule for one, mark in zip(each, marks, strict=True) for rule in self.until(one, mark, text)]
        return [f"{name}: {' | '.join(each)}", *rules]
