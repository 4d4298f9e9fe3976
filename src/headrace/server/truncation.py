"""Conversations made to fit the context: `truncation: "auto"` of /v1/responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from headrace.errors import PromptTooLong
from headrace.server.prompts import Encoded

Messages = Sequence[Mapping[str, Any]]
Encode = Callable[[Messages], Awaitable[Encoded]]

_KEPT = ("system", "developer")
_ROOM = 8
"""Where a request names no length, a shortened conversation leaves one part in so many of the context to the answer."""


async def encode_shortened(
    encode: Encode, messages: Messages, context: int | None, max_tokens: int | None
) -> Encoded:
    """The prompt of as much of a conversation as fits, with `max_tokens` behind it.

    What goes first are the oldest turns, each from a message of the user to the next; messages of the system stay. The
    last turn stays, too: raises PromptTooLong where that alone is too long, and what `encode` raises.
    """
    try:
        whole = await encode(messages)
        if context is None or len(whole.ids) + (max_tokens or 1) <= context:
            return whole
    except PromptTooLong:
        if context is None:
            raise
    assert context is not None
    room = context // _ROOM if max_tokens is None else max_tokens
    head = next((at for at, each in enumerate(messages) if each.get("role") not in _KEPT), len(messages))
    starts = [at for at, each in enumerate(messages) if each.get("role") == "user" and at > head]
    found: Encoded | None = None
    low, high = 0, len(starts)
    while low < high:  # the first start from which it fits: later ones are shorter
        middle = (low + high) // 2
        try:
            shorter = await encode(_from(messages, starts[middle]))
            fits = len(shorter.ids) + room <= context
        except PromptTooLong:
            fits = False
        if fits:
            found, high = shorter, middle
        else:
            low = middle + 1
    if found is None:
        raise PromptTooLong(
            f"the context holds {context} tokens, which is too few for the last turn of the conversation and "
            f"{room} tokens of an answer"
        )
    return found


def _from(messages: Messages, start: int) -> Messages:
    return [*(each for each in messages[:start] if each.get("role") in _KEPT), *messages[start:]]
