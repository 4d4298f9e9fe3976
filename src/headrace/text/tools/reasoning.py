"""The reasoning in a reply, such as between `<think>` and `</think>`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto

from headrace.text.tools import harmony
from headrace.text.tools.pieces import Content, Piece, Prose, Reasoning, begun, cut_off, past_space


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
    """How a model marks its reasoning.

    spellings: other texts of (open, close) that models write. assumed: a reply begins with reasoning even without a
    mark. answer: marks around an answer that follows reasoning, which are left out.
    signs: a chat template that contains all texts of one of these uses this format.
    tokens: what is needed of the model's output, even if it is a special token; empty for the marks.
    channels: replies are read by `harmony`. families: models that write it.
    """

    name: str
    open: str
    close: str
    families: str = ""
    signs: tuple[tuple[str, ...], ...] = ()
    spellings: tuple[tuple[str, str], ...] = ()
    assumed: bool = False
    answer: tuple[str, str] = ("", "")
    tokens: tuple[str, ...] = ()
    channels: bool = False

    @property
    def opens(self) -> tuple[str, ...]:
        return (self.open, *(opening for opening, _ in self.spellings))

    @property
    def closes(self) -> tuple[str, ...]:
        return (self.close, *(closing for _, closing in self.spellings))

    @property
    def markers(self) -> tuple[str, ...]:
        return self.tokens or (self.open, self.close)

    def stage(self, prompt: str, continued: str | None = None) -> Stage:
        """Where a reply to this prompt begins. `continued`: the text of a last message that the reply continues."""
        text = (continued or "").strip()
        if text:
            opened, closed = (max(map(text.rfind, marks)) for marks in (self.opens, self.closes))
            return Stage.INSIDE if opened > closed else Stage.PAST
        end = prompt.rstrip()
        if end.endswith(self.closes):
            return Stage.PAST
        return Stage.INSIDE if self.assumed or end.endswith(self.opens) else Stage.BEFORE


_THINK, _THINK_END = "<think>", "</think>"

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    one.name: one
    for one in (
        ReasoningFormat(
            "openai_gptoss", f"{harmony.CHANNEL}analysis{harmony.MESSAGE}", harmony.END, "gpt-oss",
            ((harmony.CHANNEL,),), tokens=harmony.MARKERS, channels=True,
        ),
        ReasoningFormat(
            "gemma4", "<|channel>thought", "<channel|>", "Gemma 4", (("<|channel>",),),
            tokens=("<|channel>", "<channel|>"),
        ),
        ReasoningFormat("seed_oss", "<seed:think>", "</seed:think>", "Seed-OSS", (("<seed:think>",),)),
        ReasoningFormat(
            "cohere_command3", "<|START_THINKING|>", "<|END_THINKING|>", "Command R7B, Command A",
            (("<|START_THINKING|>",),), answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        ReasoningFormat("mistral", "[THINK]", "[/THINK]", "Magistral, Ministral 3", (("[THINK]",),)),
        ReasoningFormat(
            "granite", "Here is my thought process:", "Here is my response:", "Granite 3.2",
            (("Here is my thought process:",),),
            spellings=(("Here's my thought process:", "Here's my response:"),),
        ),
        ReasoningFormat(
            "granite_tags", _THINK, _THINK_END, "Granite 3.3", ((_THINK, "<response>"),),
            answer=("<response>", "</response>"),
        ),
        ReasoningFormat("qwen3", _THINK, _THINK_END, "Qwen 3, QwQ, SmolLM 3, LFM 2.5", ((_THINK,),)),
        ReasoningFormat("glm45", _THINK, _THINK_END, "GLM-4.5 and later"),
        ReasoningFormat("olmo3", _THINK, _THINK_END, "OLMo 3"),
        ReasoningFormat("deepseek_v3", _THINK, _THINK_END, "DeepSeek V3.1"),
        ReasoningFormat(
            "deepseek_r1", _THINK, _THINK_END, "DeepSeek R1", ((_THINK_END, "<｜Assistant｜>"),), assumed=True
        ),
    )
}  # fmt: skip
"""By vLLM's names, where it has one, in the order in which a template is searched for their signs."""


def detect_reasoning(template: str | None) -> ReasoningFormat | None:
    """The format that a chat template uses; None if it shows none."""
    for one in REASONING_FORMATS.values():
        if template is not None and any(all(part in template for part in sign) for sign in one.signs):
            return one
    return None


_MAX_HELD_SPACES = 64


class Wrapping:
    """Leaves out the marks around an answer, and the white space next to them."""

    def __init__(self, marks: tuple[str, str]) -> None:
        self._open, self._close = marks
        self._begun = not self._open
        self._opened = False
        self._rest = ""

    def push(self, text: str) -> str:
        """The text that is certain now."""
        text, self._rest = self._rest + text, ""
        if not self._begun:
            at = past_space(text, 0)
            if at <= _MAX_HELD_SPACES:
                if text.startswith(self._open, at):
                    self._opened = True
                    text = text[at + len(self._open) :]
                elif cut_off(text, at, self._open):
                    self._rest = text
                    return ""
            self._begun = True
        if not self._opened:
            return text
        at = text.find(self._close)
        while at >= 0 and (text[at + len(self._close) :].strip() or len(text) - at > _MAX_HELD_SPACES):
            at = text.find(self._close, at + 1)
        end = begun(text, self._close) if at < 0 else at
        self._rest = text[end:]
        return text[:end]

    def finish(self) -> str:
        """The rest."""
        rest, self._rest = self._rest, ""
        return "" if self._opened and rest.strip() == self._close else rest


class ReasoningParser:
    """Reasoning can only be at the beginning of a reply; white space around it is dropped.

    inside: the prompt has opened it. A reply that ends before it is closed is all reasoning.
    hidden: markers to leave out of the reasoning, see `Prose`; content is passed on unchanged.
    """

    def __init__(self, how: ReasoningFormat, inside: bool, hidden: Collection[str] = ()) -> None:
        self._how = how
        self._close = re.compile("|".join(map(re.escape, how.closes)))
        self._wrapping = Wrapping(how.answer)
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
        if self._past:
            rest = self._wrapping.finish()
        self._answer.add(rest, pieces)
        self._answer.finish(pieces)
        return pieces

    def _read_beginning(self, text: str) -> int:
        """Where the reply continues after an opening mark."""
        at = 0
        while at < len(text) and text[at].isspace():
            at += 1
        self._answer.add(text[:at], [])  # spaces only, held back
        for mark in self._how.opens:
            if text.startswith(mark, at):
                self._inside = self._begun = True
                self._answer = Prose()
                self._thoughts.call()
                return at + len(mark)
        if any(cut_off(text, at, mark) for mark in self._how.opens):
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
        found = self._close.search(text, at)
        end = min(begun(text, mark, at) for mark in self._how.closes) if found is None else found.start()
        self._thoughts.add(text[at:end], pieces)
        thoughts = _as_reasoning(pieces)
        if found is None:
            self._rest = text[end:]
            return thoughts
        self._inside = False
        self._past = True
        self._answer = Prose()
        self._answer.call()
        return thoughts + self._content(text[found.end() :])

    def _content(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        self._answer.add(self._wrapping.push(text), pieces)
        return pieces


def _as_reasoning(pieces: list[Piece]) -> list[Piece]:
    return [Reasoning(piece.text) for piece in pieces if isinstance(piece, Content)]
