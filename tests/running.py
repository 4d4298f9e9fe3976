"""An AsyncLLM over an engine that a test has started, in this process or another one."""

from __future__ import annotations

from headrace.async_llm import AsyncLLM
from headrace.serving.client.base import AsyncClient
from headrace.text.tokenizer import Tokenizer


def over(client: AsyncClient, tokenizer: Tokenizer | None = None) -> AsyncLLM:
    """For the event loop of the client, which `close` closes."""
    engine = AsyncLLM(client.facts.model)
    engine._open(client, tokenizer)
    return engine
