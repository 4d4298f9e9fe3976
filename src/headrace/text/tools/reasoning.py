"""The reasoning in a reply, such as between `<think>` and `</think>`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from headrace.text.tools.pieces import Content, Piece, Prose, Reasoning, begun, cut_off


class Stage(Enum):
    """Where the text of a reply begins; grammar and parser both depend on it."""

    BEFORE = auto()
    """The reply may begin with reasoning, or have none."""
    INSIDE = auto()
    """The prompt ends inside of reasoning."""
    PAST = auto()
    """The prompt ends after reasoning, or with a message that has none: the answer follows."""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """`assumed`: a reply begins with reasoning even without a mark."""

    name: str
    open: str
    close: str
    assumed: bool = False

    def stage(self, prompt: str, continued: str | None = None) -> Stage:
        """Where a reply to this prompt begins. `continued`: the text of a last message that the reply continues."""
        text = (continued or "").strip()
        if text:
            return Stage.INSIDE if text.rfind(self.open) > text.rfind(self.close) else Stage.PAST
        end = prompt.rstrip()
        if end.endswith(self.close):
            return Stage.PAST
        return Stage.INSIDE if self.assumed or end.endswith(self.open) else Stage.BEFORE


REASONING_FORMATS: dict[str, ReasoningFormat] = {
    one.name: one
    for one in (
        ReasoningFormat("qwen3", "<think>", "</think>"),
        ReasoningFormat("deepseek_r1", "<think>", "</think>", assumed=True),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    )
}
"""By vLLM's names."""

_DETECTED = ("qwen3", "mistral")


def detect_reasoning(template: str | None) -> ReasoningFormat | None:
    """The format whose mark is in a chat template."""
    for name in _DETECTED:
        if template is not None and REASONING_FORMATS[name].open in template:
            return REASONING_FORMATS[name]
    return None


class ReasoningParser:
    """Reasoning can only be at the beginning of a reply; white space around it is dropped.

    inside: the prompt has opened it. A reply that ends before it is closed is all reasoning.
    hidden: markers to leave out of the reasoning, see `Prose`; content is passed on unchanged.
    """

    def __init__(self, how: ReasoningFormat, inside: bool, hidden: Collection[str] = ()) -> None:
        self._how = how
        self._inside = inside
        self._past = False
        self._begun = False
        """The text where an opening mark could be was read."""
        self._thoughts = Prose(hidden)
        self._answer = Prose()
        self._rest = ""

    @property
    def reasons(self) -> bool:
        """Whether the next text may be reasoning."""
        return not self._past

    def push(self, text: str) -> list[Piece]:
        if not self.reasons:
            return self._content(text)
        text = self._rest + text
        self._rest = ""
        at = 0
        if not self._begun:
            at = self._read_beginning(text)
        if not self._begun:
            return []
        if self._past:
            return self._content(text[at:])
        return self._read_inside(text, at)

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        rest, self._rest = self._rest, ""
        if self._inside:
            self._thoughts.add(rest, pieces)
            return _as_reasoning(pieces)
        self._answer.add(rest, pieces)
        self._answer.finish(pieces)
        return pieces

    def _read_beginning(self, text: str) -> int:
        """Where the reply continues after an opening mark."""
        at = 0
        while at < len(text) and text[at].isspace():
            at += 1
        self._answer.add(text[:at], [])  # spaces only, held back
        if text.startswith(self._how.open, at):
            self._inside = self._begun = True
            self._answer = Prose()
            self._thoughts.call()
            return at + len(self._how.open)
        if cut_off(text, at, self._how.open):
            self._rest = text[at:]
            return at
        self._begun = True
        self._past = not self._inside
        if self._inside:
            self._answer = Prose()
            self._thoughts.call()
        return at

    def _read_inside(self, text: str, at: int) -> list[Piece]:
        pieces: list[Piece] = []
        found = text.find(self._how.close, at)
        end = begun(text, self._how.close, at) if found < 0 else found
        self._thoughts.add(text[at:end], pieces)
        thoughts = _as_reasoning(pieces)
        if found < 0:
            self._rest = text[end:]
            return thoughts
        self._inside = False
        self._past = True
        self._answer = Prose()
        self._answer.call()
        return thoughts + self._content(text[found + len(self._how.close) :])

    def _content(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        self._answer.add(text, pieces)
        return pieces


def _as_reasoning(pieces: list[Piece]) -> list[Piece]:
    return [Reasoning(piece.text) for piece in pieces if isinstance(piece, Content)]
