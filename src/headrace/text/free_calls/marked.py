"""Answers in which a mark, anywhere in the text, begins a call: as Hermes and Mistral write them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.text.free_calls.prose import SPACE, Prose
from headrace.text.grammar_words import quoted
from headrace.text.reply import hermes, mistral
from headrace.text.tool_rules import ToolSchema, object_rules

GAP = "/[ \\n]?/"
"""What may stand between a mark and a call."""


def hermes_answer(prose: Prose, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """The rules `answer` and `reply`, see `marked`. Behind a call stands the closing mark, always."""
    closing = prose.words.literal(hermes.CLOSE)
    return [
        *marked(prose, hermes.OPEN, parallel),
        f"behind_mark: {GAP} tool {GAP} {closing}",
        *object_rules(tools, "arguments"),
    ]


def mistral_answer(prose: Prose, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """The rules `answer` and `reply`, see `marked`. A mark begins a list of calls, or one call by its name."""
    literal = prose.words.literal
    more = f' ({GAP} "," {GAP} tool)*' if parallel else ""
    named = [
        f"named_{index}: {quoted(tool.name)} by_name arguments_{index}" for index, tool in enumerate(tools)
    ]
    return [
        *marked(prose, mistral.OPEN, parallel),
        f"behind_mark: {GAP} (listed | named)",
        f'listed: "[" {GAP} tool{more} {GAP} "]"',
        "named: " + " | ".join(f"named_{index}" for index in range(len(tools))),
        *named,
        f"by_name: ({literal(mistral.ID)} /[a-zA-Z0-9]{{1,32}}/)? {literal(mistral.ARGUMENTS)} {GAP}",
        *object_rules(tools, "arguments"),
    ]


def marked(prose: Prose, mark: str, parallel: bool) -> list[str]:
    """`answer`: text with calls in it, each the mark and the rule `behind_mark`. `reply`: the same, but what is no text
    comes behind some text.

    Without `parallel` the answer ends with its first call.
    """
    rest = "(call | other)* ANY" if parallel else "other* (call | ANY)"
    return [
        f"answer: {rest}",
        f"reply: ANY | call{' answer' if parallel else ''} | first_other answer",
        "call: until_mark behind_mark",
        *prose.until("until_mark", mark),
        f"other: SAFE {prose.others((mark,))}",
        f"first_other: FIRST {prose.others((mark,))}",
        f"FIRST: SAFE & /[{SPACE}]*[^{SPACE}](?s:.)*/",
    ]
