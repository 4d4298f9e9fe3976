"""Log-probabilities as OpenAI's API has them, for completions and for chats, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.types import TokenLogprobs
from headrace.server.http.json_parts import JsonList
from headrace.server.openai.choices import Rows
from headrace.server.openai.prompts import Encoded
from headrace.serving.requests.completion import Delta
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot write; vLLM uses the same number."""


class TextLogprobs:
    """`logprobs` of a choice of /v1/completions, with `count` alternatives; a column.

    `text_offset` is where each token's text begins, in characters of the choice's text; a token that completes a
    character has the offset of that character. With `echo`, the prompt's tokens come first; nothing predicts the
    first of them, which has no log-probability.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, skip_special_tokens: bool, prompt: Encoded, count: int, echo: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._count = count
        self._text: IncrementalDetokenizer | None = None
        if tokenizer is not None:
            before = () if echo else prompt.ids
            self._text = IncrementalDetokenizer(tokenizer, skip_special_tokens, before)
        self._offset = 0
        self._echo = echo
        self._first: tuple[int, ...] = prompt.ids[:1] if echo else ()
        self._whole: dict[str, JsonList] = {}

    def add(self, delta: Delta) -> None:
        for name, values in self.take(delta).items():
            self._whole.setdefault(name, JsonList()).extend(values)

    def value(self) -> dict[str, JsonList]:
        return self._whole

    def take(self, delta: Delta) -> dict[str, list[Any]]:
        """The entries of new tokens."""
        tokens: list[str] = []
        chosen: list[float | None] = []
        top: list[dict[str, float] | None] = []
        offsets: list[int] = []
        prompt: Sequence[TokenLogprobs] = delta.prompt_logprobs if self._echo else ()
        entries: list[TokenLogprobs | int] = [*self._first, *prompt, *delta.logprobs]
        for entry in entries:
            token = entry if isinstance(entry, int) else entry.token
            text = _text(token, self._tokenizer)
            tokens.append(text)
            offsets.append(self._offset)
            if self._text is not None:
                self._offset += len(self._text.push((token,)))
            if isinstance(entry, int):
                chosen.append(None)
                top.append(None)
                continue
            alternatives = {text: _finite(entry.logprob)}
            for other, logprob, _ in entry.top[: self._count]:
                alternatives.setdefault(_text(other, self._tokenizer), _finite(logprob))
            chosen.append(_finite(entry.logprob))
            top.append(alternatives)
        self._first = ()
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """`logprobs` of /v1/chat/completions."""
    return {
        "content": [
            _described(entry.token, entry.logprob, tokenizer)
            | {"top_logprobs": [_described(token, logprob, tokenizer) for token, logprob, _ in entry.top]}
            for entry in entries
        ]
    }


class ChatLogprobs(Rows):
    """`logprobs` of a whole choice of /v1/chat/completions."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        super().__init__(lambda delta: chat_logprobs(delta.logprobs, tokenizer)["content"])

    def value(self) -> dict[str, Any]:
        return {"content": super().value()}


def prompt_logprobs(count: int, tokenizer: Tokenizer | None) -> Rows:
    """vLLM's `prompt_logprobs` of a whole answer, with `count` alternatives: an object a prompt token, null for the
    first, which nothing predicts."""

    def by_token(entry: TokenLogprobs) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for token, logprob, rank in ((entry.token, entry.logprob, entry.rank), *entry.top[:count]):
            if str(token) not in found:
                text = None if tokenizer is None else _text(token, tokenizer)
                found[str(token)] = {"logprob": _finite(logprob), "rank": rank, "decoded_token": text}
        return found

    return Rows(lambda delta: list(map(by_token, delta.prompt_logprobs)), [None])


def _described(token: int, logprob: float, tokenizer: Tokenizer | None) -> dict[str, Any]:
    data = None if tokenizer is None else list(tokenizer.token_bytes(token))
    return {"token": _text(token, tokenizer), "logprob": _finite(logprob), "bytes": data}


def _text(token: int, tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return f"token_id:{token}"
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
