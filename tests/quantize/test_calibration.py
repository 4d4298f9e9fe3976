"""Calibration texts are drawn from all of a file, and a large file costs no more than a small one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.quantize.calibration import ENOUGH, calibration_texts


class Letters:
    """A token for each character."""

    def __init__(self) -> None:
        self.read = 0

    def encode(self, text: str) -> list[int]:
        self.read += len(text)
        return [ord(letter) for letter in text]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], /, add_generation_prompt: bool = False
    ) -> list[int]:
        raise AssertionError


def test_of_a_large_file_a_part_is_tokenized_drawn_from_all_of_it() -> None:
    records = [{"text": chr(number) * 1000} for number in range(33, 33 + 10 * ENOUGH // 1000)]
    encoder = Letters()
    texts = calibration_texts(records, encoder, 40, 512, 0, "a file")
    assert len(texts) == 40 and encoder.read <= ENOUGH + 1000
    places = sorted((text[0] - 33) / len(records) for text in texts)
    assert places[0] < 0.2 and places[-1] > 0.8
    assert texts == calibration_texts(records, Letters(), 40, 512, 0, "a file")
    assert texts != calibration_texts(records, Letters(), 40, 512, 1, "a file")


def test_one_long_text_is_read_in_pieces() -> None:
    encoder = Letters()
    assert len(calibration_texts([{"text": "a" * 5 * ENOUGH}], encoder, 8, 512, 0, "a file")) == 8
    assert encoder.read < 1.1 * ENOUGH


def test_too_few_texts_are_counted_even_where_the_file_is_large() -> None:
    records = [{"text": "a" * (1 << 16)}] * (2 * ENOUGH >> 16)
    with pytest.raises(ConfigError, match=f"a file holds {len(records)} texts.*not 1000"):
        calibration_texts(records, Letters(), 1000, 1 << 16, 0, "a file")
