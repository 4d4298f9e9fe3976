"""Grammars of whole replies in the harmony format, see `headrace.text.tools.harmony`.

Replies are only messages with a header: without one, text could turn into a header.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.grammar import LARK, Grammar
from headrace.text.tools.grammar.forms import FORMS, call_rules
from headrace.text.tools.grammar.words import Prose, ToolSchema, quoted
from headrace.text.tools.harmony import CALL, CHANNEL, END, MESSAGE, RETURN, START
from headrace.text.tools.reasoning import ReasoningFormat

_NEXT = f"{START}assistant"
_FINAL = f"{CHANNEL}final{MESSAGE}"
_ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"
_PREAMBLE = f"{CHANNEL}commentary{MESSAGE}"
_ENDS = (END, CALL, RETURN, START)


def channel_answer(
    prose: Prose,
    form: str | None,
    tools: Sequence[ToolSchema],
    parallel: bool,
    reasoning: ReasoningFormat | None,
    inside: bool,
    answering: bool,
) -> Grammar:
    """At most one message of reasoning, then one with `form`, the body of a rule, or a call of one of the tools.

    inside: the reply begins in the text of reasoning. answering: it begins in the text of an answer.
    """
    literal = prose.words.literal
    kinds = []
    rules = _texts(prose)
    if tools or form is None:
        kinds.append("calls")
        rules += call_rules(prose, FORMS["openai"], tools, parallel)
    if form is not None:
        kinds.append("formed")
        rules += [f"formed: {literal(_FINAL)} form", f"form: {form}"]
    answer = f"answer: {' | '.join(kinds)}"
    thoughts = f"message {literal(_NEXT)} answer"
    if answering:
        start = ["form"] if form is not None else []
        start += [f"{literal(END + _NEXT)} calls"] if tools else []
    elif inside:
        start = [thoughts]
    else:
        start = ["answer"] if reasoning is None else [f"{literal(_ANALYSIS)} {thoughts}", "answer"]
    return _grammar([f"start: {' | '.join(start)}", answer, *rules, *prose.terminals()])


def free_channel_answer(
    prose: Prose, tools: Sequence[ToolSchema], parallel: bool, inside: bool, answering: bool
) -> Grammar:
    """Messages of any kind, and calls of `tools` by their schemas; arguments as for `channel_answer`."""
    literal = prose.words.literal
    more = f"message {literal(_NEXT)} answer"
    start = more if inside else "text" if answering else "answer"
    return _grammar(
        [
            f"start: {start}",
            f"answer: {literal(_ANALYSIS)} {more} | {literal(_PREAMBLE)} {more} | {literal(_FINAL)} text | calls",
            "text: SAID | message",
            *_texts(prose),
            *call_rules(prose, FORMS["openai"], tools, parallel),
            *prose.terminals(),
        ]
    )


def _texts(prose: Prose) -> list[str]:
    """The rule `message`: the text of a message and its end; SAID: text in which no message ends."""
    ends = " | ".join(map(quoted, _ENDS))
    return [*prose.until("message", END, "CALM"), f"CALM: ANY & ~(ANY ({' | '.join(map(quoted, _ENDS[1:]))}) ANY)",
            f"SAID: ANY & ~(ANY ({ends}) ANY)"]  # fmt: skip


def _grammar(rules: Sequence[str]) -> Grammar:
    return Grammar(LARK, "\n".join(rules) + "\n")
