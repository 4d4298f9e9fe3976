"""The grammar as a whole: reasoning, in which nothing is held, and an answer that is free but for its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.core.grammar import LARK, Grammar
from headrace.errors import InvalidParams
from headrace.text.free_calls.llama3 import llama3_answer
from headrace.text.free_calls.marked import hermes_answer, mistral_answer
from headrace.text.free_calls.prose import Prose
from headrace.text.free_calls.pythonic import pythonic_answer
from headrace.text.grammar_words import Words
from headrace.text.reply import hermes, llama3, mistral
from headrace.text.reply.reasoning import ReasoningFormat
from headrace.text.tokenizer import Tokenizer
from headrace.text.tool_rules import ToolSchema

_Answer = Callable[[Prose, Sequence[ToolSchema], bool], list[str]]

_ANSWERS: dict[str, tuple[_Answer, tuple[str, ...]]] = {
    "hermes": (hermes_answer, (hermes.OPEN,)),
    "mistral": (mistral_answer, (mistral.OPEN,)),
    "llama3_json": (llama3_answer, (llama3.TAG,)),
    "pythonic": (pythonic_answer, ()),
}
"""By vLLM's names of the tool parsers: the rules of the answer, and the marks that begin a call anywhere in it."""

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
    """Any text, in which whatever the parser of `call_format` reads as a call is one of `tools`, by its schema.

    With `reasoning` some may stand before the answer, and nothing in there counts as a call. `inside`: the text begins
    in the middle of it. Without `parallel` the answer ends with its first call.

    Raises InvalidParams for an unknown format, no tools, and schemas that are too large or that the format cannot hold.
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
    """Reasoning ends with its closing mark, or with the text. `reply` is an answer without any, see the answers: if
    there were no text before a token that is none, a reader who does not see it could take what follows for reasoning.
    """
    return [
        "start: thoughts" if inside else "start: until_opened thoughts | reply",
        "thoughts: thought* (until_closed answer | ANY)",
        f"thought: SAFE {prose.others((reasoning.close,))}",
        *([] if inside else prose.until("until_opened", reasoning.open, "BLANK")),
        *prose.until("until_closed", reasoning.close),
    ]
