"""How calls are written in each format, for grammars: what stands around the arguments, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.text.tools import deepseek, harmony, hermes, llama3, marked_json, mistral, pythonic, tagged
from headrace.text.tools.grammar.pythonic import any_arguments, python_arguments
from headrace.text.tools.grammar.tagged import any_values, tagged_arguments
from headrace.text.tools.grammar.words import Prose, ToolSchema, json_value, quoted
from headrace.text.tools.reasoning import REASONING_FORMATS
from headrace.text.tools.tagged import Tags

MAX_CALLS = 32
"""Most calls in one answer that is only calls."""


@dataclass(frozen=True, slots=True)
class Form:
    """`before` all calls, `head` of a tool's name and `tail` around the arguments of each, `between` two, `after` all.

    tags: arguments are text between these; python: they are Python's keyword arguments; else they are JSON.
    single: an answer has one call. marks: what begins calls for the parser, see `free`, which has others if there are
    none; `same`: for those that are not
    written here, what they stand for.
    """

    head: Callable[[str], str]
    tail: str
    before: str = ""
    between: str = ""
    after: str = ""
    tags: Tags | None = None
    python: bool = False
    single: bool = False
    marks: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, prose: Prose, tools: Sequence[ToolSchema]) -> list[str]:
        """The rules `arguments_n`, the arguments of tool n. Raises InvalidParams for schemas that are not JSON, or that
        cannot be enforced in this form."""
        if self.tags is not None:
            return [*any_values(self.tags, prose, tools), *self._each(tools, self._tagged(self.tags, prose))]
        if self.python:
            return [*any_arguments(tools), *self._each(tools, python_arguments)]
        return [
            f"arguments_{index}: {json_value({'type': 'object', **tool.parameters}, tool)}"
            for index, tool in enumerate(tools)
        ]

    @staticmethod
    def _each(tools: Sequence[ToolSchema], rules: Callable[[str, ToolSchema], list[str]]) -> list[str]:
        return [rule for index, tool in enumerate(tools) for rule in rules(f"arguments_{index}", tool)]

    @staticmethod
    def _tagged(tags: Tags, prose: Prose) -> Callable[[str, ToolSchema], list[str]]:
        return lambda name, tool: tagged_arguments(name, tool, tags, prose)


def _object(key: str, before: str = "") -> Callable[[str], str]:
    return lambda name: f'{before}{{"name": {quoted(name)}, "{key}": '


def _named(before: str, after: str = "") -> Callable[[str], str]:
    return lambda name: f"{before}{name}{after}"


_QWEN = tagged.QWEN
_SEED = tagged.SEED
_GLM = tagged.GLM

FORMS: dict[str, Form] = {
    "hermes": Form(_object("arguments", "<tool_call>\n"), "}\n</tool_call>", between="\n", marks=(hermes.OPEN,)),
    "llama3_json": Form(_object("parameters"), "}", between="; "),
    "mistral": Form(_object("arguments"), "}", before="[TOOL_CALLS][", between=", ", after="]"),
    "llama4_json": Form(
        _object("parameters"), "}", before=llama3.PYTHON_START, between="; ", after=llama3.PYTHON_END
    ),
    "llama4_pythonic": Form(
        _named("", "("), ")", before=f"{llama3.PYTHON_START}[", between=", ", after=f"]{llama3.PYTHON_END}",
        python=True,
    ),
    "openai": Form(
        _named(f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}", f" {harmony.CONSTRAIN}json{harmony.MESSAGE}"),
        "", single=True,
    ),
    "gemma4": Form(_named("<|tool_call>call:"), "<tool_call|>", marks=("<|tool_call>",)),
    "functiongemma": Form(
        _named("<start_function_call>call:"), "<end_function_call>", marks=("<start_function_call>",)
    ),
    "deepseek_v3": Form(
        _named(f"{deepseek.CALL}function{deepseek.SEPARATOR}", "\n```json\n"), f"\n```{deepseek.CALL_END}",
        before=deepseek.CALLS, between="\n", after=deepseek.CALLS_END, marks=(deepseek.CALLS, deepseek.CALL),
    ),
    "deepseek_v31": Form(
        _named(deepseek.CALL, deepseek.SEPARATOR), deepseek.CALL_END,
        before=deepseek.CALLS, after=deepseek.CALLS_END, marks=(deepseek.CALLS, deepseek.CALL),
    ),
    "cohere_command3": Form(
        lambda name: f'{{"tool_call_id": "0", "tool_name": {quoted(name)}, "parameters": ', "}",
        before=f"{marked_json.START_ACTION}[\n    ", between=",\n    ", after=f"\n]{marked_json.END_ACTION}",
        marks=(marked_json.START_ACTION,),
    ),
    "internlm": Form(
        _object("parameters", f"{marked_json.ACTION_START}{marked_json.PLUGIN}\n"), f"}}{marked_json.ACTION_END}",
        between="\n", marks=marked_json.InternLMParser.marks,
    ),
    "phi4_mini_json": Form(
        _object("arguments"), "}", before=f"{marked_json.TOOL_CALL}[", between=", ",
        after=f"]{marked_json.TOOL_CALL_END}", marks=marked_json.Phi4MiniParser.marks,
        same={"functools[": f"{marked_json.TOOL_CALL}["},
    ),
    "granite": Form(
        _object("arguments"), "}", before=f"{marked_json.TOOL_CALL}[", between=", ", after="]",
        marks=marked_json.GraniteParser.marks, same={"<tool_call>": marked_json.TOOL_CALL},
    ),
    "lfm2": Form(
        _named("", "("), ")", before=f"{pythonic.CALL_START}[", between=", ", after=f"]{pythonic.CALL_END}",
        python=True, marks=(pythonic.CALL_START,),
    ),
    "olmo3": Form(
        _named("", "("), ")", before=f"{pythonic.CALLS}\n", between="\n", after=f"\n{pythonic.CALLS_END}",
        python=True, marks=(pythonic.CALLS,),
    ),
    "seed_oss": Form(
        _named(f"{_SEED.call}\n{_SEED.function}", f"{_SEED.named}\n"), f"{_SEED.done}\n{_SEED.closed}", between="\n",
        tags=_SEED, marks=(_SEED.call, _SEED.function),
    ),
    "qwen3_coder": Form(
        _named(f"{_QWEN.call}\n{_QWEN.function}", f"{_QWEN.named}\n"), f"{_QWEN.done}\n{_QWEN.closed}", between="\n",
        tags=_QWEN, marks=(_QWEN.call, _QWEN.function),
    ),
    "glm45": Form(_named(_GLM.call, "\n"), _GLM.done, between="\n", tags=_GLM, marks=(_GLM.call,)),
}  # fmt: skip
"""By vLLM's names of the tool parsers that read them."""

