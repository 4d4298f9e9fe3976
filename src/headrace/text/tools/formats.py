"""The formats of tool calls by name, and which of them a chat template uses."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools import (
    deepseek,
    gemma,
    harmony,
    hermes,
    llama3,
    marked_json,
    mistral,
    pythonic,
    tagged,
)
from headrace.text.tools.call_parser import Tools
from headrace.text.tools.pieces import Parser
from headrace.text.tools.reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning

_DEEPSEEK = (
    deepseek.CALLS, deepseek.CALL, deepseek.SEPARATOR, deepseek.CALL_END, deepseek.CALLS_END,
)  # fmt: skip

Sign = str | tuple[str, ...]
"""A text in a chat template, or several that are all in it."""


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """One way to write calls.

    parser: makes a parser from the tools and the markers to leave out of the content.
    markers: what the parser needs of the model's output, even if it is a special token.
    signs: a chat template that contains one of these uses this format.
    looks: what a call looks like, for people. families: models that write it.
    id_chars: length of the ids of calls; None for any length.
    forced: the name of the format for answers that must be calls; empty for this one.
    channels: the parser reads whole replies, reasoning and all: harmony.
    """

    name: str
    parser: Callable[[Tools, Collection[str]], Parser]
    markers: tuple[str, ...]
    signs: tuple[Sign, ...]
    looks: str
    families: str
    id_chars: int | None = None
    forced: str = ""
    channels: bool = False

    def new_id(self) -> str:
        """A random id for a call."""
        if self.id_chars is None:
            return f"call_{secrets.token_hex(12)}"
        return secrets.token_hex(self.id_chars)[: self.id_chars]

    def shown_by(self, template: str) -> bool:
        """Whether a chat template contains one of the signs."""
        return any(
            all(part in template for part in ((sign,) if isinstance(sign, str) else sign))
            for sign in self.signs
        )


_LLAMA_JSON = '{"name": function name, "parameters"'

TOOL_CALL_FORMATS: dict[str, ToolCallFormat] = {
    one.name: one
    for one in (
        ToolCallFormat(
            "openai", harmony.HarmonyParser, harmony.MARKERS, (harmony.CHANNEL,),
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>', "gpt-oss",
            channels=True,
        ),
        ToolCallFormat(
            "gemma4", gemma.Gemma4Parser, ("<|tool_call>", "<tool_call|>", '<|"|>'), ("<|tool_call>",),
            '<|tool_call>call:f{a:<|"|>text<|"|>,b:1}<tool_call|>', "Gemma 4",
        ),
        ToolCallFormat(
            "functiongemma", gemma.FunctionGemmaParser,
            ("<start_function_call>", "<end_function_call>", "<escape>"), ("<start_function_call>",),
            "<start_function_call>call:f{a:<escape>text<escape>,b:1}<end_function_call>", "FunctionGemma",
        ),
        ToolCallFormat(
            "mistral", mistral.MistralParser, (mistral.OPEN, mistral.ID, mistral.ARGUMENTS), (mistral.OPEN,),
            '[TOOL_CALLS] [{"name": "f", "arguments": {…}}, …] or [TOOL_CALLS]f[ARGS]{…}',
            "Mistral, Ministral, Magistral, Devstral",
            id_chars=9,  # Mistral's templates refuse any other length
        ),
        ToolCallFormat(
            "deepseek_v3", deepseek.DeepSeekParser, _DEEPSEEK, ((deepseek.CALL, deepseek.FENCE),),
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f, then {…} fenced as json, <｜tool▁call▁end｜>",
            "DeepSeek V2.5, V3, R1",
        ),
        ToolCallFormat(
            "deepseek_v31", deepseek.DeepSeekParser, _DEEPSEEK, (deepseek.CALL,),
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>", "DeepSeek V3.1",
        ),
        ToolCallFormat(
            "cohere_command3", marked_json.CohereParser, (marked_json.START_ACTION, marked_json.END_ACTION),
            (marked_json.START_ACTION,),
            '<|START_ACTION|>[{"tool_name": "f", "parameters": {…}}]<|END_ACTION|>', "Command R7B, Command A",
        ),
        ToolCallFormat(
            "internlm", marked_json.InternLMParser,
            (marked_json.ACTION_START, marked_json.PLUGIN, marked_json.ACTION_END), (marked_json.ACTION_START,),
            '<|action_start|><|plugin|>{"name": "f", "parameters": {…}}<|action_end|>', "InternLM 2.5, 3",
        ),
        ToolCallFormat(
            "phi4_mini_json", marked_json.Phi4MiniParser, (marked_json.TOOL_CALL, marked_json.TOOL_CALL_END),
            (marked_json.TOOL_CALL_END, "functools[", "<|/tool|>"),
            '<|tool_call|>[{"name": "f", "arguments": {…}}]<|/tool_call|> or functools[{…}]', "Phi-4-mini",
        ),
        ToolCallFormat(
            "granite", marked_json.GraniteParser, marked_json.GraniteParser.marks, (marked_json.TOOL_CALL,),
            '<|tool_call|>[{"name": "f", "arguments": {…}}]', "Granite 3",
        ),
        ToolCallFormat(
            "lfm2", pythonic.Lfm2Parser, (pythonic.CALL_START, pythonic.CALL_END),
            (pythonic.CALL_START, "<|tool_list_start|>", ("List of tools: [", "keep_past_thinking")),
            "<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>", "LFM 2",
        ),
        ToolCallFormat(
            "seed_oss", tagged.SeedParser, tagged.SEED.markers, (tagged.SEED.call,),
            "<seed:tool_call><function=f><parameter=a>1</parameter></function></seed:tool_call>", "Seed-OSS",
        ),
        ToolCallFormat(
            "glm45", tagged.GlmParser, tagged.GLM.markers, (tagged.GLM.key,),
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "GLM-4.5 and later",
        ),
        ToolCallFormat(
            "qwen3_coder", tagged.QwenCoderParser, tagged.QWEN.markers, ((tagged.QWEN.function, tagged.QWEN.key),),
            "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
            "Qwen3-Coder, Qwen 3.5 and later",
        ),
        ToolCallFormat(
            "olmo3", pythonic.Olmo3Parser, (pythonic.CALLS, pythonic.CALLS_END), (pythonic.CALLS,),
            "<function_calls>f(a=1)</function_calls>, a call a line", "OLMo 3",
        ),
        ToolCallFormat(
            "llama4_json", llama3.Llama4JsonParser, (llama3.PYTHON_START, llama3.PYTHON_END),
            ((llama3.PYTHON_START, _LLAMA_JSON),),
            '{"name": "f", "parameters": {…}}, also after <|python_start|>', "Llama 4", forced="llama3_json",
        ),
        ToolCallFormat(
            "llama4_pythonic", pythonic.Llama4Parser, (llama3.PYTHON_START, llama3.PYTHON_END),
            (llama3.PYTHON_START,), "[f(a=1), g()], also after <|python_start|>", "Llama 4", forced="llama3_json",
        ),
        ToolCallFormat(
            "hermes", hermes.HermesParser, (hermes.OPEN, hermes.CLOSE), (hermes.OPEN, "xml_tools"),
            '<tool_call>{"name": "f", "arguments": {…}}</tool_call>',
            "Hermes, Qwen 2.5, Qwen 3, SmolLM 3, Granite 4; also if the template shows nothing, as that of Gemma 3",
        ),
        ToolCallFormat(
            "llama3_json", llama3.Llama3Parser, (llama3.TAG,), (llama3.TAG, _LLAMA_JSON),
            '{"name": "f", "parameters": {…}}, several separated by ;, also after <|python_tag|>', "Llama 3.1 to 3.3",
        ),
        ToolCallFormat(
            "pythonic", pythonic.PythonicParser, (), ("[func_name1(params_name1=",), "[f(a=1), g()]", "Llama 3.2",
            forced="llama3_json",
        ),
    )
}  # fmt: skip
"""By vLLM's names, in the order in which a template is searched for their signs."""

