"""Answers as Llama 3 writes calls: JSON from the first character on, or behind `<|python_tag|>`.

An answer that begins with JSON is a call where its name is a tool's, and text where it has another name or other keys.
So the grammar looks at the keys: it holds a call to its schema from the tool's name on, and it does not admit an object
whose arguments come before its name, or whose keys and name are written with escapes, for both could turn out as calls
when it is too late.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.text.free_calls.prose import SPACE, Prose
from headrace.text.grammar_words import quoted
from headrace.text.reply import llama3
from headrace.text.tool_rules import ToolSchema, object_rules

_KEY = "parameters"
_BETWEEN = rf"{SPACE};,"
_TERMINALS = (
    r"ESCAPED: /\x22[^\x22\\]*\\/",
    r"VALUE: /\x22[^\x22\\]*\x22|[A-Za-z0-9_+.\-]+/",
    r'IGNORED: ("\"id\"" | "\"type\"") COLON VALUE BLANK "," BLANK',
    r'COLON: BLANK ":" BLANK',
    rf'HEAD: /[{_BETWEEN}]*/ "{{" BLANK IGNORED*',
    r'LATE: HEAD ("\"parameters\"" | "\"arguments\"" | ESCAPED | ("\"id\"" | "\"type\"" | "\"name\"") COLON ESCAPED)',
    "CALM: ANY & ~(LATE ANY)",
    rf"FIRST: SAFE & /[{_BETWEEN}]*[^{_BETWEEN}{{](?s:.)*/",
)


def llama3_answer(prose: Prose, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """`answer`: text or calls. Behind a call another one may begin without a mark. `reply`: the same.

    Without `parallel` the answer ends with its first call.
    """
    other = prose.others((llama3.TAG,))
    named = [
        rule
        for index, tool in enumerate(tools)
        for rule in (
            f'until_name_{index}[lazy]: HEAD "\\"name\\"" COLON {quoted(quoted(tool.name))}',
            f'named_{index}: until_name_{index} ", \\"{_KEY}\\": " arguments_{index} "}}"',
        )
    ]
    return [
        "reply: answer",
        "answer: call* text" if parallel else "answer: call | text",
        "text: CALM | first_other other* ANY",
        "call: named | until_first_tag tagged | first_other other* until_tag tagged",
        f"first_other: FIRST {other}",
        f"other: SAFE {other}",
        *prose.until("until_first_tag", llama3.TAG, "CALM"),
        *prose.until("until_tag", llama3.TAG),
        "tagged: /[ \\n]?/ tool",
        "named: " + " | ".join(f"named_{index}" for index in range(len(tools))),
        *named,
        *object_rules(tools, _KEY),
        *_TERMINALS,
    ]