MARKERS = tuple(
    dict.fromkeys(
        (
            *harmony.MARKERS, hermes.OPEN, hermes.CLOSE, llama3.PYTHON_START, llama3.PYTHON_END,
            mistral.OPEN, mistral.ID, mistral.ARGUMENTS, llama3.TAG,
            "<|tool_call>", "<tool_call|>", "<start_function_call>", "<end_function_call>",
            deepseek.CALLS, deepseek.CALL, deepseek.SEPARATOR, deepseek.CALL_END, deepseek.CALLS_END,
            marked_json.START_ACTION, marked_json.END_ACTION, marked_json.ACTION_START, marked_json.PLUGIN,
            marked_json.ACTION_END, marked_json.TOOL_CALL, marked_json.TOOL_CALL_END, pythonic.CALL_START,
            pythonic.CALL_END, pythonic.CALLS, pythonic.CALLS_END, *_QWEN.markers, *_SEED.markers, *_GLM.markers,
            *(mark for one in REASONING_FORMATS.values() for mark in one.markers),
        )
    )
)  # fmt: skip
"""Markers of calls and reasoning, which are written as tokens where the vocabulary has them."""


def call_rules(prose: Prose, form: Form, tools: Sequence[ToolSchema], parallel: bool) -> list[str]:
    """The rule `calls` and those it uses: one call of one of `tools`, or with `parallel` up to MAX_CALLS, and nothing
    around them."""
    literal = prose.words.literal
    more = f" ({literal(form.between)} call){{0,{MAX_CALLS - 1}}}" if parallel and not form.single else ""
    return [
        f"calls: {literal(form.before)} call{more} {literal(form.after)}",
        "call: " + " | ".join(f"call_{index}" for index in range(len(tools))),
        *(
            f"call_{index}: {literal(form.head(tool.name))} arguments_{index} {literal(form.tail)}"
            for index, tool in enumerate(tools)
        ),
        *form.arguments(prose, tools),
    ]
