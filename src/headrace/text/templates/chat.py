"""Chat templates: a model's Jinja template, compiled once and rendered within limits.

Errors are TokenizerError for a template that cannot be compiled, and RequestError for one that cannot be rendered.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateSyntaxError, nodes

from headrace.errors import InvalidParams, RequestError, TokenizerError
from headrace.text.templates.features import RaisedByTemplate
from headrace.text.templates.messages import PlainCopier, checked_messages, checked_tools
from headrace.text.templates.sandbox import TemplateEnvironment, TemplateLimitExceeded, TemplateLimits


class ChatTemplate:
    """One chat template.

    source: the Jinja text.
    variables: names the template sees in every rendering, such as bos_token.
    now: the clock of `strftime_now`.

    Raises TokenizerError for a source that is too long or not a template.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str] | None = None,
        *,
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._limits = limits or TemplateLimits()
        self._variables = dict(variables or {})
        if len(source) > self._limits.source_chars:
            raise TokenizerError(f"the chat template is longer than {self._limits.source_chars} characters.")
        self._environment = TemplateEnvironment(self._limits, now)
        try:
            tree = self._environment.parse(source)
            for other in tree.find_all(_UNAVAILABLE):
                raise TemplateSyntaxError("it loads other templates or escapes for HTML", other.lineno)
            self.reads_parts = any(_ends_in_content(loop.iter) for loop in tree.find_all(nodes.For))
            """The template iterates over lists of content parts by itself; others expect one string."""
            self._template = self._environment.from_string(tree)
        except TemplateSyntaxError as error:
            raise TokenizerError(
                f"the chat template is damaged (line {error.lineno}): {_clip(error)}"
            ) from error
        except Exception as error:  # the parser and Python's compiler raise many kinds on hostile input
            raise TokenizerError(f"the chat template cannot be compiled: {_clip(error)}") from error

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation.

        add_generation_prompt: end with the beginning of an answer.
        continue_final_message: end with the text of the last message instead, for the model to continue.
        variables: further names for the template, plain data, such as enable_thinking=False.

        Raises InvalidParams for messages, tools or variables of a wrong shape, and for a last message without a text to
        continue; RequestError with the template's own message where it calls `raise_exception`, and for renderings that
        fail or exceed the limits.
        """
        copier = PlainCopier(self._limits.value_chars // 2)
        # transformers always defines these three, if only as None, and templates test them in that way.
        names = {"documents": None, **self._variables, **copier.copy(variables, "chat_template_kwargs")}
        names["messages"] = checked_messages(messages, copier, self.reads_parts)
        names["tools"] = checked_tools(tools, copier)
        names["add_generation_prompt"] = bool(add_generation_prompt) and not continue_final_message
        mark = f"{secrets.token_hex(16)} "  # no message can know it
        if continue_final_message:
            _append(names["messages"][-1], mark)
        try:
            with self._environment.rendering():
                text = self._template.render(names)
        except RaisedByTemplate as error:
            raise RequestError(str(error) or "the chat template refused these messages.") from None
        except TemplateLimitExceeded as error:
            raise RequestError(f"the chat template was stopped: {error}.") from error
        except Exception as error:  # any builtin may raise anything
            raise RequestError(f"the chat template failed on these messages: {_clip(error)}") from error
        return _cut(text, mark) if continue_final_message else text


_UNAVAILABLE: tuple[type[nodes.Node], ...] = (
    nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.EvalContextModifier,
    nodes.ScopedEvalContextModifier,
)  # fmt: skip
"""There are no other files, and escaping is for HTML."""


def _ends_in_content(node: nodes.Node) -> bool:
    match node:
        case nodes.Name(name="content") | nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Filter(node=nodes.Node() as inner):
            return _ends_in_content(inner)
    return False


def _append(message: dict[str, Any], mark: str) -> None:
    """Mark the end of a message's text."""
    content = message.get("content")
    if isinstance(content, list) and content:
        content[-1]["text"] += mark
    elif isinstance(content, str):
        message["content"] = content + mark
    else:
        raise InvalidParams("continue_final_message needs a last message with text.")


def _cut(text: str, mark: str) -> str:
    """The text up to the mark. A template that trims messages has taken the mark's space, and would have taken those
    before it, as transformers has it."""
    at = text.rfind(mark.rstrip())
    if at < 0:
        raise RequestError(
            "the chat template left out the end of the last message, which cannot be continued."
        )
    return text[:at] if text.startswith(mark, at) else text[:at].rstrip()


def _clip(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "…"
