"""The texts that inputs of matrices are taken from."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.errors import ConfigError
from headrace.evaluation.documents import Document, Encoder, Record, given_documents
from headrace.models.source import BUNDLED_FOLDER

BUNDLED_CALIBRATION = BUNDLED_FOLDER / "calibration.jsonl"
"""Stories that are neither in the text that the bundled models are measured on, nor in what they were trained on."""

ENOUGH = 2 << 20
"""Characters that are tokenized of a file with more, if they give enough texts."""
_PIECE = 1 << 16
"""Characters of a longer text that count as a text of its own."""


def calibration_texts(
    records: Sequence[Record], encoder: Encoder, samples: int, length: int, seed: int, where: object
) -> list[tuple[int, ...]]:
    """So many texts of at most `length` tokens, drawn without replacement; longer ones are cut into several.

    Of records with more than ENOUGH characters some are drawn first, so that large files take no longer.
    Raises ConfigError, naming `where` they come from, if there are fewer.
    """
    pieces = [piece for record in records for piece in _pieces(record)]
    if sum(map(_characters, pieces)) > ENOUGH:
        random.Random(seed).shuffle(pieces)
    found: list[Document] = []
    read = 0
    for piece in pieces:
        if read >= ENOUGH and len(found) >= samples:
            break
        found += given_documents([piece], encoder, length)
        read += _characters(piece)
    if len(found) < samples:
        raise ConfigError(
            f"{where} holds {len(found)} texts of 2 to {length} tokens, not {samples}: give more text with --data, or "
            f"fewer --samples"
        )
    return [one.ids for one in random.Random(seed).sample(found, samples)]


def _pieces(record: Record) -> list[Record]:
    text = record.get("text")
    if not isinstance(text, str) or len(text) <= _PIECE:
        return [record]
    return [{"text": text[at : at + _PIECE]} for at in range(0, len(text), _PIECE)]


def _characters(record: Record) -> int:
    return sum(len(str(value)) for value in record.values())
