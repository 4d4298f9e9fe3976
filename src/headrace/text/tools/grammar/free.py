"""The grammar of an answer that may call tools: free text, and calls that obey their schemas.

An answer that begins with JSON is a call if its name is a tool's, and text if it has another name or other keys.
So the grammar depends on the keys: a call must follow its schema from the tool's name on. Excluded are objects whose
arguments precede their name, or whose keys and name are written with escapes: they could turn out to be calls
after their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.core.grammar import LARK, Grammar
from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools import hermes, llama3, mistral
from headrace.text.tools.grammar.pythonic import pythonic_answer
from headrace.text.tools.grammar.words import SPACE, Prose, ToolSchema, Words, object_rules, quoted
from headrace.text.tools.reasoning import ReasoningFormat

GAP = "/[ \\n]?/"
"""White space between a mark and a call."""


def hermes_answer(prose: Prose, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """The rules `answer` and `reply`, see `marked`. The closing mark always follows a call."""
    closing = prose.words.literal(hermes.CLOSE)
    return [
        *marked(prose, hermes.OPEN, parallel),
        f"after_mark: {GAP} tool {GAP} {closing}",
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
        f"after_mark: {GAP} (listed | named)",
        f'listed: "[" {GAP} tool{more} {GAP} "]"',
        "named: " + " | ".join(f"named_{index}" for index in range(len(tools))),
        *named,
        f"by_name: ({literal(mistral.ID)} /[a-zA-Z0-9]{{1,32}}/)? {literal(mistral.ARGUMENTS)} {GAP}",
        *object_rules(tools, "arguments"),
    ]


def marked(prose: Prose, mark: str, parallel: bool) -> list[str]:
    """`answer`: text with calls in it, each the mark and the rule `after_mark`. `reply`: the same, but tokens that are
    not text follow some text.

    Without `parallel` the answer ends with its first call.
    """
    rest = "(call | other)* ANY" if parallel else "other* (call | ANY)"
    return [
        f"answer: {rest}",
        f"reply: ANY | call{' answer' if parallel else ''} | first_other answer",
        "call: until_mark after_mark",
        *prose.until("until_mark", mark),
        f"other: SAFE {prose.others((mark,))}",
        f"first_other: FIRST {prose.others((mark,))}",
        f"FIRST: SAFE & /[{SPACE}]*[^{SPACE}](?s:.)*/",
    ]


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
    """`answer`: text or calls. After a call another one may begin without a mark. `reply`: the same.

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


_Answer = Callable[[Prose, Sequence[ToolSchema], bool], list[str]]

_ANSWERS: dict[str, tuple[_Answer, tuple[str, ...]]] = {
    "hermes": (hermes_answer, (hermes.OPEN,)),
    "mistral": (mistral_answer, (mistral.OPEN,)),
    "llama3_json": (llama3_answer, (llama3.TAG,)),
    "pythonic": (pythonic_answer, ()),
}
"""By vLLM's names of the tool parsers: the rules of the answer, and the marks that begin a call in it."""

_MARKERS = (hermes.CLOSE, mistral.ID, mistral.ARGUMENTS)


def free_call_grammar(
    tools: Sequence[ToolSchema],
    call_format: str,
    tokenizer: Tokenizer | None = None,
    *,
    parallel: bool = True,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
) -> Grammar:
    """Any text in which all that the parser of `call_format` reads as calls are calls of `tools` by their schemas.

    With `reasoning` the answer may follow some, in which there are no calls. `inside`: the text begins
    in the middle of it. Without `parallel` the answer ends with its first call.

    Raises InvalidParams for an unknown format, no tools, and schemas too large or not expressible in the format.
    """
    if call_format not in _ANSWERS:
        raise InvalidParams(f"tool calls can be written as {', '.join(_ANSWERS)}, not {call_format!r:.80}")
    if not tools:
        raise InvalidParams("a tool call needs at least one tool")
    rules_of, marks = _ANSWERS[call_format]
    if reasoning is not None:
        marks += (reasoning.open, reasoning.close)
    prose = Prose(Words(tokenizer, _MARKERS), marks)
    start = ["start: answer"] if reasoning is None else _with_reasoning(prose, reasoning, inside)
    rules = [*start, *rules_of(prose, tools, parallel), *prose.terminals()]
    return Grammar(LARK, "\n".join(rules) + "\n")


def _with_reasoning(prose: Prose, reasoning: ReasoningFormat, inside: bool) -> list[str]:
    """Reasoning ends with its closing mark, or with the text. `reply` is an answer without any. Some text must
    precede its tokens that are not text: a parser that does not see them could read what follows as reasoning.
    """
    return [
        "start: thoughts" if inside else "start: until_opened thoughts | reply",
        "thoughts: thought* (until_closed answer | ANY)",
        f"thought: SAFE {prose.others((reasoning.close,))}",
        *([] if inside else prose.until("until_opened", reasoning.open, "BLANK")),
        *prose.until("until_closed", reasoning.close),
    ]
