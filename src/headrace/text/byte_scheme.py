"""Which bytes a token stands for, worked out from a tokenizer's decoder.

A decoder in tokenizer.json is a chain of steps over the list of token strings. Most chains are, step by step,
functions of one token alone followed by a treatment of the very beginning of the text, so they can be folded into a
`ByteScheme`: bytes per token, plus what happens to the first one. Then decoding is joining bytes, and streaming needs
no second look at earlier tokens. Chains that look at neighbours (WordPiece, CTC, no decoder at all) have no scheme,
and callers fall back on decoding whole windows.

The meaning of each step is that of the `tokenizers` library, which the tests hold this module against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any


def _byte_level_alphabet() -> dict[int, int]:
    """Code point -> byte of the GPT-2 byte-level alphabet.

    Printable Latin-1 bytes stand for themselves; the 68 others got the code points from U+0100 on, in byte order
    (Radford et al. 2019, `encoder.py` of the GPT-2 release).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {0x100 + i: byte for i, byte in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class ByteScheme:
    """How the tokens of one tokenizer spell bytes."""

    byte_level: bool = False
    """Token strings are written in the GPT-2 byte alphabet."""
    byte_fallback: bool = False
    """A token `<0xNN>` is the byte NN."""
    replacements: tuple[tuple[str, str], ...] = ()
    """Marks inside a token and what they stand for, such as ("▁", " ")."""
    drop_in_first: str = ""
    """A mark that stands for nothing in the first token of a text (a decoder that undoes a prefixed space)."""
    strip_spaces: int = 0
    """So many spaces at most are cut from the beginning of a text."""

    def token_bytes(self, token: str) -> bytes:
        """Bytes of a token that is not the first of its text."""
        if self.byte_level:
            spelled = [_BYTE_LEVEL.get(ord(char)) for char in token]
            # One foreign character makes the whole token literal: that is how added tokens are told apart.
            known = [byte for byte in spelled if byte is not None]
            return bytes(known) if len(known) == len(spelled) else token.encode("utf-8", "replace")
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for mark, meaning in self.replacements:
            token = token.replace(mark, meaning)
        return token.encode("utf-8", "replace")


class ByteJoiner:
    """Applies a scheme to the tokens of one text in order, minding how the text begins."""

    def __init__(self, scheme: ByteScheme) -> None:
        self._scheme = scheme
        self._first = bool(scheme.drop_in_first)
        self._to_strip = scheme.strip_spaces

    @property
    def settled(self) -> bool:
        """True once the beginning is over: from here on every token is worth its `token_bytes`."""
        return not self._first and not self._to_strip

    def add(self, token: str, data: bytes) -> bytes:
        """Bytes that the next token adds to the text; `data` is its `token_bytes`, `token` "" for no token."""
        if self._first and token:
            self._first = False
            data = self._scheme.token_bytes(token.replace(self._scheme.drop_in_first, ""))
        if self._to_strip and data:
            spaces = min(len(data) - len(data.lstrip(b" ")), self._to_strip)
            # Stripping goes on only while nothing but spaces has been seen.
            self._to_strip = self._to_strip - spaces if spaces == len(data) else 0
            data = data[spaces:]
        return data


class _NoScheme(Exception):
    """The decoder does something that is not a function of single tokens."""


def scheme_of_decoder(decoder: Mapping[str, Any] | None) -> ByteScheme | None:
    """Fold the `decoder` section of a tokenizer.json into a scheme; None where that is impossible."""
    if decoder is None:
        return None  # tokens are then joined with spaces, the first without: not ours to fold
    draft = _Draft(ByteScheme())
    try:
        _fold(draft, decoder)
    except (_NoScheme, KeyError, TypeError):
        return None
    return draft.scheme


@dataclass
class _Draft:
    scheme: ByteScheme
    bytes_known: bool = False
    """Tokens are bytes already: steps on strings cannot follow."""
    fused: bool = False
    """Tokens are one string already: steps on single tokens cannot follow."""

    def change(self, **fields: Any) -> None:
        self.scheme = replace(self.scheme, **fields)

    def demand_tokens(self) -> None:
        if self.fused or self.scheme.byte_level:
            raise _NoScheme


def _fold(draft: _Draft, step: Mapping[str, Any]) -> None:
    fold = _STEPS.get(step["type"])
    if fold is None:
        raise _NoScheme
    fold(draft, step)


def _fold_sequence(draft: _Draft, step: Mapping[str, Any]) -> None:
    for inner in step["decoders"]:
        _fold(draft, inner)


def _fold_byte_level(draft: _Draft, step: Mapping[str, Any]) -> None:
    draft.demand_tokens()
    if draft.bytes_known or draft.scheme != ByteScheme():
        raise _NoScheme
    draft.change(byte_level=True)
    # The step joins all tokens and decodes them in one go.
    draft.bytes_known = draft.fused = True


def _fold_byte_fallback(draft: _Draft, step: Mapping[str, Any]) -> None:
    draft.demand_tokens()
    draft.change(byte_fallback=True)
    draft.bytes_known = True


def _fold_replace(draft: _Draft, step: Mapping[str, Any]) -> None:
    draft.demand_tokens()
    # Only a literal pattern; a regular expression may look at where it stands. After the byte fallback the marks
    # that the vocabulary writes are still there, so the order of the two does not matter.
    mark = step["pattern"]["String"]
    if not mark:
        raise _NoScheme
    draft.change(replacements=(*draft.scheme.replacements, (mark, step["content"])))


def _fold_metaspace(draft: _Draft, step: Mapping[str, Any]) -> None:
    draft.demand_tokens()
    mark = step["replacement"]
    draft.change(replacements=(*draft.scheme.replacements, (mark, " ")))
    if step.get("prepend_scheme", "always") != "never":
        draft.change(drop_in_first=mark)


def _fold_fuse(draft: _Draft, step: Mapping[str, Any]) -> None:
    draft.fused = True


def _fold_strip(draft: _Draft, step: Mapping[str, Any]) -> None:
    # On fused text only: before that it would strip every token. A strip at the end would need to see the end.
    if not draft.fused or step["content"] != " " or step["stop"] or draft.scheme.strip_spaces:
        raise _NoScheme
    draft.change(strip_spaces=step["start"])


_STEPS: dict[str, Callable[[_Draft, Mapping[str, Any]], None]] = {
    "Sequence": _fold_sequence,
    "ByteLevel": _fold_byte_level,
    "ByteFallback": _fold_byte_fallback,
    "Replace": _fold_replace,
    "Metaspace": _fold_metaspace,
    "Fuse": _fold_fuse,
    "Strip": _fold_strip,
}
