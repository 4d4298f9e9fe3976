"""Calibration texts are drawn from all of a file, and a large file costs no more than a small one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.quantize.calibration.texts import ENOUGH, calibration_texts, own_texts


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
    for name in ("text", "prompt"):
        encoder = Letters()
        assert len(calibration_texts([{name: "a" * 5 * ENOUGH}], encoder, 8, 512, 0, "a file")) == 8
        assert encoder.read < 1.1 * ENOUGH


def test_too_few_texts_are_counted_even_where_the_file_is_large() -> None:
    records = [{"text": "a" * (1 << 16)}] * (2 * ENOUGH >> 16)
    with pytest.raises(ConfigError, match=f"a file holds {len(records)} texts.*not 1000"):
        calibration_texts(records, Letters(), 1000, 1 << 16, 0, "a file")


class Author:
    """Counts up from the last token of a prompt; a text may end after its prompt, by its seed."""

    vocab_size = 1000

    def __init__(self, begin: int | None, ends: int = 0) -> None:
        self.begin, self._ends = begin, ends

    def sample(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], longest: int
    ) -> list[tuple[int, ...]]:
        return [
            ()
            if self._ends and seed % self._ends
            else tuple(range(prompt[-1] + 1, prompt[-1] + 1 + longest - len(prompt)))
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]


def test_a_model_writes_its_own_texts_by_the_seed() -> None:
    assert own_texts(Author(7), 2, 4, 0) == [(7, 8, 9, 10)] * 2
    texts = own_texts(Author(None), 5, 6, 0)
    assert len({text[0] for text in texts}) > 1 and all(len(text) == 6 for text in texts)
    assert texts == own_texts(Author(None), 5, 6, 0) != own_texts(Author(None), 5, 6, 1)
    given = own_texts(Author(7), 3, 40, 0, [{"text": "a" * 30}], Letters())
    assert all(text[:4] == (97,) * 4 and len(text) == 40 for text in given)


def test_given_beginnings_are_not_replaced_by_others() -> None:
    for records in ([], [{"prompt": "a" * 40}]):
        with pytest.raises(
            ConfigError, match="no text can be continued: all are empty, or prompts of more than 39"
        ):
            own_texts(Author(7), 2, 40, 0, records, Letters())


def test_texts_that_end_at_once_are_sampled_again() -> None:
    assert len(own_texts(Author(7, ends=2), 6, 4, 0)) == 6
    with pytest.raises(ConfigError, match=r"ended its texts at once: \d of 40"):
        own_texts(Author(7, ends=1000), 40, 4, 0)
