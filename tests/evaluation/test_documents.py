"""Texts and beginnings that heads are trained on."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, RequestError
from headrace.evaluation.documents import (
    BUNDLED_TEXTS,
    Document,
    beginnings,
    first_tokens,
    given_documents,
    measured_documents,
    read_records,
    split,
)
from headrace.text.tokenizer_source import open_tokenizer
from tests.places import TALE


class Bytes:
    """A tokenizer whose tokens are bytes; a conversation ends with 0 where an answer is due."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], /, add_generation_prompt: bool = True
    ) -> list[int]:
        return [*(byte for one in messages for byte in one["content"].encode()), *[0] * add_generation_prompt]


CHAT = {"messages": [{"role": "user", "content": "hello"}]}


def test_files_of_lines_and_of_paragraphs(tmp_path: Path) -> None:
    lines, plain = tmp_path / "a.jsonl", tmp_path / "a.txt"
    lines.write_text(
        '{"text": "one"}\n\n{"prompt": "two"}\n{"messages": [{"role": "user", "content": "x"}]}\n'
    )
    plain.write_text("one\ntwo\n\n\n three\n")
    assert [next(iter(record)) for record in read_records(lines)] == ["text", "prompt", "messages"]
    assert read_records(plain) == [{"text": "one\ntwo"}, {"text": "three"}]
    assert len(read_records(BUNDLED_TEXTS)) == 70


def test_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    """JSON may hold the other separators of lines as they are. Windows begins files with a byte-order mark."""
    path = tmp_path / "a.jsonl"
    text = "one\u2028two\x85three"
    path.write_bytes(f'\ufeff{{"text": "{text}"}}\r\n{{"text": "four"}}\r\n'.encode())
    assert read_records(path) == [{"text": text}, {"text": "four"}]
    plain = tmp_path / "a.txt"
    plain.write_bytes("\ufeffone\r\n\r\ntwo\r\n".encode())
    assert read_records(plain) == [{"text": "one"}, {"text": "two"}]


def test_endless_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.evaluation.documents.MAX_FILE_BYTES", 1 << 12)
    with pytest.raises(ConfigError, match="/dev/zero is larger than 4096 bytes"):
        read_records(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "one"}\n{"text": 1}\n', 'line 2 of .* is not an object with "text"'),
        (b"[1]\n", "line 1"),
        (b'{"messages": []}\n', "line 1"),
        (b'{"prompt": "a", "completion": 1}\n', "line 1"),
        (b"{" * 100_000, "line 1"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_records(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_records(tmp_path / "nothing.txt")


def test_given_texts_are_cut_into_pieces() -> None:
    records = [{"text": "abcdefgh"}, {"prompt": "x"}, CHAT]
    found = given_documents(records, Bytes(), 5)
    assert [bytes(one.ids) for one in found] == [b"abcde", b"fgh", b"hello"]
    assert [one.trained for one in found] == [4, 2, 4]
    (one, two) = given_documents([{"prompt": "why", "completion": " not"}], Bytes(), 5)
    assert (bytes(one.ids), one.start, bytes(two.ids), two.start) == (b"why n", 3, b"ot", 1)
    assert Document((1, 2, 3, 4), 3).trained == 1 and Document((1,)).trained == 0


def test_beginnings_are_whole_prompts_and_parts_of_texts() -> None:
    records = [{"text": "a" * 100}, {"prompt": "why?"}, CHAT, {"text": ""}, {"prompt": "b" * 600}]
    found = beginnings(records, Bytes(), 40, random.Random(1), 500)
    texts = [one for one in found if one[0] == ord("a")]
    assert len(found) == 40 and [*b"why?"] in found and [*b"hello", 0] in found
    assert 13 <= len(texts) <= 14 and len({len(one) for one in texts}) > 5
    assert all(4 <= len(one) <= 50 for one in texts)
    assert found == beginnings(records, Bytes(), 40, random.Random(1), 500)
    assert beginnings([{"text": ""}], Bytes(), 4, random.Random(1), 500) == []


class Counts(Bytes):
    """How much was tokenized."""

    def __init__(self) -> None:
        self.read = 0

    def encode(self, text: str) -> list[int]:
        self.read += len(text)
        return super().encode(text)


def test_of_a_long_record_no_more_is_read_than_its_beginning_takes() -> None:
    records = [{"text": "a" * 1_000_000}, {"prompt": "b" * 1_000_000}]
    encoder = Counts()
    found = beginnings(records, encoder, 9, random.Random(1), 500)
    assert len(found) == 9 and all({*one} == {ord("a")} for one in found)
    assert encoder.read < 40_000
    encoder = Counts()
    (first, second) = measured_documents(records, encoder, 100, 150)
    assert (len(first.ids), len(second.ids)) == (100, 52) and encoder.read < 10_000


def test_of_many_records_no_more_are_read_than_are_drawn() -> None:
    records = [{"text": chr(number) * 50} for number in range(33, 10_033)]
    encoder = Counts()
    assert len(beginnings(records, encoder, 20, random.Random(1), 500)) == 20
    assert encoder.read == 20 * 50


def test_first_tokens_are_those_of_the_whole_text() -> None:
    tokenizer = open_tokenizer(TALE)
    stories = "\n".join(record["text"] for record in read_records(BUNDLED_TEXTS))
    for text in (
        stories,
        stories.replace(" ", ""),
        " " * 50_000 + stories,
        "é😀" * 20_000,
        stories[:100],
        "",
    ):
        assert first_tokens(text, tokenizer, 300) == tokenizer.encode(text)[:300]


def test_what_the_tokenizer_refuses_is_named() -> None:
    class Refuses(Bytes):
        def encode(self, text: str) -> list[int]:
            raise RequestError("no.")

    for read in (
        lambda: given_documents([{"text": "why" * 99}], Refuses(), 5),
        lambda: beginnings([{"prompt": "why" * 99}], Refuses(), 1, random.Random(1), 5),
    ):
        with pytest.raises(
            ConfigError, match=r"^the record \{'\w+': 'why.*why'\} cannot be read: no\.$"
        ) as caught:
            read()
        assert len(str(caught.value)) < 90


def test_one_document_in_ten_is_held_out() -> None:
    documents = [Document((number, number)) for number in range(25)]
    training, heldout = split(documents, random.Random(0))
    assert len(heldout) == 2 and {*training, *heldout} == {*documents}
    assert len(split(documents[:2], random.Random(0))[1]) == 1
