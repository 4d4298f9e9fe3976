"""Prompts as token ids: tokenized off the event loop if long, shortened, checked against the context length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from headrace.errors import PromptTooLong, RequestError
from headrace.server.requests.fields import Prompt, TruncationFields
from headrace.server.requests.service import Service
from headrace.serving.requests.inputs import SHORT_CHARS
from headrace.text.templates.conversation import adapted, knows_tools
from headrace.text.templates.shapes import tool_variables
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.request import Tool

Read = TypeVar("Read")

LONG_CHARS = 200_000
"""Longer texts are tokenized one at a time, so that they do not occupy all threads."""


MANY_MESSAGES = 500
"""Longer conversations are read one at a time: each thread that runs Python delays the event loop."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt. `text` is None if it was given as ids, or truncated. `continued` is the text of the last message if the
    answer continues it, else None."""

    ids: tuple[int, ...]
    text: str | None = None
    continued: str | None = None


@dataclass(frozen=True, slots=True)
class Truncation:
    """vLLM's truncate_prompt_tokens: at most `keep` ids of a prompt stay, the last ones, or the first with `right`."""

    keep: int
    right: bool = False

    def apply(self, prompt: Encoded) -> Encoded:
        ids = prompt.ids
        if len(ids) <= self.keep:
            return prompt
        return replace(prompt, ids=ids[: self.keep] if self.right else ids[len(ids) - self.keep :], text=None)


def truncation(service: Service, body: TruncationFields, max_tokens: int | None) -> Truncation | None:
    """The truncation that a request sets, None without one. -1 leaves room for `max_tokens`, at least one."""
    keep = body.truncate_prompt_tokens
    if keep is None:
        return None
    if keep < 0:
        limit = service.facts.max_model_len
        if limit is None:
            return None
        keep = max(1, limit - (1 if max_tokens is None else max_tokens))
    return Truncation(keep, body.truncation_side == "right")


async def encode_prompts(
    service: Service,
    prompts: Sequence[Prompt],
    add_special_tokens: bool = True,
    truncation: Truncation | None = None,
) -> list[Encoded]:
    """Raises RequestError for text that cannot be tokenized, and for text without a tokenizer."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if texts:
        rows = await _tokenized(service, texts, add_special_tokens, truncation)
        encoded = [Encoded(ids, text) for ids, text in zip(rows, texts, strict=True)]
    else:
        encoded = [Encoded(tuple(prompt)) for prompt in prompts if not isinstance(prompt, str)]
    return encoded if truncation is None else list(map(truncation.apply, encoded))


async def encode_chat(
    service: Service,
    messages: Any,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
    tools: Sequence[Tool] = (),
    *,
    continue_final_message: bool = False,
    add_special_tokens: bool = False,
    truncation: Truncation | None = None,
) -> Encoded:
    """A conversation as its chat template writes it; `variables` are further names for the template.

    Raises RequestError for messages of a wrong shape, or that the model's chat template refuses.
    """
    tokenizer = tokenizer_of(service)
    for name in _RESERVED:
        if name in variables:
            raise RequestError(f"chat_template_kwargs must not set {name}")

    def render() -> str:
        template = tokenizer.chat_template_source(bool(tools))
        described = [tool.described for tool in tools] if knows_tools(template) else None
        return tokenizer.apply_chat_template(
            adapted(messages, tools, template), add_generation_prompt, described,
            continue_final_message=continue_final_message, **(tool_variables(template, described) | dict(variables)),
        )  # fmt: skip

    text = await service.chats.run(render)
    (ids,) = await _tokenized(service, [text], add_special_tokens, truncation)
    prompt = Encoded(ids, text, _text_of(messages[-1]) if continue_final_message else None)
    return prompt if truncation is None else truncation.apply(prompt)


def are_many(messages: Any) -> bool:
    """A conversation has more than MANY_MESSAGES messages, or parts of them. Its shape has not been checked."""
    if not isinstance(messages, (list, tuple)):
        return False
    if len(messages) > MANY_MESSAGES:
        return True
    contents = (message.get("content") for message in messages if isinstance(message, dict))
    return sum(len(content) for content in contents if isinstance(content, (list, tuple))) > MANY_MESSAGES


async def read_messages(service: Service, many: bool, read: Callable[[], Read]) -> Read:
    """`read()`, which processes messages; off the event loop if they are `many`. Raises what it raises."""
    if not many:
        return read()
    return await asyncio.get_running_loop().run_in_executor(service.long_texts, read)


_RESERVED = (
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template",
)


async def _tokenized(
    service: Service, texts: list[str], add_special_tokens: bool, truncation: Truncation | None
) -> list[tuple[int, ...]]:
    """Ids of texts: in a thread if they are long, one at a time if they are very long."""
    tokenizer = tokenizer_of(service)
    if truncation is None:
        check_chars(service, texts)

    def encode() -> list[tuple[int, ...]]:
        # A batch even for a single text: only `encode_batch` releases the interpreter's lock.
        return list(map(tuple, tokenizer.encode_batch(texts, add_special_tokens)))

    chars = sum(map(len, texts))
    if chars <= SHORT_CHARS:
        return encode()
    pool = service.long_texts if chars > LONG_CHARS else None
    return await asyncio.get_running_loop().run_in_executor(pool, encode)


def _text_of(message: Any) -> str:
    """The text of a rendered message."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or ())


