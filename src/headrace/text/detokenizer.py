"""Streaming ids to text, a piece per step, without splitting or guessing a character.

If tokens are bytes (`Tokenizer.byte_scheme`), a piece is what an incremental UTF-8 decoder returns: it holds back
the beginning of an incomplete character, and only that, until it is complete or known to be invalid. For other
tokenizers a short window is decoded twice, without and with the new tokens, and the difference is the piece.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from headrace.text.byte_scheme import ByteJoiner, ByteScheme
from headrace.text.tokenizer import Tokenizer

_CONTEXT_TOKENS = 6
"""Tokens of the prompt that a window begins with; decoders depend on one or two earlier tokens."""

_MAX_UNSETTLED_TOKENS = 16
"""If a window ends in U+FFFD for longer than this, the text does: no character has so many bytes."""


class IncrementalDetokenizer:
    """Text of one growing sequence of ids.

    skip_special_tokens: leave special tokens out of the text.
    visible: special tokens to leave in the text nevertheless.
    prompt_ids: ids before the first one pushed. Their text is not returned, but the text continues it: a word keeps
        the space before it, and a character that is incomplete at the end of the prompt is completed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        prompt_ids: Sequence[int] = (),
        visible: frozenset[int] = frozenset(),
    ) -> None:
        hidden = tokenizer.special_ids - visible if skip_special_tokens else frozenset()
        scheme = tokenizer.byte_scheme
        method: _ByBytes | _ByWindow
        if scheme is not None:
            method = _ByBytes(tokenizer, scheme, hidden, prompt_ids)
        else:
            method = _ByWindow(tokenizer, hidden, prompt_ids)
        self.push: Callable[[Sequence[int]], str] = method.push
        """Take the next ids; return the text that is certain now."""
        self.finish: Callable[[], str] = method.finish
        """The rest of the text after the last ids: U+FFFD for a character that is incomplete."""


class _ByBytes:
    def __init__(
        self, tokenizer: Tokenizer, scheme: ByteScheme, hidden: frozenset[int], prompt_ids: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._begun = b""  # of an incomplete character
        self._joiner = ByteJoiner(scheme)
        for token_id in prompt_ids:
            if self._joiner.settled:
                break
            self._bytes_of(token_id)
        # The last bytes of the prompt may begin a character. Three suffice, since that is the longest beginning.
        tail = b""
        for token_id in reversed(prompt_ids):
            if len(tail) >= 3:
                break
            if token_id not in hidden:
                tail = tokenizer.token_bytes(token_id) + tail
        self._decoded(tail)

    def push(self, ids: Sequence[int]) -> str:
        if len(ids) == 1:
            return self._decoded(self._bytes_of(ids[0]))
        return self._decoded(b"".join(map(self._bytes_of, ids)))

    def finish(self) -> str:
        rest, self._begun = self._begun, b""
        return rest.decode("utf-8", "replace")

    def _decoded(self, data: bytes) -> str:
        if self._begun:
            data = self._begun + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._begun = data[used:]
        return text

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id in self._hidden:
            return b""
        data = self._tokenizer.token_bytes(token_id)
        return data if self._joiner.settled else self._joiner.add(self._tokenizer.token(token_id), data)


class _ByWindow:
    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int], prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._window: list[int] = []
        for token_id in reversed(prompt_ids):
            if len(self._window) == _CONTEXT_TOKENS:
                break
            if token_id not in hidden and tokenizer.token(token_id):
                self._window.insert(0, token_id)
        self._released_ids = len(self._window)
        """How many ids at the beginning of the window have had their text released."""

    def push(self, ids: Sequence[int]) -> str:
        pieces = []
        for token_id in ids:
            if token_id not in self._hidden and self._tokenizer.token(token_id):
                self._window.append(token_id)
                pieces.append(self._release(final=False))
        return "".join(pieces)

    def finish(self) -> str:
        return self._release(final=True)

    def _release(self, final: bool) -> str:
        before = self._text(self._window[: self._released_ids])
        text = self._text(self._window)
        unsettled = len(self._window) - self._released_ids
        # Without new text this window must stay the beginning of the next one.
        waiting = text.endswith("\ufffd") or len(text) <= len(before)
        if waiting and not final and unsettled < _MAX_UNSETTLED_TOKENS:
            return ""
        # The next window begins with the last tokens of this piece.
        self._window = self._window[self._released_ids :][-_CONTEXT_TOKENS:] or self._window
        self._released_ids = len(self._window)
        return text[len(before) :]

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
