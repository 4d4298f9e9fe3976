"""The grammar of an answer that may call tools: free text, and calls that obey their schemas.

An answer that begins with JSON is a call if its name is a tool's, and text if it has another name or other keys.
So the grammar depends on the keys: a call must follow its schema from the tool's name on. Excluded are objects whose
arguments precede their name, or whose keys and name are written with escapes: they could turn out to be calls
after their arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headrace.core.grammar import LARK, Grammar
from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools import hermes, llama3, mistral
from headrace.text.tools.grammar.channels import free_channel_answer
from headrace.text.tools.grammar.forms import FORMS, MARKERS, Form
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


def formed_answer(form: Form, prose: Prose, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """The rules `answer` and `reply`: text, and calls that are written as in `form` from one of its marks on."""
    literal = prose.words.literal
    listed = f" ({literal(form.between)} one)*" if parallel else ""
    rules = [
        *_text_and_calls(prose, form.marks, parallel),
        "one: " + " | ".join(f"one_{index}" for index in range(len(tools))),
        *form.arguments(prose, tools),
    ]
    for index, tool in enumerate(tools):
        rules.append(f"one_{index}: {literal(form.head(tool.name))} arguments_{index} {literal(form.tail)}")
    for number, mark in enumerate(form.marks):
        written = form.same.get(mark, mark)
        if written in form.before or form.before.startswith(written):
            rest = form.before.partition(written)[2]
            rules.append(f"after_mark_{number}: {literal(rest)} one{listed} {literal(form.after)}")
        else:
            ones = [
                f"{literal(form.head(tool.name).partition(written)[2])} arguments_{index} {literal(form.tail)}"
                for index, tool in enumerate(tools)
            ]
            rules.append(f"after_mark_{number}: {' | '.join(ones)}")
    return rules


def _text_and_calls(prose: Prose, marks: Sequence[str], parallel: bool) -> list[str]:
    """As `marked`, with several marks: rule `after_mark_n` follows mark n. The first mark in a text begins a call."""
    rest = "(call | other)* ANY" if parallel else "other* (call | ANY)"
    other = prose.others(marks)
    return [
        f"answer: {rest}",
        f"reply: ANY | call{' answer' if parallel else ''} | first_other answer",
        "call: " + " | ".join(f"until_mark_{number} after_mark_{number}" for number in range(len(marks))),
        *(rule for number, mark in enumerate(marks) for rule in prose.until(f"until_mark_{number}", mark)),
        f"other: SAFE {other}",
        f"first_other: FIRST {other}",
        f"FIRST: SAFE & /[{SPACE}]*[^{SPACE}](?s:.)*/",
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


def free_call_grammar(
    tools: Sequence[ToolSchema],
    call_format: str,
    tokenizer: Tokenizer | None = None,
    *,
    parallel: bool = True,
    reasoning: ReasoningFormat | None = None,
    inside: bool = False,
    channels: bool = False,
    answering: bool = False,
) -> Grammar:
    """Any text in which all that the parser of `call_format` reads as calls are calls of `tools` by their schemas.

    With `reasoning` the answer may follow some, in which there are no calls. `inside`: the text begins
    in the middle of it. Without `parallel` the answer ends with its first call. `channels`: replies are in the harmony
    format. `answering`: the text continues an answer.

    Raises InvalidParams for a format in which calls cannot be checked, no tools, and schemas that are too large or
    cannot be expressed in the format.
    """
    if call_format not in _ANSWERS and not (call_format in FORMS and (FORMS[call_format].marks or channels)):
        raise InvalidParams(
            f"calls in the format {call_format!r:.80} cannot be held to a strict tool's schema; "
            "leave strict out, or require a call with tool_choice"
        )
    if not tools:
        raise InvalidParams("a tool call needs at least one tool")
    rules_of, marks = _ANSWERS.get(call_format) or _formed(FORMS[call_format])
    if reasoning is not None:
        marks += (*reasoning.opens, *reasoning.closes)
    prose = Prose(Words(tokenizer, MARKERS), marks)
    if channels:
        return free_channel_answer(prose, tools, parallel, inside, answering)
    start = ["start: answer"] if reasoning is None else _with_reasoning(prose, reasoning, inside)
    rules = [*start, *rules_of(prose, tools, parallel), *prose.terminals()]
    return Grammar(LARK, "\n".join(rules) + "\n")


def _formed(form: Form) -> tuple[_Answer, tuple[str, ...]]:
    return partial(formed_answer, form), form.marks


def _with_reasoning(prose: Prose, reasoning: ReasoningFormat, inside: bool) -> list[str]:
    """Reasoning ends with its closing mark, or with the text. `reply` is an answer without any. Some text must
    precede its tokens that are not text: a parser that does not see them could read what follows as reasoning.
    """
    return [
        "start: thoughts" if inside else "start: until_opened thoughts | reply",
        "thoughts: thought* (until_closed answer | ANY)",
        f"thought: SAFE {prose.others(reasoning.closes)}",
        *([] if inside else prose.until_any("until_opened", reasoning.opens, "BLANK")),
        *prose.until_any("until_closed", reasoning.closes),
    ]
