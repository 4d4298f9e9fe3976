"""Prompts in front of what follows them: the `echo` of /v1/completions, with the log-probabilities of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.core.types import TokenLogprobs
from headrace.server.logprobs import completion_logprobs
from headrace.server.prompts import Encoded
from headrace.text.tokenizer import Tokenizer


class TextLogprobs:
    """`logprobs` of one choice, as its text grows; with the prompt's in front where `prompt` is given."""

    def __init__(
        self, tokenizer: Tokenizer | None, skip_special_tokens: bool, prompt: Encoded | None
    ) -> None:
        self._tokenizer = tokenizer
        self._unseen = tokenizer.special_ids if tokenizer and skip_special_tokens else frozenset()
        self._offset = 0
        self._first = () if prompt is None else prompt.ids[:1]

    def take(self, prompt: Sequence[TokenLogprobs], output: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The entries of new tokens. The prompt's are due, all of them, with the first call."""
        entries: list[TokenLogprobs | int] = [*self._first, *(prompt if self._first else ()), *output]
        self._first = ()
        logprobs, self._offset = completion_logprobs(entries, self._tokenizer, self._offset, self._unseen)
        return logprobs


def echoed(prompt: Encoded, tokenizer: Tokenizer | None, skip_special_tokens: bool) -> str:
    """A prompt as it stands in front of its completion: as it came, or what its token ids say."""
    if prompt.text is not None:
        return prompt.text
    return "" if tokenizer is None else tokenizer.decode(prompt.ids, skip_special_tokens)
