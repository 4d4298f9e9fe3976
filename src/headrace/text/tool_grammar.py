"""The grammar of an answer that must call one of the given tools, in the form that the model was trained to write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.grammar import LARK, Grammar
from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer

MAX_CALLS = 32
"""Most calls in one answer."""
JSON_LAYOUT = {"whitespace_pattern": " "}
"""What llguidance lets stand between the parts of JSON, at most: one space. A model that is unsure of its next token
would fill any more room with blanks."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool's name and the JSON Schema of its arguments, an object."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})


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

    With a tokenizer, markers that are special tokens of its vocabulary are written as those tokens: their texts are
    then left out of what a detokenizer that skips special tokens gives. Order of keys: name, then arguments.

    Raises InvalidParams for an unknown format, no tools, and schemas that are too large.
    """
    form = _FORMS.get(call_format)
    if form is None:
        raise InvalidParams(
            f"tool calls can be written as {', '.join(CALL_FORMATS)}, not {call_format!r:.80}"
        )
    if not tools:
        raise InvalidParams("a tool call needs at least one tool")

    def literal(text: str) -> str:
        return " ".join(_literals(text, tokenizer))

    call = f"{literal(form.opening)} tool {literal(form.closing)}"
    more = f" ({literal(form.between)} call){{0,{MAX_CALLS - 1}}}" if parallel else ""
    rules = [
        f"start: {literal(form.before)} call{more} {literal(form.after)}",
        f"call: {call}",
        "tool: " + " | ".join(f"tool_{index}" for index in range(len(tools))),
    ]
    for index, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{form.arguments}": '
        try:
            schema = json.dumps(
                {"type": "object", **tool.parameters, "x-guidance": JSON_LAYOUT},
                ensure_ascii=False, allow_nan=False,
            )  # fmt: skip
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidParams(f"the parameters of tool {tool.name!r:.80} are not JSON") from error
        rules.append(f'tool_{index}: {_quoted(head)} %json {schema} "}}"')
    return Grammar(LARK, "\n".join(rules) + "\n")


def _literals(text: str, tokenizer: Tokenizer | None) -> list[str]:
    """Lark's words for a text, with markers that are special tokens by their ids."""
    if not text:
        return []
    for marker in _MARKERS:
        found = None if tokenizer is None else tokenizer.special_id(marker)
        if found is not None and marker in text:
            before, _, after = text.partition(marker)
            return [*_literals(before, tokenizer), f"<[{found}]>", *_literals(after, tokenizer)]
    return [_quoted(text)]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
