"""Chat templates: a model's Jinja template, rendered in a process of its own.

Errors are TokenizerError for a template that cannot be compiled, and RequestError for one that cannot be rendered.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.errors import InvalidParams, RequestError, TokenizerError
from headrace.text.templates.messages import PlainCopier, checked_messages, checked_tools
from headrace.text.templates.renderer import Renderer, TemplateStopped
from headrace.text.templates.wire import Answer, Reads, TemplateLimits


class ChatTemplate:
    """One chat template; threads may share it.

    source: the Jinja text.
    variables: names the template sees in every rendering, such as bos_token.
    now: the clock of `strftime_now`.

    Raises TokenizerError for a source that is too long, not a template, or too costly to compile; Overloaded if no
    process can be started.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, str] | None = None,
        *,
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._limits = limits or TemplateLimits()
        self._variables = dict(variables or {})
        self._now = now
        if len(source) > self._limits.source_chars:
            raise TokenizerError(f"the chat template is longer than {self._limits.source_chars} characters.")
        self.renderer = Renderer(source, self._limits)
        try:
            kind, text = self.renderer.compile()
        except TemplateStopped as error:
            raise TokenizerError(f"the chat template cannot be compiled: {error.reason}.") from error
        if kind is not Answer.DONE:
            raise TokenizerError(f"the chat template {text}")
        self.reads = Reads(int(text))
        """The forms of messages that the template reads."""

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
        mark = f"{secrets.token_hex(16)} " if continue_final_message else ""  # no message can know it

        def message() -> bytes:
            copier = PlainCopier(self._limits.chat_chars)
            # transformers always defines these three, if only as None, and templates test them in that way.
            names = {"documents": None, **self._variables, **copier.copy(variables, "chat_template_kwargs")}
            names["messages"] = checked_messages(messages, copier, self.reads)
            names["tools"] = checked_tools(tools, copier, self.reads)
            names["add_generation_prompt"] = bool(add_generation_prompt) and not continue_final_message
            if continue_final_message:
                _append(names["messages"][-1], mark)
            try:
                return json.dumps([names, self._now().isoformat()]).encode()
            except ValueError as error:
                raise InvalidParams(f"the chat holds a value that cannot be written: {error}.") from None

        kind, text = self.renderer.render(message)
        if kind is Answer.RAISED:
            raise RequestError(text or "the chat template refused these messages.")
        if kind is Answer.FAILED:
            raise RequestError(f"the chat template failed on these messages: {text}")
        return _cut(text, mark) if continue_final_message else text


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
