"""Calls of tools as rules of a grammar, in the form that the model was trained to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import InvalidParams
from headrace.text.grammar_words import Words
from headrace.text.tool_rules import ToolSchema, object_rules

MAX_CALLS = 32
"""Most calls in one answer."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How calls are written: `before` all of them, each between `opening` and `closing`, `between` two, `after`."""

    arguments: str  # the key that holds them
    before: str = ""
    opening: str = ""
    closing: str = ""
    between: str = ""
    after: str = ""


_FORMS = {
    "hermes": _Form("arguments", opening="<tool_call>\n", closing="\n</tool_call>", between="\n"),
    "llama3_json": _Form("parameters", between="; "),
    "mistral": _Form("arguments", before="[TOOL_CALLS][", between=", ", after="]"),
}
CALL_FORMATS = tuple(_FORMS)
"""vLLM's names of the tool parsers that read these forms."""


def call_rules(tools: Sequence[ToolSchema], call_format: str, words: Words, *, parallel: bool) -> list[str]:
    """The rule `calls`, and those below it: one call of one of `tools`, or with `parallel` of up to MAX_CALLS, and
    nothing around them. Order of keys: name, then arguments.

    Markers that are tokens of the vocabulary are written as those tokens. Where these are special, their texts are left
    out of what a detokenizer that skips special tokens gives.

    Raises InvalidParams for an unknown format, no tools, and schemas that are not JSON.
    """
    form = _FORMS.get(call_format)
    if form is None:
        raise InvalidParams(
            f"tool calls can be written as {', '.join(CALL_FORMATS)}, not {call_format!r:.80}"
        )
    if not tools:
        raise InvalidParams("a tool call needs at least one tool")
    literal = words.literal
    more = f" ({literal(form.between)} call){{0,{MAX_CALLS - 1}}}" if parallel else ""
    return [
        f"calls: {literal(form.before)} call{more} {literal(form.after)}",
        f"call: {literal(form.opening)} tool {literal(form.closing)}",
        *object_rules(tools, form.arguments),
    ]
