"""Prompts as token ids: tokenized off the event loop where that takes long, and held against the context."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import PromptTooLong, RequestError
from headrace.server.schemas import Prompt
from headrace.server.service import Service
from headrace.text.conversation import adapted, knows_tools
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools import Tool

SHORT_CHARS = 2000
"""Text up to this length is tokenized on the event loop: that takes less time than handing it to a thread."""

LONG_CHARS = 200_000
"""Longer text waits for its turn, so that it does not hold all threads and keep others from being tokenized."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """`text` is None for a prompt that came as ids."""

    ids: tuple[int, ...]
    text: str | None = None


async def encode_prompts(
    service: Service, prompts: Sequence[Prompt], add_special_tokens: bool = True
) -> list[Encoded]:
    """Raises RequestError for text that cannot be tokenized, or that a model without a tokenizer cannot take."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [Encoded(tuple(prompt)) for prompt in prompts if not isinstance(prompt, str)]
    tokenizer = tokenizer_of(service)
    check_chars(service, texts)
    chars = sum(map(len, texts))
    if chars <= SHORT_CHARS:
        rows = tokenizer.encode_batch(texts, add_special_tokens)
    else:
        pool = service.long_texts if chars > LONG_CHARS else None
        rows = await asyncio.get_running_loop().run_in_executor(
            pool, tokenizer.encode_batch, texts, add_special_tokens
        )
    return [Encoded(tuple(ids), text) for ids, text in zip(rows, texts, strict=True)]


async def encode_chat(
    service: Service,
    messages: Any,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
    tools: Sequence[Tool] = (),
) -> Encoded:
    """Raises RequestError for messages of a wrong shape, or that the model's chat template refuses."""

    def render() -> Encoded:
        tokenizer = tokenizer_of(service)
        for name in _RESERVED:
            if name in variables:
                raise RequestError(f"chat_template_kwargs must not set {name}")
        template = tokenizer.chat_template_source(bool(tools))
        described = [tool.described for tool in tools] if knows_tools(template) else None
        text = tokenizer.apply_chat_template(
            adapted(messages, tools, template), add_generation_prompt, described, **variables
        )
        check_chars(service, [text])
        return Encoded(tuple(tokenizer.encode(text, add_special_tokens=False)), text)

    return await asyncio.to_thread(
        render
    )  # a template may be slow, and may be stopped only by its own limits


_RESERVED = ("messages", "add_generation_prompt", "tools", "chat_template")


def check_chars(service: Service, texts: Sequence[str]) -> None:
    """Raises PromptTooLong for text that cannot fit the context however it is tokenized: that need not be tried."""
    tokenizer, context = service.tokenizer, service.facts.max_model_len
    if tokenizer is None or context is None:
        return
    most, longest = context * tokenizer.longest_token_chars, max(map(len, texts))
    if longest > most:
        raise PromptTooLong(
            f"the prompt has {longest} characters, but the context of {context} tokens holds {most} at the very most"
        )


def check_length(service: Service, prompts: Sequence[Encoded], max_tokens: int | None) -> None:
    """Raises PromptTooLong where prompt and `max_tokens` together exceed the context, as OpenAI's API does."""
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
