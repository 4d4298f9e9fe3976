from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.tokenizer import Tokenizer
from tests.work import lines_run

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PROMPT = "The wheel turned; the"


def chunks(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def check_stream(tokenizer: Tokenizer, pieces: list[list[int]], skip: bool) -> None:
    """All increments together are the decode of all ids, and each was right when it was made."""
    whole = tokenizer.decode([i for piece in pieces for i in piece], skip)
    stream = IncrementalDetokenizer(tokenizer, skip)
    text = ""
    for piece in pieces:
        text += stream.push(piece)
        assert whole.startswith(text)  # in particular: no U+FFFD that the whole does not have
    assert text + stream.finish() == whole
    assert stream.finish() == ""


@given(st.data(), UNICODE)
def test_any_text_in_any_chunks(
    byte_level: Tokenizer, sentencepiece: Tokenizer, unigram: Tokenizer, wordpiece: Tokenizer,
    data: st.DataObject, text: str,
) -> None:  # fmt: skip
    tokenizer = data.draw(st.sampled_from([byte_level, sentencepiece, unigram, wordpiece]))
    check_stream(tokenizer, chunks(data, tokenizer.encode(text)), data.draw(st.booleans()))


@given(st.data())
def test_any_ids_in_any_chunks(
    byte_level: Tokenizer, sentencepiece: Tokenizer, unigram: Tokenizer, wordpiece: Tokenizer,
    data: st.DataObject,
) -> None:  # fmt: skip
    tokenizer = data.draw(st.sampled_from([byte_level, sentencepiece, unigram, wordpiece]))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=20))
    check_stream(tokenizer, chunks(data, ids), data.draw(st.booleans()))


@given(st.data(), st.binary(max_size=24))
def test_any_bytes_in_any_chunks(byte_level: Tokenizer, data: st.DataObject, raw: bytes) -> None:
    ids = [byte_level._backend.token_to_id(chr(c)) for c in map(_letter, raw)]
    assert byte_level.decode(ids) == raw.decode("utf-8", "replace")
    check_stream(byte_level, chunks(data, ids), True)


def _letter(byte: int) -> int:
    """Code point that stands for a byte in the GPT-2 alphabet, written out independently of the code under test."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    return byte if byte in printable else 256 + [b for b in range(256) if b not in printable].index(byte)


def test_texts_token_by_token(any_tokenizer: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        check_stream(any_tokenizer, [[i] for i in any_tokenizer.encode(text)], True)


def test_continuations_follow_the_prompt(any_tokenizer: Tokenizer, texts: list[str]) -> None:
    prompt = any_tokenizer.encode(PROMPT)
    before = any_tokenizer.decode(prompt)
    for text in [" water sang", "re was", *texts]:
        ids = any_tokenizer.encode(text, add_special_tokens=False)
        stream = IncrementalDetokenizer(any_tokenizer, prompt_ids=prompt)
        increments = "".join(stream.push([i]) for i in ids) + stream.finish()
        assert increments == any_tokenizer.decode(prompt + ids)[len(before) :]


def test_first_words_keep_their_space_only_after_a_prompt(
    sentencepiece: Tokenizer, unigram: Tokenizer
) -> None:
    for tokenizer in (sentencepiece, unigram):
        ids = tokenizer.encode("mill", add_special_tokens=False)
        assert IncrementalDetokenizer(tokenizer).push(ids) == "mill"
        assert IncrementalDetokenizer(tokenizer, prompt_ids=tokenizer.encode("the")).push(ids) == " mill"
    # A prompt of special tokens alone shows no text, unless it is asked to.
    bos = [sentencepiece.bos_id or 0]
    ids = sentencepiece.encode("mill", add_special_tokens=False)
    assert IncrementalDetokenizer(sentencepiece, prompt_ids=bos).push(ids) == "mill"
    assert IncrementalDetokenizer(sentencepiece, False, prompt_ids=bos).push(ids) == " mill"


def test_characters_are_never_split(byte_level: Tokenizer) -> None:
    family = "👨‍👩‍👧"
    raw = family.encode()
    ids = [byte_level._backend.token_to_id(chr(_letter(b))) for b in raw]
    stream = IncrementalDetokenizer(byte_level)
    increments = [stream.push([i]) for i in ids]
    assert [piece for piece in increments if piece] == list(family)
    assert increments[:4] == ["", "", "", "👨"]


def test_invalid_bytes_are_shown_once_certain(byte_level: Tokenizer) -> None:
    ids = [byte_level._backend.token_to_id(chr(_letter(b))) for b in b"\xe2\x82A\xffB\xf0\x9f"]
    stream = IncrementalDetokenizer(byte_level)
    assert [stream.push([i]) for i in ids] == ["", "", "\ufffdA", "\ufffd", "B", "", ""]
    assert stream.finish() == "\ufffd"


def test_a_character_that_the_prompt_began_is_completed(byte_level: Tokenizer) -> None:
    ids = [byte_level._backend.token_to_id(chr(_letter(b))) for b in "a🙂".encode()]
    for cut in (2, 3, 4):
        stream = IncrementalDetokenizer(byte_level, prompt_ids=ids[:cut])
        assert stream.push(ids[cut:]) == "🙂"


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens(byte_level: Tokenizer, skip: bool) -> None:
    ids = byte_level.encode("<|user|>mill<|end|>")
    stream = IncrementalDetokenizer(byte_level, skip)
    assert stream.push(ids) + stream.finish() == ("mill" if skip else "<|user|>mill<|end|>")


def test_special_tokens_do_not_break_characters_when_hidden(byte_level: Tokenizer) -> None:
    first, *rest = [byte_level._backend.token_to_id(chr(_letter(b))) for b in "é".encode()]
    assert IncrementalDetokenizer(byte_level).push([first, 1, *rest]) == "é"
    assert IncrementalDetokenizer(byte_level, False).push([first, 1, *rest]) == "\ufffd<|end|>\ufffd"


def test_cost_does_not_grow_with_the_text(any_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each token, so many lines are run and so many ids and bytes decoded."""
    decoded = 0

    def counting(decode: Callable[..., Any], at: int) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal decoded
            decoded += len(args[at])
            return decode(*args, **kwargs)

        return counted

    monkeypatch.setattr(Tokenizer, "decode", counting(Tokenizer.decode, 1))
    monkeypatch.setattr(codecs, "utf_8_decode", counting(codecs.utf_8_decode, 0))
    ids = (any_tokenizer.encode("the wheel turned and the water sang ") * 2000)[:2000]
    stream = IncrementalDetokenizer(any_tokenizer)
    lines = lines_run(lambda: [stream.push([token_id]) for token_id in ids])
    assert lines < 100 * len(ids) and 0 < decoded < 50 * len(ids)
