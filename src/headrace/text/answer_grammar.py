"""The grammar of an answer with a fixed form: reasoning first, then calls of tools, or text in the form asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from headrace.core.grammar import CHOICE, JSON_OBJECT, JSON_SCHEMA, LARK, REGEX, Grammar
from headrace.errors import InvalidParams
from headrace.text.free_calls.prose import Prose
from headrace.text.free_calls.pythonic import pythonic_calls
from headrace.text.grammar_words import Words, quoted
from headrace.text.reply import hermes, llama3, mistral
from headrace.text.reply.reasoning import ReasoningFormat
from headrace.text.tokenizer import Tokenizer
from headrace.text.tool_grammar import MAX_CALLS, call_rules
from headrace.text.tool_rules import JSON_LAYOUT, ToolSchema, json_value

_MARKERS = (hermes.OPEN, hermes.CLOSE, mistral.OPEN)
_GAP = r"/\s{0,2}/"
"""White space between reasoning and answer: as much as models write, and no more, or one in doubt would go on."""


def answer_grammar(
    form: Grammar | None,
    tools: Sequence[ToolSchema] = (),
    call_format: str = "",
    tokenizer: Tokenizer | None = None,
    *,
    parallel: bool = True,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
) -> Grammar:
    """Text of `form`, or calls of `tools` as `call_format` has them; of the two, what there is. With `parallel` up to
    MAX_CALLS calls.

    With `reasoning` some may stand before the answer; it must end, and an answer must follow. `inside`: the text begins
    in the middle of it. A form alone, without reasoning and tools, is its own grammar.

    Raises InvalidParams for neither form nor tools, for an unknown format of calls, and for sources that are too large.
    """
    if form is not None and not tools and reasoning is None:
        return form
    words = Words(tokenizer, _MARKERS)
    marks = () if reasoning is None else (reasoning.open, reasoning.close)
    prose = Prose(words, marks)
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
        first = "" if inside else f"{words.literal(reasoning.open)} "
        thinks = f"{first}thought* until_closed {_GAP} answer"
        start = [
            f"start: {thinks}" if inside else f"start: {thinks} | answer",
            f"thought: SAFE {prose.others((reasoning.close,))}",
            *prose.until("until_closed", reasoning.close),
        ]
    lines = [*start, f"answer: {' | '.join(kinds)}", *rules, *prose.terminals()]
    return Grammar(LARK, "\n".join(lines) + "\n")


def _calls(
    prose: Prose, tools: Sequence[ToolSchema], call_format: str, parallel: bool, form: Grammar | None
) -> list[str]:
    """The rule `calls`. Beside a form of JSON, a call that is JSON from its first character on is written as JSON too:
    llguidance cannot choose between a literal and JSON that begin alike, but between JSON and JSON."""
    if call_format == "pythonic":
        return pythonic_calls(prose, tools, parallel)
    if call_format != "llama3_json" or form is None or not tools:
        return call_rules(tools, call_format, prose.words, parallel=parallel)
    more = f' ("; " call){{0,{MAX_CALLS - 1}}}' if parallel else ""
    return [
        f"calls: call{more} | {prose.words.literal(llama3.TAG)} call",
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
        *(f"call_{index}: {json_value(_call_schema(index, tool), tool)}" for index, tool in enumerate(tools)),
    ]


def _call_schema(index: int, tool: ToolSchema) -> dict[str, object]:
    # With an id of its own, the references in a tool's schema do not leave it.
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
    raise InvalidParams(f"a {form.kind} grammar cannot follow reasoning or stand beside tools")
