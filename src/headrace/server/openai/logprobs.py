"""Log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.types import TokenLogprobs
from headrace.server.http.json_parts import JsonList
from headrace.serving.requests.completion import Delta
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot write; vLLM uses the same number."""


class TextOffsets:
    """Where each token's text begins, in characters of the whole text, as its tokens come in order.

    A token that goes on with a character begins where that character does. `before` are ids whose text comes before.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, skip_special_tokens: bool, before: Sequence[int] = ()
    ) -> None:
        self._text = (
            None if tokenizer is None else IncrementalDetokenizer(tokenizer, skip_special_tokens, before)
        )
        self._offset = 0

    def take(self, token: int) -> int:
        """The offset of the next token."""
        offset = self._offset
        if self._text is not None:
            self._offset += len(self._text.push((token,)))
        return offset


def completion_logprobs(
    entries: Sequence[TokenLogprobs | int], count: int, tokenizer: Tokenizer | None, offsets: TextOffsets
) -> dict[str, Any]:
    """`logprobs` of /v1/completions, with `count` alternatives. A bare number is a token that nothing predicts, the
    first of a prompt."""
    tokens: list[str] = []
    chosen: list[float | None] = []
    top: list[dict[str, float] | None] = []
    begins: list[int] = []
    for entry in entries:
        token = entry if isinstance(entry, int) else entry.token
        text = _text(token, tokenizer)
        tokens.append(text)
        begins.append(offsets.take(token))
        if isinstance(entry, int):
            chosen.append(None)
            top.append(None)
            continue
        alternatives = {text: _finite(entry.logprob)}
        for other, logprob, _ in entry.top[:count]:
            alternatives.setdefault(_text(other, tokenizer), _finite(logprob))
        chosen.append(_finite(entry.logprob))
        top.append(alternatives)
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": begins}


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


class PromptLogprobs:
    """vLLM's `prompt_logprobs` of a whole answer, with `count` alternatives: an object a prompt token, null for the
    first."""

    def __init__(self, count: int, tokenizer: Tokenizer | None) -> None:
        self._count = count
        self._tokenizer = tokenizer
        self._entries = JsonList()
        self._entries.extend([None])

    def add(self, delta: Delta) -> None:
        self._entries.extend([self._by_token(entry) for entry in delta.prompt_logprobs])

    def value(self) -> JsonList:
        return self._entries

    def _by_token(self, entry: TokenLogprobs) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for token, logprob, rank in ((entry.token, entry.logprob, entry.rank), *entry.top[: self._count]):
            if str(token) not in found:
                text = None if self._tokenizer is None else _text(token, self._tokenizer)
                found[str(token)] = {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}
        return found


def _described(token: int, logprob: float, tokenizer: Tokenizer | None) -> dict[str, Any]:
    data = None if tokenizer is None else list(tokenizer.token_bytes(token))
    return {"token": _text(token, tokenizer), "logprob": _finite(logprob), "bytes": data}


def _text(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return f"token_id:{token}"
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
