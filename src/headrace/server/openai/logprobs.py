"""Log-probabilities of answers: `logprobs` of completions, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import TypedDict

from headrace.core.types import TokenLogprobs
from headrace.server.http.json_parts import JsonList
from headrace.server.openai.choices import Rows
from headrace.server.requests.logprobs import ChatToken, finite, token_text
from headrace.server.requests.prompts import Encoded
from headrace.serving.requests.completion import Delta
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer


class TextLogprobsAnswer(TypedDict):
    """One entry a token. Nothing predicts the first token of an echoed prompt."""

    tokens: list[str] | JsonList[str]
    token_logprobs: list[float | None] | JsonList[float | None]
    top_logprobs: list[dict[str, float] | None] | JsonList[dict[str, float] | None]
    text_offset: list[int] | JsonList[int]


class ChatLogprobsAnswer(TypedDict):
    content: list[ChatToken] | JsonList[ChatToken]


class PromptLogprob(TypedDict):
    logprob: float
    rank: int
    decoded_token: str | None


PromptLogprobs = JsonList[dict[str, PromptLogprob] | None]


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
        self._tokens = JsonList[str]()
        self._chosen = JsonList[float | None]()
        self._top = JsonList[dict[str, float] | None]()
        self._offsets = JsonList[int]()

    def add(self, delta: Delta) -> None:
        tokens, chosen, top, offsets = self._entries(delta)
        self._tokens.extend(tokens)
        self._chosen.extend(chosen)
        self._top.extend(top)
        self._offsets.extend(offsets)

    def value(self) -> TextLogprobsAnswer:
        return {
            "tokens": self._tokens,
            "token_logprobs": self._chosen,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }

    def take(self, delta: Delta) -> TextLogprobsAnswer:
        """The entries of new tokens."""
        tokens, chosen, top, offsets = self._entries(delta)
        return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets}

    def _entries(
        self, delta: Delta
    ) -> tuple[list[str], list[float | None], list[dict[str, float] | None], list[int]]:
        tokens: list[str] = []
        chosen: list[float | None] = []
        top: list[dict[str, float] | None] = []
        offsets: list[int] = []
        prompt: Sequence[TokenLogprobs] = delta.prompt_logprobs if self._echo else ()
        entries: list[TokenLogprobs | int] = [*self._first, *prompt, *delta.logprobs]
        for entry in entries:
            token = entry if isinstance(entry, int) else entry.token
            text = token_text(token, self._tokenizer)
            tokens.append(text)
            offsets.append(self._offset)
            if self._text is not None:
                self._offset += len(self._text.push((token,)))
            if isinstance(entry, int):
                chosen.append(None)
                top.append(None)
                continue
            alternatives = {text: finite(entry.logprob)}
            for other, logprob, _ in entry.top[: self._count]:
                alternatives.setdefault(token_text(other, self._tokenizer), finite(logprob))
            chosen.append(finite(entry.logprob))
            top.append(alternatives)
        self._first = ()
        return tokens, chosen, top, offsets


def prompt_logprobs(count: int, tokenizer: Tokenizer | None) -> Rows[dict[str, PromptLogprob] | None]:
    """vLLM's `prompt_logprobs` of a whole answer, with `count` alternatives: an object a prompt token, null for the
    first, which nothing predicts."""

    def by_token(entry: TokenLogprobs) -> dict[str, PromptLogprob] | None:
        found: dict[str, PromptLogprob] = {}
        for token, logprob, rank in ((entry.token, entry.logprob, entry.rank), *entry.top[:count]):
            if str(token) not in found:
                text = None if tokenizer is None else token_text(token, tokenizer)
                found[str(token)] = {"logprob": finite(logprob), "rank": rank, "decoded_token": text}
        return found

    return Rows(lambda delta: list(map(by_token, delta.prompt_logprobs)), [None])
