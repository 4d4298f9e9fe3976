"""The formats of tool calls by name, and which of them a chat template means."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from headrace.text.reply import hermes, llama3, mistral, pythonic
from headrace.text.reply.pieces import Parser


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """One way to write calls.

    parser: makes a parser from the names of the tools and the markers that must not be shown.
    markers: what the parser must see of the model's output, even if it is a special token.
    signs: a chat template that holds one of these means this format.
    id_chars: length of the ids of calls; None where any will do.
    """

    name: str
    parser: Callable[[Collection[str], Collection[str]], Parser]
    markers: tuple[str, ...]
    signs: tuple[str, ...]
    id_chars: int | None = None

    def new_id(self) -> str:
        """An id for a call that nobody will guess."""
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
        ToolCallFormat("pythonic", pythonic.PythonicParser, (), ("[func_name1(params_name1=",)),
    )
}  # fmt: skip
"""By vLLM's names, in the order in which a template is searched for their signs."""

GENERIC = TOOL_CALL_FORMATS["hermes"]
"""For models whose template says nothing of calls."""


def detect_tool_calls(template: str | None) -> ToolCallFormat | None:
    """The format that a chat template means; None where it says nothing of one."""
    for one in TOOL_CALL_FORMATS.values():
        if template is not None and any(sign in template for sign in one.signs):
            return one
    return None
