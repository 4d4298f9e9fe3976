"""Bounds on what one HTTP request may make the server and the engine hold: its answer and its parameters.

The size of an answer is counted in entries: a position with its token is one, each alternative at it another, and each
id of a prompt that the answer shows one more. An entry takes up to some 90 bytes as JSON, so the largest answer takes
about 100 MB.

A list of 65,000 token ids is 400 KB of a request's body; for 1,024 prompts with n = 2 it would be gigabytes of messages
and of the sampler's memory, and hours of sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.core.params import SamplingParams
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.requests.completion import Delta, entries

MAX_ENTRIES = 2**20
"""Of one HTTP request: over all of its prompts and choices."""

MAX_HELD_BYTES = 512 * 2**20
"""About how much memory all answers may take that are sent whole, from their first token to the last byte sent. Beyond
it `LEAST_HELD_BYTES` for one of them are too much."""

LEAST_HELD_BYTES = 2**20

_ENTRY_BYTES = 96
_ID_BYTES = 8


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

    They are the given ones, but that a whole answer without `max_tokens` ends at the bound. `context` is the longest
    sequence, None where there is no bound. `prompt_ids` is how often the answer holds the ids of each prompt. Streams
    without `max_tokens` are not held, so only their prompts count.

    Raises InvalidParams where what is asked for exceeds the bound.
    """
    n, each = params.n, 1 + (params.logprobs or 0)
    scored = prompt_ids * sum(prompts)
    if echo or params.prompt_logprobs is not None:
        scored += n * sum(prompts) * (1 + (params.prompt_logprobs or 0))
    room = MAX_ENTRIES - scored
    if params.max_tokens is not None:
        asked = n * len(prompts) * params.max_tokens * each
        if asked > room:
            raise _too_large(scored + asked)
        return params
    if room < n * len(prompts) * each:
        raise _too_large(scored)
    most = room // (n * len(prompts) * each)
    if stream or (context is not None and context - min(prompts) <= most):
        return params
    return replace(params, max_tokens=most)


def _too_large(count: int) -> InvalidParams:
    return InvalidParams(
        f"the answer may come to {count} tokens and log-probabilities, but one request may have {MAX_ENTRIES}: lower "
        "max_tokens, n or logprobs, send fewer prompts at once, or leave out return_token_ids"
    )


class HeldAnswers:
    """Memory of the answers that are sent whole."""

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self.bytes = 0
        self.most = most


class HeldAnswer:
    """One of them; what it takes is given back when nothing refers to it any more. `ids`: it holds token ids."""

    def __init__(self, answers: HeldAnswers, ids: bool = False) -> None:
        self._answers = answers
        self._id_bytes = _ID_BYTES if ids else 0
        self._bytes = 0

    def add(self, delta: Delta) -> None:
        """Count an addition. Raises Overloaded where there is no memory for it."""
        size = len(delta.text) + self._id_bytes * len(delta.token_ids)
        if delta.logprobs or delta.prompt_logprobs:
            size += _ENTRY_BYTES * entries(delta)
        self.take(size)

    def add_prompts(self, prompts: Sequence[int]) -> None:
        """Count the ids of prompts of these lengths, which the answer holds once each. Raises Overloaded."""
        self.take(self._id_bytes * sum(prompts))

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


MAX_BYTES = 2**23


_WORD_IDS = 24  # what a bad word takes beside its ids, in ids


def check_parameters(params: SamplingParams, prompts: int) -> None:
    """Raises InvalidParams where the parameters of so many prompts take more than about MAX_BYTES together."""
    ids, chars = _ids_and_chars(params)
    size = prompts * (params.n * _ID_BYTES * ids + chars)
    if size > MAX_BYTES:
        raise InvalidParams(
            f"lists of token ids, bad words, stop strings and grammars of all completions come to {size} bytes, but "
            f"one request may have {MAX_BYTES}: shorten them, or send fewer prompts at once"
        )


def size_of(params: SamplingParams) -> int:
    """Ids and characters in the parameters of one prompt: what it takes to send them to the engine."""
    ids, chars = _ids_and_chars(params)
    return ids + chars


def _ids_and_chars(params: SamplingParams) -> tuple[int, int]:
    lists = (params.logit_bias, params.allowed_token_ids, params.banned_token_ids, params.stop_token_ids)
    ids = sum(len(each) for each in lists if each is not None)
    ids += sum(_WORD_IDS + len(word) for word in params.bad_words)
    chars = sum(map(len, params.stop)) + (0 if params.grammar is None else len(params.grammar.source))
    return ids, chars