GENERIC = TOOL_CALL_FORMATS["hermes"]
"""For models whose template does not show a format."""


def detect_tool_calls(template: str | None) -> ToolCallFormat | None:
    """The format that a chat template uses; None if it shows none."""
    for one in TOOL_CALL_FORMATS.values():
        if template is not None and one.shown_by(template):
            return one
    return None


AUTO, NONE = "auto", "none"

TOOL_CALL_PARSERS = (AUTO, *TOOL_CALL_FORMATS, NONE)
REASONING_PARSERS = (AUTO, *REASONING_FORMATS, NONE)


@dataclass(frozen=True, slots=True)
class ReplyFormats:
    """How a model writes. `calls` is None if replies are not searched for calls, `reasoning` if it writes none."""

    calls: ToolCallFormat | None = GENERIC
    reasoning: ReasoningFormat | None = None

    @classmethod
    def of(
        cls, tokenizer: Tokenizer | None, tool_call_parser: str = AUTO, reasoning_parser: str = AUTO
    ) -> ReplyFormats:
        """The formats with these names; "auto" is what the model's chat template shows.

        Raises ConfigError for other names.
        """
        template = None if tokenizer is None else tokenizer.chat_template_source(with_tools=True)
        for option, name, names in (
            ("tool-call-parser", tool_call_parser, TOOL_CALL_PARSERS),
            ("reasoning-parser", reasoning_parser, REASONING_PARSERS),
        ):
            if name not in names:
                raise ConfigError(f"--{option} must be one of {', '.join(names)}, got {name!r:.80}")
        return cls(
            detect_tool_calls(template) or GENERIC
            if tool_call_parser == AUTO
            else TOOL_CALL_FORMATS.get(tool_call_parser),
            detect_reasoning(template)
            if reasoning_parser == AUTO
            else REASONING_FORMATS.get(reasoning_parser),
        )
