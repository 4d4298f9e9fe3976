"""Each pre-tokenizer's pieces, against examples and against the tokenizers that transformers builds."""

from __future__ import annotations

import json
import random
import unicodedata

import pytest
from tokenizers import Regex
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import Split

from headrace.text.gguf.build import tokenizer_from_metadata
from headrace.text.gguf.pretokenizers import PRE_TOKENIZERS
from tests import needs
from tests.gguf_vocabularies import across_words, metadata_of, texts

transformers = needs.lazily("transformers")

SENTENCE = "It's I'LL 12345  x=1;\n\n  Füße über\tHTTPServer 从前1"

PIECES = {
    "gpt-2": "It|'s| I|'|LL| 12345| | x|=|1|;|\n\n | Füße| über|\t|HTTPServer| 从前|1",
    "starcoder": "It|'s| I|'|LL| |1|2|3|4|5| | x|=|1|;|\n\n | Füße| über|\t|HTTPServer| 从前|1",
    "falcon": "It|'|s| I|'|LL| |123|45| | x|=|1|;|\n\n | Füße| über|\t|HTTPServer| 从前|1",
    "llama-bpe": "It|'s| I|'LL| |123|45| | x|=|1|;\n\n| | Füße| über|\tHTTPServer| 从前|1",
    "qwen2": "It|'s| I|'LL| |1|2|3|4|5| | x|=|1|;\n\n| | Füße| über|\tHTTPServer| 从前|1",
    "gpt-4o": "It's| I'LL| |123|45| | x|=|1|;\n\n| | Füße| über|\tHTTPServer| 从前|1",
    "tekken": "It|'s| I|'LL| |1|2|3|4|5| | x|=|1|;\n\n| | Füße| über|\tHTTPServer| 从前|1",
    "kimi-k2": "It's| I'LL| |123|45| | x|=|1|;\n\n| | Füße| über|\tHTTPServer| |从前|1",
    "deepseek-v3": "It|'s| I|'LL| |123|45| | x|=|1|;\n\n| | Füße| über|\tHTTPServer| |从前|1",
    "deepseek-coder": "It|'|s| I|'|LL| |1|2|3|4|5| | x|=|1|;|\n|\n| | Füße| über|\tHTTPServer| |从前|1",
    "deepseek-llm": "It|'|s| I|'|LL| |12345| | x|=|1|;|\n|\n| | F|üß|e| ü|ber|\tHTTPServer| |从前|1",
    "afmoe": "It|'s| I|'LL| |12|345| | x|=|1|;\n\n| | Füße| über|\tHTTPServer| |从前|1",
    "bloom": "It's| I'LL| 12345| | x=1;|\n\n | Füße| über|\t|HTTPServer| 从前1",
}
"""Separated by bars; written by hand from the patterns in the models' own files."""


@pytest.mark.parametrize("name", PIECES)
def test_pieces(name: str) -> None:
    pieces = PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str(SENTENCE)
    assert "|".join(SENTENCE[start:end] for _, (start, end) in pieces) == PIECES[name]


@pytest.mark.parametrize(
    ("name", "published"),
    [("afmoe", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"), ("tiny_aya", r"\d{1,3}(?=(?:\d{3})*\b)")],
)
def test_groups_of_digits_are_those_of_the_published_pattern(name: str, published: str) -> None:
    theirs = Split(Regex(published), "isolated")
    ours = Split(Regex(PRE_TOKENIZERS[name].splits[0]), "isolated")
    rng = random.Random(6)
    for _ in range(3000):
        text = "".join(rng.choice("0123456789٣½ a_.") for _ in range(rng.randrange(20)))
        text += str(rng.randrange(10**12)) + rng.choice(["", "a", " ", "½", "_"])
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text), text


@pytest.mark.parametrize("name", ["afmoe", "tiny_aya", "superbpe"])
def test_long_numbers_take_time_in_proportion(name: str) -> None:
    """Minutes otherwise, which the limit of a test ends."""
    for end in ("", "x"):
        assert len(PRE_TOKENIZERS[name].pre_tokenizer().pre_tokenize_str("1" * 200_001 + end)) > 1000


# ---- Every name ----


@pytest.fixture(scope="module")
def across() -> Backend:
    return across_words()


@pytest.mark.parametrize("count", [12, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [name for name, pre in PRE_TOKENIZERS.items() if pre.byte_level])
def test_texts_survive_every_pre_tokenizer(name: str, count: int, across: Backend) -> None:
    tokenizer = tokenizer_from_metadata(metadata_of(across.to_str(), name))
    for text in texts(count, seed=1):
        expected = unicodedata.normalize("NFC", text) if PRE_TOKENIZERS[name].nfc else text
        assert tokenizer.decode(tokenizer.encode(text)) == expected


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("qwen2", "Qwen2Tokenizer"),
        ("qwen35", "Qwen3_5Tokenizer"),
        ("command-r", "CohereTokenizer"),
        ("olmo", "GPTNeoXTokenizer"),
        ("gpt-2", "GPT2Tokenizer"),
    ],
)
def test_ids_are_those_of_transformers(name: str, other: str, across: Backend) -> None:
    model = json.loads(across.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    theirs = getattr(transformers, other)(vocab=dict(model["vocab"]), merges=merges)
    tokenizer = tokenizer_from_metadata(metadata_of(across.to_str(), name))
    decomposed = 0
    for text in texts(1500, seed=2):
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text
        decomposed += not unicodedata.is_normalized("NFC", text)
    assert decomposed > 10
