"""Bounds of one request's answer and parameters, and of the memory that whole answers take.

The size of an answer is counted in entries: a position with its token is one, each alternative at it another, and each
id of a prompt that the answer shows one more. An entry takes up to about 90 bytes as JSON, so the largest answer is
about 100 MB. Parameters count because every completion has its own copy: a list of 65,000 token ids is 400 KB of a
body, but gigabytes for 1,024 prompts with n = 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.params import SamplingParams
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.requests.completion import Delta, entries

MAX_ENTRIES = 2**20
"""Of the answer to one HTTP request: over all of its prompts and choices."""

MAX_HELD_BYTES = 512 * 2**20
"""About how much memory all answers that are sent whole may take, from their first token until they are sent. Beyond
it, an answer may have at most LEAST_HELD_BYTES."""

LEAST_HELD_BYTES = 2**20

MAX_BYTES = 2**23
"""Of one request's parameters: over all of its completions."""

_ENTRY_BYTES = 96
_ID_BYTES = 8
_WORD_IDS = 24  # memory of a bad word beside its ids, in ids


def bounded(
    params: SamplingParams,
    prompts: Sequence[int],
    context: int | None,
    *,
    echo: bool,
    stream: bool,
    prompt_ids: int = 0,
) -> SamplingParams:
    """Parameters under which the answer to prompts of these lengths stays within MAX_ENTRIES.

    Only a whole answer without `max_tokens` is changed: it ends at the bound. `context` is the longest sequence, None
    without a bound. `prompt_ids` is how often the answer contains the ids of each prompt. Streams without
    `max_tokens` are not held in memory, so only their prompts count.

    Raises InvalidParams if the request exceeds the bound.
    """
    each = params.n * len(prompts) * (1 + (params.logprobs or 0))
    scored = prompt_ids * sum(prompts)
    if echo or params.prompt_logprobs is not None:
        scored += params.n * sum(prompts) * (1 + (params.prompt_logprobs or 0))
    room = MAX_ENTRIES - scored
    asked = each * (params.max_tokens or 0)
    if asked > room or (params.max_tokens is None and each > room):
        raise InvalidParams(
            f"the answer may come to {scored + asked} tokens and log-probabilities, but one request may have "
            f"{MAX_ENTRIES}: lower max_tokens, n or logprobs, send fewer prompts at once, or leave out return_token_ids"
        )
    most = room // each
    if params.max_tokens is not None or stream or (context is not None and context - min(prompts) <= most):
        return params
    return replace(params, max_tokens=most)


def check_parameters(params: SamplingParams, prompts: int) -> None:
    """Raises InvalidParams if the parameters of so many prompts take more than about MAX_BYTES together."""
    ids, chars = ids_and_chars(params)
    size = prompts * (params.n * _ID_BYTES * ids + chars)
    if size > MAX_BYTES:
        raise InvalidParams(
            f"lists of token ids, bad words, stop strings and grammars of all completions come to {size} bytes, but "
            f"one request may have {MAX_BYTES}: shorten them, or send fewer prompts at once"
        )


def ids_and_chars(params: SamplingParams) -> tuple[int, int]:
    """Numbers of token ids and of characters in the parameters of one prompt."""
    lists = (params.logit_bias, params.allowed_token_ids, params.banned_token_ids, params.stop_token_ids)
    ids = sum(len(each) for each in lists if each is not None)
    ids += sum(_WORD_IDS + len(word) for word in params.bad_words)
    chars = sum(map(len, params.stop)) + (0 if params.grammar is None else len(params.grammar.source))
    return ids, chars


class HeldAnswers:
    """Memory of all answers that are sent whole, in bytes."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self.bytes = 0
        self.most = most


class HeldAnswer:
    """Memory of one such answer; returned when the last reference to this object is gone.

    prompts: lengths of the prompts whose ids it contains; None for an answer without token ids. Raises Overloaded.
    """

    def __init__(self, answers: HeldAnswers, prompts: Sequence[int] | None = None) -> None:
        self._answers = answers
        self._id_bytes = 0 if prompts is None else _ID_BYTES
        self._bytes = 0
        self.take(self._id_bytes * sum(prompts or ()))

    def add(self, delta: Delta) -> None:
        """Count an addition. Raises Overloaded if there is no memory for it."""
        size = len(delta.text) + self._id_bytes * len(delta.token_ids)
        if delta.logprobs or delta.prompt_logprobs:
            size += _ENTRY_BYTES * entries(delta)
        self.take(size)

    def take(self, size: int) -> None:
        """Count so many bytes. Raises Overloaded."""
        self._bytes += size
        self._answers.bytes += size
        if self._answers.bytes > self._answers.most and self._bytes > LEAST_HELD_BYTES:
            raise Overloaded(
                "the answers that are being put together take too much memory: try again later, or ask for a stream"
            )

    def __del__(self) -> None:
        self._answers.bytes -= self._bytes
