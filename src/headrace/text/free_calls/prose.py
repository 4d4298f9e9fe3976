"""Free text up to a mark: rules of llguidance's Lark.

Text goes on through tokens that are no text (special ones, see `Words.others`), of which a reader may see the names,
or nothing at all. So text that ends with the beginning of a mark cannot go on through one: it could be a mark to the
reader, once the token is left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from headrace.text.grammar_words import Words, quoted

SPACE = r"\s\x1c-\x1f"
"""Python's white space in a pattern of Rust, which leaves out four of its characters: to stand in brackets."""


@dataclass(frozen=True, slots=True)
class Prose:
    """`marks`: all that a reader looks for in the text of an answer or in the reasoning before it."""

    words: Words
    marks: tuple[str, ...]

    def terminals(self) -> list[str]:
        """ANY text; BLANK text; SAFE text, behind which any token may come that is no text; NOTHING, not even that."""
        cut = sorted({mark[:end] for mark in self.marks for end in range(1, len(mark))})
        safe = f"ANY & ~(ANY ({' | '.join(map(quoted, cut))}))" if cut else "ANY"
        return ["ANY: /(?s:.)*/", f"BLANK: /[{SPACE}]*/", f"SAFE: {safe}", r"NOTHING: /[^\s\S]/"]

    def others(self, marks: Collection[str]) -> str:
        """Any one token that is no text and has none of `marks` in its name."""
        return self.words.others(marks) or "NOTHING"

    def until(self, name: str, mark: str, text: str = "ANY") -> list[str]:
        """The rule `name`, text up to the first `mark` and the mark, as a token or spelled out."""
        token = self.words.token(mark)
        either = f" | {text} {token}" if token else ""
        return [f"{name}_spelled[lazy]: {text} {quoted(mark)}", f"{name}: {name}_spelled{either}"]
