"""SentencePiece's models: trained ones, and any others, as sentencepiece_model.proto has them, without protobuf."""

from __future__ import annotations

import io
import string
import struct
from collections.abc import Iterator
from typing import Any

from tests import needs
from tests.gguf_vocabularies import BYTE, CONTROL, NORMAL, SAMPLE, UNKNOWN, USER_DEFINED, texts

UNIGRAM, BPE = 1, 2

Pieces = list[tuple[str, float, int]]
"""Texts, scores and types, which have the same numbers as in GGUF files."""


def model_proto(
    pieces: Pieces,
    model_type: int,
    *,
    byte_fallback: bool = False,
    add_dummy_prefix: bool = True,
    remove_extra_whitespaces: bool = False,
) -> bytes:
    """A model with these pieces."""
    listed = b"".join(
        _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind))
        for text, score, kind in pieces
    )
    trainer = _number(3, model_type) + _number(4, len(pieces)) + _number(35, byte_fallback)
    normalizer = (
        _field(1, b"identity")
        + _number(3, add_dummy_prefix)
        + _number(4, remove_extra_whitespaces)
        + _number(5, True)
    )
    return listed + _field(2, trainer) + _field(3, normalizer)


def charsmap_of(proto: bytes) -> bytes:
    """The normalization table of a model."""
    normalizer = next(value for number, value in _fields(proto) if number == 3)
    return next((value for number, value in _fields(normalizer) if number == 2), b"")


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(int(value))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Fields of a message that hold bytes; the others are passed over."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        match key & 7:
            case 0:
                varint()
            case 1:
                at += 8
            case 5:
                at += 4
            case _:
                size = varint()
                yield key >> 3, data[at : at + size]
                at += size


# ---- Trained models ----


def trained(model_type: str, **options: Any) -> Any:
    """A processor with a vocabulary of random texts, which have more characters than it."""
    sentencepiece = needs.package("sentencepiece")
    proto = io.BytesIO()
    common = {*string.printable, *SAMPLE}
    lines = [
        line for text in texts(5000, seed=3) for line in text.split("\n") if line and common.issuperset(line)
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=proto,
        model_type=model_type,
        vocab_size=1200,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=proto.getvalue())


def pieces_of(processor: Any, user_defined: frozenset[str] = frozenset()) -> Pieces:
    """All pieces of a model, by id."""

    def kind(i: int) -> int:
        if processor.id_to_piece(i) in user_defined:
            return USER_DEFINED
        if processor.is_byte(i):
            return BYTE
        return CONTROL if processor.is_control(i) else UNKNOWN if processor.is_unknown(i) else NORMAL

    return [
        (processor.id_to_piece(i), processor.get_score(i), kind(i)) for i in range(processor.get_piece_size())
    ]
