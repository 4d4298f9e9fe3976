"""The ids that llama.cpp gives for the same vocabulary, for every pre-tokenizer and for scores.

Where its patterns only approximate those of a model's own tokenizer, the texts leave out what differs: `comparable`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headrace.text.gguf.build import tokenizer_from_metadata
from headrace.text.gguf.pretokenizers import PRE_TOKENIZERS
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.gguf_vocabularies import (
    across_words,
    marked_spaces,
    metadata_of,
    read_metadata,
    scored,
    texts,
    write_metadata,
)
from tests.places import TALE
from tests.sentencepiece_models import pieces_of, trained

pytestmark = pytest.mark.long

Ids = Callable[[str], list[int]]


def llama_cpp_ids(path: Path) -> Ids:
    loaded = needs.llama_cpp().Llama(str(path), vocab_only=True, verbose=False)
    return lambda text: list(loaded.tokenize(text.encode(), add_bos=False, special=True))


@pytest.fixture(scope="module")
def across() -> str:
    return across_words().to_str()


@pytest.fixture(scope="module")
def many_texts() -> list[str]:
    return texts(50_000, seed=11)


_CASED = {
    "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "tekken", "granite-embed-multi-97m", "tiny_aya",
    "cohere2moe", "youtu", "kimi-k2",
}  # fmt: skip
"""Patterns that tell upper case from lower case, and marks from letters: llama.cpp does so in ASCII alone."""

_CASELESS = {"tiny_aya", "cohere2moe", "youtu", "kimi-k2"}
"""Those of them where it does not do so in ASCII either."""

_NUMBERS_FROM_THE_END = {"afmoe", "tiny_aya", "cohere2moe"}
"""Its groups of digits begin with the text before the number."""

_SPACES_IN_RANGES = {"deepseek-llm", "deepseek-coder"}
"""Patterns with a range of characters that has a space in it, U+3000, which llama.cpp sees as any other space."""

_DIGITS = {"superbpe"}
"""Patterns with \\d, which it takes for ASCII digits."""


def comparable(name: str, text: str) -> bool:
    """Whether llama.cpp's pattern splits the text as the one that it stands for."""
    if any(
        unicodedata.category(char) == "Cn" for char in text
    ):  # letters of a newer Unicode, for one of the two
        return False
    beyond_ascii = [char for char in text if not char.isascii()]
    return not (
        (PRE_TOKENIZERS[name].nfc and not unicodedata.is_normalized("NFC", text))
        or (
            name in _CASED
            and any(unicodedata.category(char) not in ("Lo", "Nd", "Po", "Zs") for char in beyond_ascii)
        )
        or (name in _CASELESS and re.search("[a-z][A-Z]", text))
        or (name in _NUMBERS_FROM_THE_END and any(unicodedata.category(char)[0] == "N" for char in text))
        or (name in _SPACES_IN_RANGES and any(char.isspace() for char in beyond_ascii))
        or (name in _DIGITS and any(char.isdigit() for char in beyond_ascii))
        # It has U+8C48 where a range of characters begins with U+F900, of which that is the canonical equivalent.
        or (name == "afmoe" and re.search("[\ua000-\uabff\ud7b0-\uf8ff]", text))
    )


_BYTE_LEVEL = {name: pre for name, pre in PRE_TOKENIZERS.items() if pre.byte_level}
_FIRST = {pre: name for name, pre in reversed(_BYTE_LEVEL.items())}
"""One name of each pre-tokenizer; the others, which only have to be known to llama.cpp, get fewer texts."""


@pytest.mark.parametrize("name", _BYTE_LEVEL)
def test_ids_of_every_pre_tokenizer(name: str, across: str, many_texts: list[str], tmp_path: Path) -> None:
    metadata = metadata_of(across, name, bos_token_id=0, add_bos_token=False)
    theirs = llama_cpp_ids(write_metadata(tmp_path / "model.gguf", metadata))
    ours = tokenizer_from_metadata(metadata)
    count = 10_000 if _FIRST[PRE_TOKENIZERS[name]] == name else 500
    compared = list(islice((text for text in many_texts if comparable(name, text)), count))
    for text in compared:
        assert ours.encode(text, add_special_tokens=False) == theirs(text), text
    assert len(compared) > 0.4 * count


def test_ids_of_a_byte_pair_vocabulary_with_marks_for_spaces(tmp_path: Path) -> None:
    metadata = marked_spaces()
    theirs = llama_cpp_ids(write_metadata(tmp_path / "model.gguf", metadata))
    ours = tokenizer_from_metadata(metadata)
    for text in texts(10_000, seed=16, inserted=["<eos>"], exclude="▁"):  # which decodes to a space
        assert ours.encode(text, add_special_tokens=False) == theirs(text), text
        assert ours.decode(ours.encode(text), skip_special_tokens=False) == "<bos>" + text


def test_ids_of_the_bundled_model(tmp_path: Path) -> None:
    tale = Tokenizer.from_folder(TALE)
    path = write_metadata(
        tmp_path / "tale.gguf", metadata_of(tale.to_json(), "gpt-2", bos_token_id=0, eos_token_id=1)
    )
    theirs, ours = llama_cpp_ids(path), tokenizer_from_metadata(read_metadata(path))
    for text in texts(10_000, seed=12, inserted=sorted(tale.structural_tokens)):
        assert ours.encode(text, add_special_tokens=False) == theirs(text), text


def test_ids_of_a_vocabulary_with_scores(tmp_path: Path) -> None:
    processor = trained(
        "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, allow_whitespace_only_pieces=True, user_defined_symbols=["<tool>"],
    )  # fmt: skip
    metadata = scored(pieces_of(processor, frozenset({"<tool>"})), bos_token_id=1, eos_token_id=2)
    theirs = llama_cpp_ids(write_metadata(tmp_path / "model.gguf", metadata))
    ours = tokenizer_from_metadata(metadata)
    for text in texts(10_000, seed=13, inserted=["<tool>", "</s>", "<unk>"]):
        assert ours.encode(text, add_special_tokens=False) == theirs(text), text


def test_ids_where_all_scores_are_equal(tmp_path: Path) -> None:
    """As the converter writes them for vocabularies that it has no scores of."""
    processor = trained("bpe", byte_fallback=True, normalization_rule_name="identity")
    metadata: dict[str, Any] = scored([(text, -1000.0, kind) for text, _, kind in pieces_of(processor)])
    theirs = llama_cpp_ids(write_metadata(tmp_path / "model.gguf", metadata))
    ours = tokenizer_from_metadata(metadata)
    for text in texts(10_000, seed=14):
        assert ours.encode(text, add_special_tokens=False) == theirs(text), text


def test_ids_of_a_unigram_vocabulary(tmp_path: Path) -> None:
    processor = trained("unigram", pad_id=3, normalization_rule_name="identity")
    metadata = scored(
        pieces_of(processor), "t5", bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_space_prefix=True,
        remove_extra_whitespaces=True,
    )  # fmt: skip
    theirs = llama_cpp_ids(write_metadata(tmp_path / "model.gguf", metadata))
    ours = tokenizer_from_metadata(metadata)
    for text in texts(10_000, seed=15, inserted=["</s>"]):
        assert ours.encode(text, add_special_tokens=False) == theirs(text), text
