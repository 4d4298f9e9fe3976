"""How much the parameters of one HTTP request may take, which the engine holds for every prompt and every completion.

A list of 65,000 token ids is 400 KB of a request's body; for 1,024 prompts with n = 2 it would be gigabytes of messages
and of the sampler's memory, and hours of sampling.
"""

from __future__ import annotations

from headrace.core.params import SamplingParams
from headrace.errors import InvalidParams

MAX_BYTES = 2**23

_ID_BYTES = 8
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
