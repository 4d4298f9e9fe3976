"""Vocabularies with scores give the ids that SentencePiece itself gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from headrace.core.grammar import Grammar
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.gguf.build import tokenizer_from_metadata
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.gguf_vocabularies import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, scored, texts
from tests.sentencepiece_models import BPE, UNIGRAM, Pieces, charsmap_of, model_proto, pieces_of, trained

META: Pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
BYTES: Pieces = [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]

MODELS = {"llama": BPE, "t5": UNIGRAM}


def random_pieces(rng: random.Random, with_bytes: bool) -> Pieces:
    """Few characters, so that pieces overlap in every way, and few scores, so that many are equal."""
    chars = "ab▁" if rng.random() < 0.5 else "abc▁"
    found = {char for char in chars if rng.random() < 0.9}
    while len(found) < 20:
        found.add("".join(rng.choice(chars) for _ in range(rng.randrange(2, 6))))
    listed = sorted(found)
    rng.shuffle(listed)
    distinct = rng.random() < 0.5
    scores = [-float(i) if distinct else -0.5 * rng.randrange(8) for i in range(len(listed))]
    learnt = [(text, score, NORMAL) for text, score in zip(listed, scores, strict=True)]
    return META + (BYTES if with_bytes else []) + learnt


@pytest.mark.parametrize("model", MODELS)
def test_ids_of_any_vocabulary(model: str) -> None:
    sentencepiece = needs.package("sentencepiece")
    rng = random.Random(5)
    multiple = unknown = 0
    for round in range(150):
        with_bytes, prefix = round % 3 == 0, round % 2 == 0
        pieces = random_pieces(rng, with_bytes)
        proto = model_proto(pieces, MODELS[model], byte_fallback=with_bytes, add_dummy_prefix=prefix)
        theirs = sentencepiece.SentencePieceProcessor(model_proto=proto)
        ours = tokenizer_from_metadata(scored(pieces, model, unknown_token_id=0, add_space_prefix=prefix))
        for _ in range(40):
            text = "".join(rng.choice("aaabbc d") for _ in range(rng.randrange(24)))
            ids = theirs.encode(text)
            assert ours.encode(text, add_special_tokens=False) == ids, (text, pieces)
            multiple += len(ids) < len(text)
            unknown += 0 in ids
    assert multiple > 1000 and unknown > 1000


def test_no_list_of_merges_gives_these_ids() -> None:
    """The reason why merges are not rebuilt from scores: two ways to make one piece are equal in rank."""
    sentencepiece = needs.package("sentencepiece")
    rng = random.Random(1)
    differing = 0
    for _ in range(300):
        pieces = random_pieces(rng, with_bytes=False)
        scores = {text: score for text, score, _ in pieces}
        theirs = sentencepiece.SentencePieceProcessor(
            model_proto=model_proto(pieces, BPE, add_dummy_prefix=False)
        )
        ours = tokenizer_from_metadata(scored(pieces, add_space_prefix=False))
        rebuilt = Backend(_with_rebuilt_merges(scores))
        text = "".join(rng.choice("ab") for _ in range(30))
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids
        differing += rebuilt.encode(text).ids != ids
    assert differing > 10


def _with_rebuilt_merges(scores: dict[str, float]) -> Any:
    """As converters do it: each way to split a piece into two, the pieces with the best scores first."""
    ids = {text: i for i, text in enumerate(scores)}
    merges = [
        (text[:middle], text[middle:])
        for text in sorted(scores, key=lambda text: -scores[text])
        for middle in range(1, len(text))
        if text[:middle] in ids and text[middle:] in ids
    ]
    return models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True)


# ---- Trained vocabularies ----


@pytest.fixture(scope="module")
def llama() -> tuple[Any, Tokenizer]:
    """SentencePiece's processor, and ours from its pieces: as in Llama 2."""
    theirs = trained(
        "bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, allow_whitespace_only_pieces=True,
    )  # fmt: skip
    return theirs, tokenizer_from_metadata(scored(pieces_of(theirs), bos_token_id=1, eos_token_id=2))


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.long)])
def test_ids_of_a_byte_pair_vocabulary(llama: tuple[Any, Tokenizer], count: int) -> None:
    theirs, ours = llama
    spelled = 0
    for text in texts(count, exclude="▁"):  # which decodes to a space
        ids = theirs.encode(text)
        assert ours.encode(text, add_special_tokens=False) == ids, text
        assert ours.decode(ids) == text
        spelled += any(3 <= i < 259 for i in ids)
    assert spelled > count // 10


