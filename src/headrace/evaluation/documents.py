"""Texts as tokens, to train on or to measure a model by; or beginnings that a model continues. No torch here."""

from __future__ import annotations

import json
import random
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headrace.errors import ConfigError, HeadraceError
from headrace.models.source import BUNDLED_FOLDER

BUNDLED_TEXTS = BUNDLED_FOLDER / "heldout.jsonl"
MAX_FILE_BYTES = 1 << 30
LONGEST = 1024
"""Longer documents are cut into pieces of so many tokens."""
_LONGEST_PROMPT = 512
_SHORTEST_BEGINNING = 4
_LONGEST_BEGINNING = 64
_CHARACTERS = 16
"""Of a text, for each of its first tokens that is asked for."""
_MARGIN = 64
"""Tokens before the end of a part of a text, which the whole text may have others for."""


class Encoder(Protocol):
    """The part of a tokenizer that documents need."""

    def encode(self, text: str) -> list[int]: ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], /, add_generation_prompt: bool = ...
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids. The tokens from `start` on are the text to predict, those before are its prompt."""

    ids: tuple[int, ...]
    start: int = 1

    @property
    def trained(self) -> int:
        """Tokens to predict."""
        return max(0, len(self.ids) - max(1, self.start))


Record = Mapping[str, Any]
"""One of {"text": text}, {"prompt": text}, {"prompt": text, "completion": text} and {"messages": [...]}."""


def read_records(path: Path) -> list[Record]:
    """The records of a .jsonl file, one an object a line, or the paragraphs of any other file.

    Raises ConfigError where the file cannot be read, is too large, or a line is no such object.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)  # the size of a device is not known
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes: give a part of it")
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return [{"text": part.strip()} for part in text.split("\n\n") if part.strip()]
    lines = enumerate(text.split("\n"), 1)  # str.splitlines would cut texts with U+2028
    return [_record(path, number, line) for number, line in lines if line.strip()]


def _record(path: Path, number: int, line: str) -> Record:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        if any(isinstance(found.get(key), str) for key in ("text", "prompt")) and isinstance(
            found.get("completion", ""), str
        ):
            return found
        messages = found.get("messages")
        if isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages):
            return found
    raise ConfigError(f'line {number} of {path} is not an object with "text", "prompt" or "messages"')


@contextmanager
def _named(record: Record) -> Iterator[None]:
    """Errors say which record they are about."""
    try:
        yield
    except HeadraceError as error:
        raise ConfigError(f"the record {reprlib.repr(dict(record))} cannot be read: {error}") from error


def first_tokens(text: str, encoder: Encoder, count: int) -> list[int]:
    """The first `count` tokens of a text, of which no more is read than they take."""
    size = (count + _MARGIN) * _CHARACTERS
    while size < len(text):
        ids = encoder.encode(text[:size])
        if len(ids) >= count + _MARGIN:
            return ids[:count]
        size *= 4
    return encoder.encode(text)[:count]


def given_documents(
    records: Sequence[Record], encoder: Encoder, longest: int, most: int | None = None
) -> list[Document]:
    """The texts themselves: what follows the prompt, where there is one, and else all of it.

    most: tokens that are needed of a record, of which the rest may be left out. Raises ConfigError for what the
    tokenizer refuses.
    """
    documents = []
    for record in records:
        start = 1
        with _named(record):
            text = plain_text(record)
            if text is not None:
                ids = encoder.encode(text) if most is None else first_tokens(text, encoder, most)
            elif isinstance(record.get("prompt"), str):
                ids = encoder.encode(record["prompt"] + record["completion"])
                start = len(encoder.encode(record["prompt"]))
            else:
                ids = encoder.encode_chat(record["messages"], add_generation_prompt=False)
        documents += [
            Document(tuple(ids[at : at + longest]), max(1, start - at)) for at in range(0, len(ids), longest)
        ]
    return [document for document in documents if document.trained]


def plain_text(record: Record) -> str | None:
    """The text of a record that has no part which is only read; None: it has."""
    for name in ("text", "prompt"):
        if isinstance(text := record.get(name), str):
            return None if name == "prompt" and record.get("completion") else text
    return None


def measured_documents(
    records: Sequence[Record], encoder: Encoder, longest: int, tokens: int
) -> list[Document]:
    """As many of `given_documents` as have so many tokens to predict; the last is cut, and no later text is read."""
    found: list[Document] = []
    most = tokens + tokens // max(1, longest - 1) + 1  # the first token of a document is not predicted
    for document in (one for record in records for one in given_documents([record], encoder, longest, most)):
        if tokens <= 0:
            break
        if document.trained > tokens:
            document = Document(document.ids[: max(1, document.start) + tokens], document.start)
        found.append(document)
        tokens -= document.trained
    return found


def beginnings(
    records: Sequence[Record], encoder: Encoder, count: int, rng: random.Random, longest: int
) -> list[list[int]]:
    """Prompts for the model to continue: each record's prompt or conversation, or a text's first tokens.

    All records come up equally often; of a text, each time another number of tokens.
    """
    longest = min(longest, _LONGEST_PROMPT)
    mixed = list(records)
    rng.shuffle(mixed)
    usable: list[tuple[list[int], bool]] = []
    found: list[list[int]] = []
    for record in mixed:  # no more of them are tokenized than are needed
        if len(found) >= count:
            break
        ids, cut = _prompt(record, encoder, longest)
        if 0 < len(ids) <= longest:
            usable.append((ids, cut))
            found.append(_beginning(ids, rng) if cut else ids)
    while usable and len(found) < count:
        rng.shuffle(usable)
        found += [_beginning(ids, rng) if cut else ids for ids, cut in usable[: count - len(found)]]
    return found


def _prompt(record: Record, encoder: Encoder, longest: int) -> tuple[list[int], bool]:
    """Tokens of a record, one more than `longest` where a prompt is longer; and whether a part of them will do."""
    with _named(record):
        if isinstance(record.get("text"), str):
            return first_tokens(record["text"], encoder, longest), True
        if "messages" in record:
            return encoder.encode_chat(record["messages"]), False
        return first_tokens(record["prompt"], encoder, longest + 1), False


def _beginning(ids: list[int], rng: random.Random) -> list[int]:
    last = max(1, min(len(ids) // 2, _LONGEST_BEGINNING))
    return ids[: rng.randint(min(last, _SHORTEST_BEGINNING), last)]


def split(documents: Sequence[Document], rng: random.Random) -> tuple[list[Document], list[Document]]:
    """Documents to train on, and one in ten, at least one, to measure on."""
    mixed = list(documents)
    rng.shuffle(mixed)
    count = max(1, len(mixed) // 10)
    return mixed[count:], mixed[:count]
