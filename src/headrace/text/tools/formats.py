"""The formats of tool calls by name, and which of them a chat template uses."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools import hermes, llama3, mistral, pythonic
from headrace.text.tools.pieces import Parser
from headrace.text.tools.reasoning import REASONING_FORMATS, ReasoningFormat, detect_reasoning


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """One way to write calls.

    parser: makes a parser from the names of the tools and the markers to leave out of the content.
    markers: what the parser needs of the model's output, even if it is a special token.
    signs: a chat template that contains one of these uses this format.
    id_chars: length of the ids of calls; None for any length.
    forced: the name of the format for answers that must be calls; empty for this one.
    """

    name: str
    parser: Callable[[Collection[str], Collection[str]], Parser]
    markers: tuple[str, ...]
    signs: tuple[str, ...]
    id_chars: int | None = None
    forced: str = ""

    def new_id(self) -> str:
        """A random id for a call."""
        if self.id_chars is None:
            return f"call_{secrets.token_hex(12)}"
        return secrets.token_hex(self.id_chars)[: self.id_chars]


TOOL_CALL_FORMATS: dict[str, ToolCallFormat] = {
    one.name: one
    for one in (
        ToolCallFormat(
            "mistral", mistral.MistralParser, (mistral.OPEN, mistral.ID, mistral.ARGUMENTS), (mistral.OPEN,),
            id_chars=9,  # Mistral's templates refuse any other length
        ),
        ToolCallFormat(
            "hermes", hermes.HermesParser, (hermes.OPEN, hermes.CLOSE), (hermes.OPEN,),
        ),
        ToolCallFormat(
            "llama3_json", llama3.Llama3Parser, (llama3.TAG,),
            (llama3.TAG, '{"name": function name, "parameters"'),
        ),
        ToolCallFormat("pythonic", pythonic.PythonicParser, (), ("[func_name1(params_name1=",), forced="llama3_json"),
    )
}  # fmt: skip
"""By vLLM's names, in the order in which a template is searched for their signs."""

GENERIC = TOOL_CALL_FORMATS["hermes"]
"""For models whose template does not show a format."""


def detect_tool_calls(template: str | None) -> ToolCallFormat | None:
    """The format that a chat template uses; None if it shows none."""
    for one in TOOL_CALL_FORMATS.values():
        if template is not None and any(sign in template for sign in one.signs):
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
