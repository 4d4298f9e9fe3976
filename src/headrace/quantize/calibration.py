"""The texts that inputs of matrices are taken from."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.errors import ConfigError
from headrace.evaluation.documents import Encoder, Record, given_documents
from headrace.models.source import BUNDLED_FOLDER

BUNDLED_CALIBRATION = BUNDLED_FOLDER / "calibration.jsonl"
"""Stories that are neither in the text that the bundled models are measured on, nor in what they were trained on."""


def calibration_texts(
    records: Sequence[Record], encoder: Encoder, samples: int, length: int, seed: int, where: object
) -> list[tuple[int, ...]]:
    """So many texts of at most `length` tokens, drawn without replacement; longer ones are cut into several.

    Raises ConfigError, naming `where` they come from, if there are fewer.
    """
    found = given_documents(records, encoder, length)
    if len(found) < samples:
        raise ConfigError(
            f"{where} holds {len(found)} texts of 2 to {length} tokens, not {samples}: give more text with --data, or "
            f"fewer --samples"
        )
    return [one.ids for one in random.Random(seed).sample(found, samples)]
