"""Log-probabilities of tokens as OpenAI's chats have them, and Ollama's API as well."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from headrace.core.types import TokenLogprobs
from headrace.text.tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot write; vLLM uses the same number."""


class TokenChance(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(TokenChance):
    top_logprobs: list[TokenChance]


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer | None) -> list[ChatToken]:
    """`content` of `logprobs` of /v1/chat/completions."""
    return [
        {
            **_described(entry.token, entry.logprob, tokenizer),
            "top_logprobs": [_described(token, logprob, tokenizer) for token, logprob, _ in entry.top],
        }
        for entry in entries
    ]


def _described(token: int, logprob: float, tokenizer: Tokenizer | None) -> TokenChance:
    data = None if tokenizer is None else list(tokenizer.token_bytes(token))
    return {"token": token_text(token, tokenizer), "logprob": finite(logprob), "bytes": data}


def token_text(token: int, tokenizer: Tokenizer | None) -> str:
    """A token as text; its number without a tokenizer."""
    if tokenizer is None:
        return f"token_id:{token}"
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def finite(logprob: float) -> float:
    """A log-probability that JSON can write."""
    return max(logprob, LEAST)
