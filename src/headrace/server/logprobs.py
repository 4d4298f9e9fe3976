"""Log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.types import TokenLogprobs
from headrace.server.json_parts import JsonList
from headrace.serving.completion import Delta
from headrace.text.tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot write; vLLM uses the same number."""


def completion_logprobs(
    entries: Sequence[TokenLogprobs | int],
    tokenizer: Tokenizer | None,
    offset: int,
    unseen: frozenset[int] = frozenset(),
) -> tuple[dict[str, Any], int]:
    """`logprobs` of /v1/completions, and the offset in characters at which the next token's text begins.

    A bare number is a token that nothing predicts, the first of a prompt. `unseen` tokens take no room in the text.
    """
    tokens: list[str] = []
    chosen: list[float | None] = []
    top: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for entry in entries:
        token = entry if isinstance(entry, int) else entry.token
        text = _text(token, tokenizer)
        tokens.append(text)
        offsets.append(offset)
        if token not in unseen:
            offset += len(text)
        if isinstance(entry, int):
            chosen.append(None)
            top.append(None)
            continue
        alternatives = {text: _finite(entry.logprob)}
        for other, logprob, _ in entry.top:
            alternatives.setdefault(_text(other, tokenizer), _finite(logprob))
        chosen.append(_finite(entry.logprob))
        top.append(alternatives)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}, offset


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """`logprobs` of /v1/chat/completions."""
    return {
        "content": [
            _described(entry.token, entry.logprob, tokenizer)
            | {"top_logprobs": [_described(token, logprob, tokenizer) for token, logprob, _ in entry.top]}
            for entry in entries
        ]
    }


class ChatLogprobs:
    """`logprobs` of a whole answer's choice."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._content = JsonList()

    def add(self, delta: Delta) -> None:
        self._content.extend(chat_logprobs(delta.logprobs, self._tokenizer)["content"])

    def value(self) -> dict[str, Any]:
        return {"content": self._content}


def _described(token: int, logprob: float, tokenizer: Tokenizer | None) -> dict[str, Any]:
    data = None if tokenizer is None else list(tokenizer.token_bytes(token))
    return {"token": _text(token, tokenizer), "logprob": _finite(logprob), "bytes": data}


def _text(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return f"token_id:{token}"
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