def test_a_stream_of_a_byte_pair_vocabulary(llama: tuple[Any, Tokenizer]) -> None:
    _, ours = llama
    for text in texts(100, seed=4):
        streamed = IncrementalDetokenizer(ours)
        assert "".join([*(streamed.push([i]) for i in ours.encode(text)), streamed.finish()]) == text


def test_settings_where_the_file_has_none(llama: tuple[Any, Tokenizer]) -> None:
    _, ours = llama
    assert (ours.bos_id, ours.eos_ids, ours.special_ids) == (1, {2}, {0, 1, 2})
    assert ours.encode("") == [1]
    assert ours.encode("a")[0] == 1 and ours.encode("a", add_special_tokens=False)[0] != 1


def test_ids_of_a_unigram_vocabulary_with_a_normalization() -> None:
    theirs = trained("unigram", pad_id=3)
    charsmap = charsmap_of(theirs.serialized_model_proto())
    assert len(charsmap) > 100_000
    ours = tokenizer_from_metadata(
        scored(
            pieces_of(theirs), "t5", charsmap, bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_eos_token=True,
            add_space_prefix=True, remove_extra_whitespaces=True,
        )
    )  # fmt: skip
    changed = unknown = ties = 0
    for text in texts(4000, exclude="▁"):
        ids, found = theirs.encode(text), ours.encode(text)
        if found != [*ids, 2]:
            # The same pieces in another order have the same score, but for the rounding of float32 sums.
            assert sorted(found) == sorted([*ids, 2]), text
            ties += 1
        changed += theirs.decode(ids) != text
        unknown += 0 in ids
    assert changed > 1000 and unknown > 1000 and ties < 100


# ---- Added tokens ----


def test_added_tokens_are_found_in_the_raw_text() -> None:
    listed: Pieces = [
        (text, -float(i), NORMAL) for i, text in enumerate(["▁", "a", "b", "▁a", "▁b", "<", "s", ">"])
    ]
    added: Pieces = [
        ("<tool>", 0.0, USER_DEFINED),
        ("<tool> <x>", 0.0, USER_DEFINED),
        ("  ", 0.0, USER_DEFINED),
    ]
    tokenizer = tokenizer_from_metadata(scored([*META, *listed, *added]))
    names = [
        tokenizer.token(i) for i in tokenizer.encode("a<tool>b</s><tool> <x>a  b", add_special_tokens=False)
    ]
    assert names == ["▁a", "<tool>", "▁b", "</s>", "<tool> <x>", "▁a", "  ", "▁b"]
    assert tokenizer.special_ids == {0, 1, 2}
    bare = tokenizer_from_metadata(scored([*META, *listed, *added], add_space_prefix=False))
    assert [bare.token(i) for i in bare.encode("a<tool>b")] == ["<s>", "a", "<tool>", "b"]


def test_tokens_without_types_are_told_by_the_ids_and_texts() -> None:
    metadata = scored([*META, *BYTES, ("▁a", -1.0, NORMAL), ("▁", -2.0, NORMAL)])
    del metadata["tokenizer.ggml.token_type"]
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.special_ids == {0, 1, 2}
    assert [tokenizer.token(i) for i in tokenizer.encode("a</s>é")] == [
        "<s>", "▁a", "</s>", "▁", "<0xC3>", "<0xA9>",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("a é")) == "a é"


def test_long_texts_without_spaces(llama: tuple[Any, Tokenizer]) -> None:
    theirs, ours = llama
    for text in ("a" * 20_000, "=" * 5_000 + "-" * 5_001, "从前" * 3_000, " " * 4_096):
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text)


def test_grammars_know_the_tokens(llama: tuple[Any, Tokenizer]) -> None:
    needs.package("llguidance")
    from headrace.text.grammars import GrammarCompiler

    _, ours = llama
    compiler = GrammarCompiler(ours, ours.vocab_size, ours.eos_ids)
    matcher = compiler.compile(Grammar("regex", " mill é")).start()
    for token in ours.encode("mill é", add_special_tokens=False):
        assert matcher.consume_token(token)
    assert matcher.is_accepting()
