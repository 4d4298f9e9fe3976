"""The bytes of each token, derived from a tokenizer's decoder.

A decoder in tokenizer.json is a list of steps over the token strings. In most of them each step depends on one token
alone, except at the beginning of the text, so they can be folded into a `ByteScheme`: bytes per token, plus a rule for
the first one. Then decoding is joining bytes, and streaming need not decode earlier tokens again. Decoders that depend
on neighbouring tokens (WordPiece, CTC, no decoder at all) have no scheme; callers decode whole windows instead.

The steps mean what they mean in the `tokenizers` library; tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
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
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How vocabularies with byte fallback spell the byte NN."""


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
    """Most spaces that are removed from the beginning of a text."""

    def token_bytes(self, token: str) -> bytes:
        """Bytes of a token that is not the first of its text."""
        if self.byte_level:
            spelled = [_BYTE_LEVEL.get(ord(char)) for char in token]
            # One character outside the alphabet makes the whole token literal, as in added tokens.
            known = [byte for byte in spelled if byte is not None]
            return bytes(known) if len(known) == len(spelled) else token.encode("utf-8", "replace")
        if self.byte_fallback and (match := BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        for mark, meaning in self.replacements:
            token = token.replace(mark, meaning)
        return token.encode("utf-8", "replace")


class ByteJoiner:
    """Applies a scheme to the tokens of one text in order; its beginning has rules of its own."""

    def __init__(self, scheme: ByteScheme) -> None:
        self._scheme = scheme
        self._first = bool(scheme.drop_in_first)
        self._to_strip = scheme.strip_spaces

    @property
    def settled(self) -> bool:
        """True after the beginning: from here on every token adds its `token_bytes`."""
        return not self._first and not self._to_strip

    def add(self, token: str, data: bytes) -> bytes:
        """Bytes that the next token adds to the text; `data` is its `token_bytes`, `token` "" for no token."""
        if self._first and token:
            self._first = False
            data = self._scheme.token_bytes(token.replace(self._scheme.drop_in_first, ""))
        if self._to_strip and data:
            spaces = min(len(data) - len(data.lstrip(b" ")), self._to_strip)
            # Stripping continues only while there were nothing but spaces.
            self._to_strip = self._to_strip - spaces if spaces == len(data) else 0
            data = data[spaces:]
        return data


class _NoScheme(Exception):
    """The decoder does something that is not a function of single tokens."""


def scheme_of_decoder(decoder: Mapping[str, Any] | None) -> ByteScheme | None:
    """The scheme of the `decoder` section of a tokenizer.json; None if there is none."""
    if decoder is None:
        return None  # tokens are then joined with spaces, except before the first
    try:
        return _folded(_steps(decoder))
    except (_NoScheme, KeyError, TypeError):
        return None


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def _folded(steps: Iterable[Mapping[str, Any]]) -> ByteScheme:
    scheme = ByteScheme()
    fused = False  # tokens are one string by now: steps for single tokens cannot follow
    for step in steps:
        kind = step["type"]
        if kind in ("ByteLevel", "ByteFallback", "Replace", "Metaspace") and (fused or scheme.byte_level):
            raise _NoScheme
        match kind:
            case "ByteLevel":
                if scheme != ByteScheme():
                    raise _NoScheme
                scheme = replace(scheme, byte_level=True)
                fused = True  # the step joins all tokens and decodes them at once
            case "ByteFallback":
                scheme = replace(scheme, byte_fallback=True)
            case "Replace":
                # A literal pattern only; a regular expression may depend on its position. After the byte fallback the
                # marks of the vocabulary are still there, so the order of the two does not matter.
                mark = step["pattern"]["String"]
                if not mark:
                    raise _NoScheme
                scheme = replace(scheme, replacements=(*scheme.replacements, (mark, step["content"])))
            case "Metaspace":
                mark = step["replacement"]
                scheme = replace(scheme, replacements=(*scheme.replacements, (mark, " ")))
                if step.get("prepend_scheme", "always") != "never":
                    scheme = replace(scheme, drop_in_first=mark)
            case "Fuse":
                fused = True
            case "Strip":
                # On fused text only: before, it would strip every token. A strip at the end would need to see the end.
                if not fused or step["content"] != " " or step["stop"] or scheme.strip_spaces:
                    raise _NoScheme
                scheme = replace(scheme, strip_spaces=step["start"])
            case _:
                raise _NoScheme
    return scheme