def check_chars(service: Service, texts: Sequence[str]) -> None:
    """Raises PromptTooLong, before tokenizing, for text that cannot fit the context however it is tokenized."""
    tokenizer, context = service.tokenizer, service.facts.max_model_len
    if tokenizer is None or context is None:
        return
    most, longest = context * tokenizer.longest_token_chars, max(map(len, texts))
    if longest > most:
        raise PromptTooLong(
            f"the prompt has {longest} characters, but the context of {context} tokens holds {most} at the very most"
        )


def check_length(service: Service, prompts: Sequence[Encoded], max_tokens: int | None) -> None:
    """Raises PromptTooLong if prompt and `max_tokens` together exceed the context, as in OpenAI's API."""
    limit = service.facts.max_model_len
    if limit is None or max_tokens is None:
        return
    longest = max(len(prompt.ids) for prompt in prompts)
    if longest > limit:
        raise PromptTooLong(f"the context holds {limit} tokens, but the prompt has {longest}")
    if longest + max_tokens > limit:
        raise PromptTooLong(
            f"the context holds {limit} tokens, but the prompt has {longest} and max_tokens asks for "
            f"{max_tokens}: shorten one of them"
        )


def tokenizer_of(service: Service) -> Tokenizer:
    """Raises RequestError for a model that has none."""
    if service.tokenizer is None:
        raise RequestError(
            "this model has no tokenizer: send token ids, to /v1/completions or /v1/embeddings"
        )
    return service.tokenizer


Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[Messages], Awaitable[Encoded]]

_KEPT = ("system", "developer")
_ROOM = 8
"""Without a length in the request, a shortened conversation leaves this part of the context to the answer."""


async def encode_shortened(
    encode: Encode, messages: Messages, context: int | None, max_tokens: int | None
) -> Encoded:
    """The prompt of as much of a conversation as fits with `max_tokens` after it.

    The oldest turns, each from one user message to the next, are removed first; system messages stay. Raises
    PromptTooLong if the last turn alone does not fit, and what `encode` raises.
    """
    try:
        whole = await encode(messages)
        if context is None or len(whole.ids) + (max_tokens or 1) <= context:
            return whole
    except PromptTooLong:
        if context is None:
            raise
    assert context is not None
    room = context // _ROOM if max_tokens is None else max_tokens
    head = next((at for at, each in enumerate(messages) if each.get("role") not in _KEPT), len(messages))
    starts = [at for at, each in enumerate(messages) if each.get("role") == "user" and at > head]
    found: Encoded | None = None
    low, high = 0, len(starts)
    while low < high:  # binary search for the first start from which it fits
        middle = (low + high) // 2
        try:
            shorter = await encode(_from(messages, starts[middle]))
            fits = len(shorter.ids) + room <= context
        except PromptTooLong:
            fits = False
        if fits:
            found, high = shorter, middle
        else:
            low = middle + 1
    if found is None:
        raise PromptTooLong(
            f"the context holds {context} tokens, which is too few for the last turn of the conversation and "
            f"{room} tokens of an answer"
        )
    return found


def _from(messages: Messages, start: int) -> Messages:
    return [*(each for each in messages[:start] if each.get("role") in _KEPT), *messages[start:]]
