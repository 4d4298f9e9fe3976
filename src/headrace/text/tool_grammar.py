"""The grammar of an answer that must call one of the given tools, in the form that the model was trained to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.grammar import LARK, Grammar
from headrace.errors import InvalidParams
from headrace.text.grammar_words import Words
from headrace.text.tokenizer import Tokenizer
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

_MARKERS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")


def tool_call_grammar(
    tools: Sequence[ToolSchema],
    call_format: str,
    tokenizer: Tokenizer | None = None,
    *,
    parallel: bool = True,
) -> Grammar:
    """A grammar of one call of one of `tools`, or with `parallel` of up to MAX_CALLS, and nothing around them.

    With a tokenizer, markers that are tokens of its vocabulary are written as those tokens. Where they are special,
    their texts are then left out of what a detokenizer that skips special tokens gives. Order of keys: name, then
    arguments.

    Raises InvalidParams for an unknown format, no tools, and schemas that are too large.
    """
    form = _FORMS.get(call_format)
    if form is None:
        raise InvalidParams(
            f"tool calls can be written as {', '.join(CALL_FORMATS)}, not {call_format!r:.80}"
        )
    if not tools:
        raise InvalidParams("a tool call needs at least one tool")
    literal = Words(tokenizer, _MARKERS).literal
    more = f" ({literal(form.between)} call){{0,{MAX_CALLS - 1}}}" if parallel else ""
    rules = [
        f"start: {literal(form.before)} call{more} {literal(form.after)}",
        f"call: {literal(form.opening)} tool {literal(form.closing)}",
        *object_rules(tools, form.arguments),
    ]
    return Grammar(LARK, "\n".join(rules) + "\n")
