"""Prompts in front of what follows them: the `echo` of /v1/completions, with the log-probabilities of both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.core.types import TokenLogprobs
from headrace.server.json_parts import JsonList
from headrace.server.logprobs import TextOffsets, completion_logprobs
from headrace.server.prompts import Encoded
from headrace.serving.completion import Delta
from headrace.text.tokenizer import Tokenizer

_FEW_TOKENS = 2000
"""Are decoded on the event loop: that takes less time than handing them to a thread."""


class TextLogprobs:
    """`logprobs` of one choice with `count` alternatives, as its text grows; with `echo`, the prompt's come first."""

    def __init__(
        self, tokenizer: Tokenizer | None, skip_special_tokens: bool, prompt: Encoded, count: int, echo: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._count = count
        self._offsets = TextOffsets(tokenizer, skip_special_tokens, () if echo else prompt.ids)
        self._echoes = echo
        self._first = prompt.ids[:1] if echo else ()

    def take(self, prompt: Sequence[TokenLogprobs], output: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The entries of new tokens: of the prompt, as long as those come, then of the output."""
        entries: list[TokenLogprobs | int] = [*self._first, *(prompt if self._echoes else ()), *output]
        self._first = ()
        return completion_logprobs(entries, self._count, self._tokenizer, self._offsets)


class WholeTextLogprobs:
    """`logprobs` of a whole answer's choice: columns, kept as JSON."""

    def __init__(self, growing: TextLogprobs) -> None:
        self._growing = growing
        self._columns: dict[str, JsonList] = {}

    def add(self, delta: Delta) -> None:
        for name, values in self._growing.take(delta.prompt_logprobs, delta.logprobs).items():
            self._columns.setdefault(name, JsonList()).extend(values)

    def value(self) -> dict[str, JsonList]:
        return self._columns


async def echoed(
    prompts: Sequence[Encoded], tokenizer: Tokenizer | None, skip_special_tokens: bool
) -> list[str]:
    """Prompts as they stand before their completions: as they came, or what their token ids say."""

    def decoded() -> list[str]:
        return ["" if tokenizer is None else tokenizer.decode(ids, skip_special_tokens) for ids in rows]

    rows = [prompt.ids for prompt in prompts if prompt.text is None]
    texts = iter(await asyncio.to_thread(decoded) if sum(map(len, rows)) > _FEW_TOKENS else decoded())
    return [next(texts) if prompt.text is None else prompt.text for prompt in prompts]
