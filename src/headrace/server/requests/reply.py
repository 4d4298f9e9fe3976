"""Completions parsed into reasoning, content and tool calls, and written as the chat API writes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.server.requests.prompts import Encoded
from headrace.server.requests.service import Service
from headrace.serving.requests.completion import Delta
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.formats import GENERIC, TOOL_CALL_FORMATS, ToolCallFormat
from headrace.text.tools.grammar.fixed import answer_grammar
from headrace.text.tools.grammar.free import free_call_grammar
from headrace.text.tools.grammar.words import ToolSchema
from headrace.text.tools.harmony import HarmonyParser
from headrace.text.tools.json_text import JsonSpan
from headrace.text.tools.pieces import (
    CallArguments,
    CallBegins,
    Content,
    Parser,
    Piece,
    PlainParser,
)
from headrace.text.tools.reader import LeadingCalls, OnlyCalls, ReplyReader
from headrace.text.tools.reasoning import ReasoningFormat, ReasoningParser, Stage
from headrace.text.tools.request import Tool, ToolUse


@dataclass(frozen=True, slots=True)
class Reading:
    """How to parse the completions of one request. `calls` and `reasoning` are None if the completions have none;
    `reasoning` also if it ended in the prompt.

    form: the grammar of the answer, after any reasoning and instead of calls. inside: completions begin in the middle
    of the reasoning. answering: they continue the text of an answer. visible: special tokens that mark calls and
    reasoning, so that the text must contain them; None if all text is content. hidden: the texts of these tokens, if
    the request skips special tokens.
    """

    tools: ToolUse
    calls: ToolCallFormat | None
    reasoning: ReasoningFormat | None
    form: Grammar | None
    inside: bool
    answering: bool
    visible: frozenset[int] | None
    hidden: frozenset[str]

    @classmethod
    def of(
        cls, service: Service, tools: ToolUse, prompt: Encoded, params: SamplingParams
    ) -> tuple[Reading, SamplingParams]:
        """How to read completions of a prompt, and parameters under which they are what the request asks for: a call
        that must be made, a form, and no call that breaks the schema of a strict tool.

        Raises InvalidParams for schemas that are too large or that the model's call format cannot follow.
        """
        calls = service.replies.calls if tools.tools else None
        if tools.forced:
            calls = calls or GENERIC
            calls = TOOL_CALL_FORMATS[calls.forced or calls.name]
        reasoning = service.replies.reasoning
        stage = Stage.PAST if reasoning is None else reasoning.stage(prompt.text or "", prompt.continued)
        if stage is Stage.PAST:
            reasoning = None
        markers = (() if calls is None else calls.markers) + (() if reasoning is None else reasoning.markers)
        special = _special(service.tokenizer, markers)
        reading = cls(
            tools, calls, reasoning, None if tools.forced else params.grammar,
            stage is Stage.INSIDE, prompt.continued is not None and stage is not Stage.INSIDE,
            frozenset(special.values()) if calls or reasoning else None,
            frozenset(special) if params.skip_special_tokens else frozenset(),
        )  # fmt: skip
        return reading, reading._constrained(service.tokenizer, params)

    def reader(self) -> ReplyReader | None:
        """A parser for one completion; None if all of it is content."""
        if self.calls is None and self.reasoning is None:
            return None
        if self._channels:
            whole = HarmonyParser(
                None if self.calls is None else self.tools.schemas, self.hidden,
                reasons=self.reasoning is not None, shows=not self.tools.forced, inside=self.inside,
                answering=self.answering,
            )  # fmt: skip
            return ReplyReader(whole, single=not self.tools.parallel)
        reasoning: ReasoningParser | None = None
        calls: Parser | None = None
        if self.reasoning is not None:
            reasoning = ReasoningParser(self.reasoning, self.inside, self.hidden)
        if self.calls is not None:
            calls = self.calls.parser(self.tools.schemas, self.hidden)
            if self.tools.forced:
                calls = OnlyCalls(calls)
            elif self.form is not None:
                calls = LeadingCalls(calls)
        elif self.hidden and self.form is None:
            calls = PlainParser(self.hidden)
        return ReplyReader(reasoning, calls, single=not self.tools.parallel)

    @property
    def _channels(self) -> bool:
        return any(one is not None and one.channels for one in (self.calls, self.reasoning))

    def _constrained(self, tokenizer: Tokenizer | None, params: SamplingParams) -> SamplingParams:
        tools = self.tools
        name = "" if self.calls is None else self.calls.name
        schemas = [
            _schema(tool) if tool.strict or tools.forced else ToolSchema(tool.name) for tool in tools.tools
        ]
        if tools.forced or self.form is not None:
            grammar = answer_grammar(
                self.form, schemas if name else (), name, tokenizer,
                parallel=tools.parallel, reasoning=self.reasoning, inside=self.inside,
                channels=self._channels, answering=self.answering,
            )  # fmt: skip
        elif tools.strict and name:
            grammar = free_call_grammar(
                schemas, name, tokenizer,
                parallel=tools.parallel, reasoning=self.reasoning, inside=self.inside,
                channels=self._channels, answering=self.answering,
            )  # fmt: skip
        else:
            return params
        return replace(params, grammar=grammar)


def _schema(tool: Tool) -> ToolSchema:
    return ToolSchema(tool.name) if tool.parameters is None else ToolSchema(tool.name, tool.parameters)


def _special(tokenizer: Tokenizer | None, markers: tuple[str, ...]) -> dict[str, int]:
    """The markers that are special tokens, with their ids."""
    if tokenizer is None:
        return {}
    found = {marker: tokenizer.special_id(marker) for marker in markers}
    return {marker: token for marker, token in found.items() if token is not None}


class Reply:
    """Parses one completion as it grows."""

    def __init__(self, reading: Reading) -> None:
        self._format = reading.calls
        self._reader = reading.reader()
        self._arguments: list[JsonSpan] = []  # of each call
        self.reasoning_tokens = 0

    def take(self, delta: Delta) -> list[Piece]:
        """The pieces of an addition. The last addition also returns text that was held back."""
        if self._reader is None:
            return [Content(delta.text)] if delta.text else []
        pieces: list[Piece] = []
        for one in delta.by_token():
            if self._reader.reasons:
                self.reasoning_tokens += len(one.token_ids)
            if one.text:
                pieces += self._reader.push(one.text)
        if delta.finish_reason is not None:
            pieces += self._reader.finish()
        for piece in pieces:
            if isinstance(piece, CallBegins):
                self._arguments.append(JsonSpan())
            elif isinstance(piece, CallArguments) and not self._arguments[-1].ended:
                self._arguments[-1].read(piece.text, 0)
        return pieces

    @property
    def called(self) -> bool:
        """Tools were called, and the arguments of every call are complete."""
        return bool(self._arguments) and all(span.closed for span in self._arguments)

    def finish_reason(self, reason: str | None) -> str | None:
        """As in OpenAI's API: an answer that stopped after complete calls has the reason "tool_calls"."""
        return "tool_calls" if self.called and reason == "stop" else reason

    def new_call_id(self) -> str:
        return (self._format or GENERIC).new_id()
