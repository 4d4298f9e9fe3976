"""The grammar of an answer with a fixed form: reasoning, then calls of tools or text in the form of the request."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from headrace.core.grammar import CHOICE, JSON_OBJECT, JSON_SCHEMA, LARK, REGEX, Grammar
from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools import llama3
from headrace.text.tools.grammar.channels import channel_answer
from headrace.text.tools.grammar.forms import FORMS, MARKERS, MAX_CALLS, call_rules
from headrace.text.tools.grammar.pythonic import pythonic_calls
from headrace.text.tools.grammar.words import JSON_LAYOUT, Prose, ToolSchema, Words, json_value, quoted
from headrace.text.tools.reasoning import ReasoningFormat

CALL_FORMATS = tuple(FORMS)
"""vLLM's names of the tool parsers that read calls of these grammars."""

_GAP = r"/\s{0,2}/"
"""White space between reasoning and answer: no more than models write, as an unsure model would continue it."""


def answer_grammar(
    form: Grammar | None,
    tools: Sequence[ToolSchema] = (),
    call_format: str = "",
    tokenizer: Tokenizer | None = None,
    *,
    parallel: bool = True,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
    channels: bool = False,
    answering: bool = False,
) -> Grammar:
    """Text of `form`, or calls of `tools` in `call_format`, or either of them. With `parallel` up to MAX_CALLS calls.

    With `reasoning` the answer may follow some; it must end, and an answer must follow. `inside`: the text begins
    in the middle of it. `channels`: replies are in the harmony format. `answering`: the text continues an answer.
    A form without reasoning and tools is its own grammar.

    Raises InvalidParams for neither form nor tools, for an unknown format of calls, and for sources that are too large.
    """
    if form is not None and not tools and reasoning is None:
        return form
    marks = () if reasoning is None else (*reasoning.opens, *reasoning.closes)
    prose = Prose(Words(tokenizer, MARKERS), marks)
    if channels:
        written = None if form is None else _inline(form)
        return channel_answer(prose, written, tools, parallel, reasoning, inside, answering)
    literal = prose.words.literal
    rules: list[str] = []
    kinds: list[str] = []
    if tools or form is None:
        kinds.append("calls")
        rules += _calls(prose, tools, call_format, parallel, form)
    if form is not None:
        kinds.append("form")
        rules.append(f"form: {_inline(form)}")
    if reasoning is None:
        start = ["start: answer"]
    else:
        first = "" if inside else f"{literal(reasoning.open)} "
        thinks = f"{first}thought* until_closed {_GAP} answer"
        start = [
            f"start: {thinks}" if inside else f"start: {thinks} | answer",
            f"thought: SAFE {prose.others(reasoning.closes)}",
            *prose.until_any("until_closed", reasoning.closes),
        ]
    lines = [*start, f"answer: {' | '.join(kinds)}", *rules, *prose.terminals()]
    return Grammar(LARK, "\n".join(lines) + "\n")


def _calls(
    prose: Prose, tools: Sequence[ToolSchema], call_format: str, parallel: bool, form: Grammar | None
) -> list[str]:
    """The rule `calls`. With a form of JSON, a call that is JSON from its first character on is written as JSON, too:
    llguidance can choose between two JSONs that begin alike, but not between a literal and JSON."""
    if call_format == "pythonic":
        return pythonic_calls(prose, tools, parallel)
    if call_format not in FORMS:
        raise InvalidParams(
            f"tool calls can be written as {', '.join(CALL_FORMATS)}, not {call_format!r:.80}"
        )
    if not tools:
        raise InvalidParams("a tool call needs at least one tool")
    if call_format != "llama3_json" or form is None:
        return call_rules(prose, FORMS[call_format], tools, parallel)
    more = f' ("; " call){{0,{MAX_CALLS - 1}}}' if parallel else ""
    return [
        f"calls: call{more} | {prose.words.literal(llama3.TAG)} call",
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
        *(f"call_{index}: {json_value(_call_schema(index, tool), tool)}" for index, tool in enumerate(tools)),
    ]


def _call_schema(index: int, tool: ToolSchema) -> dict[str, object]:
    # The id keeps references in a tool's schema inside of it.
    arguments = {"$id": f"urn:tool:{index}", "type": "object", **tool.parameters}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": arguments},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


_REGEX_TEXT = re.compile(r"\\.|[/\n\r]", re.DOTALL)
_ESCAPES = {"/": r"\/", "\n": r"\n", "\r": r"\r"}


def _inline(form: Grammar) -> str:
    """A form as the body of a rule."""
    if form.kind in (JSON_OBJECT, JSON_SCHEMA):
        schema = {"type": "object"} if form.kind == JSON_OBJECT else json.loads(form.source)
        return "%json " + json.dumps({**schema, "x-guidance": JSON_LAYOUT}, ensure_ascii=False)
    if form.kind == CHOICE:
        return " | ".join(quoted(choice) for choice in json.loads(form.source))
    if form.kind == REGEX:
        return f"/{_REGEX_TEXT.sub(lambda found: _ESCAPES.get(found[0], found[0]), form.source)}/"
    if form.kind == LARK:
        return f"%lark {{\n{form.source}\n}}"
    raise InvalidParams(f"a {form.kind} grammar cannot be used with reasoning or tools")
