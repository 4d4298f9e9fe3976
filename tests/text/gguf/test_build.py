"""Tokenizers from GGUF metadata: the same ids as the tokenizer.json that the metadata came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from headrace.errors import RequestError, TokenizerError
from headrace.text.detokenizer import IncrementalDetokenizer
from headrace.text.gguf.build import tokenizer_from_metadata
from headrace.text.tokenizer import Tokenizer
from tests.gguf_vocabularies import metadata_of, read_metadata, texts, write_metadata
from tests.places import TALE

CHAT = "{% for message in messages %}{{ bos_token + message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def tale() -> Iterator[Tokenizer]:
    tokenizer = Tokenizer.from_folder(TALE)
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="module")
def tale_metadata(tale: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """As another package has written them to a file and read them again."""
    metadata = metadata_of(
        tale.to_json(), "gpt-2", bos_token_id=0, eos_token_id=1, padding_token_id=5, add_bos_token=True
    )
    metadata["tokenizer.chat_template"] = tale.chat_template_source()
    path = write_metadata(tmp_path_factory.mktemp("gguf") / "tale.gguf", metadata)
    return read_metadata(path)


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.long)])
def test_ids_are_those_of_the_original(tale: Tokenizer, tale_metadata: dict[str, Any], count: int) -> None:
    tokenizer = tokenizer_from_metadata(tale_metadata)
    special = sorted(tale.structural_tokens)
    found = 0
    for text in texts(count, inserted=special):
        ids = tale.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        found += not tokenizer.special_ids.isdisjoint(ids)
    assert found > count // 20


def test_settings_are_those_of_the_original(tale: Tokenizer, tale_metadata: dict[str, Any]) -> None:
    tokenizer = tokenizer_from_metadata(tale_metadata)
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_ids) == (0, 5, tale.eos_ids)
    assert tokenizer.special_ids == tale.special_ids
    assert tokenizer.vocab_size == tale.vocab_size
    assert tokenizer.encode("a mill") == tale.encode("a mill")
    assert tokenizer.encode_batch(["a mill", ""]) == [tale.encode("a mill"), tale.encode("")]
    chat = [{"role": "user", "content": "Hello"}]
    try:
        assert tokenizer.encode_chat(chat) == tale.encode_chat(chat)
    finally:
        tokenizer.close()
    streamed = IncrementalDetokenizer(tokenizer)
    ids = tale.encode("naïve 👍🏽", add_special_tokens=False)
    assert "".join([*(streamed.push([i]) for i in ids), streamed.finish()]) == "naïve 👍🏽"


def test_half_of_a_surrogate_pair_is_refused(tale_metadata: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"character 1 of the text, U\+D800"):
        tokenizer_from_metadata(tale_metadata).encode("a\ud800")


# ---- Added tokens ----


def with_added_tokens() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(texts(200, seed=9), trainer)
    backend.add_special_tokens(["<|begin|>", "<|end of text|>"])
    backend.add_tokens(
        [AddedToken(text, normalized=False) for text in ("<tool>", "<tool call>", "    ", "磨坊")]
    )
    return backend


def test_added_tokens_inside_of_texts() -> None:
    backend = with_added_tokens()
    begin, end = (backend.token_to_id(text) for text in ("<|begin|>", "<|end of text|>"))
    size = backend.get_vocab_size() + 3
    metadata = metadata_of(backend.to_str(), "gpt-2", size, bos_token_id=begin, eos_token_id=end)
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.vocab_size == size
    assert tokenizer.special_ids == {begin, end}
    inserted = list(backend.get_added_tokens_decoder().values())
    for text in texts(2000, inserted=[token.content for token in inserted]):
        assert tokenizer.encode(text) == backend.encode(text).ids, text
    assert tokenizer.decode(backend.encode("<|begin|>a<tool call>b").ids) == "a<tool call>b"


def test_flags_say_how_texts_begin_and_end() -> None:
    backend = with_added_tokens()
    begin, end = (backend.token_to_id(text) for text in ("<|begin|>", "<|end of text|>"))

    def ids(pre: str, **flags: bool) -> list[int]:
        more = {"bos_token_id": begin, "eos_token_id": end, **flags}
        return tokenizer_from_metadata(metadata_of(backend.to_str(), pre, **more)).encode("a")

    (a,) = backend.encode("a").ids
    assert ids("gpt-2") == [a]
    assert ids("llama-bpe") == [begin, a]
    assert ids("llama-bpe", add_bos_token=False, add_eos_token=True) == [a, end]
    assert ids("gpt-2", add_bos_token=True, add_eos_token=True) == [begin, a, end]


def test_tokens_that_end_a_text() -> None:
    def ends(*added: str, **more: int) -> set[str]:
        backend = with_added_tokens()
        backend.add_special_tokens(list(added))
        tokenizer = tokenizer_from_metadata(
            metadata_of(
                backend.to_str(), "gpt-2", **{key: backend.token_to_id(added[i]) for key, i in more.items()}
            )
        )
        return {tokenizer.token(i) for i in tokenizer.eos_ids}

    assert ends("<|eot_id|>", "<|x|>", "<|y|>", eos_token_id=1, eom_token_id=2) == {
        "<|eot_id|>",
        "<|x|>",
        "<|y|>",
    }
    assert ends("<|im_end|>", "<|endoftext|>", "<|im_start|>") == {"<|im_end|>", "<|endoftext|>"}
    assert ends("<|end|>") == {"<|end|>"}
    assert ends("<|end|>", "<|return|>", "<|call|>") == {"<|return|>", "<|call|>"}
    assert ends() == set()


def test_an_ordinary_token_that_ends_texts_elsewhere_is_text() -> None:
    backend = with_added_tokens()
    metadata = metadata_of(backend.to_str(), "gpt-2")
    metadata["tokenizer.ggml.tokens"][300] = "</s>"
    metadata["tokenizer.ggml.tokens"][301] = "qz"
    metadata["tokenizer.ggml.merges"] = ["q z"]
    assert tokenizer_from_metadata(metadata).eos_ids == frozenset()


def test_a_pad_token_that_is_a_word_stays_a_word() -> None:
    backend = with_added_tokens()
    pad = backend.token_to_id("!")
    tokenizer = tokenizer_from_metadata(metadata_of(backend.to_str(), "gpt-2", padding_token_id=pad))
    assert tokenizer.pad_id == pad and pad not in tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode("a!")) == "a!"
    far = metadata_of(backend.to_str(), "gpt-2", padding_token_id=10**6)
    assert tokenizer_from_metadata(far).pad_id is None


# ---- Templates ----


def test_templates_by_name() -> None:
    backend = with_added_tokens()
    metadata = metadata_of(backend.to_str(), "gpt-2", bos_token_id=backend.token_to_id("<|begin|>"))
    assert not tokenizer_from_metadata(metadata).has_chat_template
    metadata |= {
        "tokenizer.chat_template": CHAT,
        "tokenizer.chat_templates": ["tool_use", "rag"],
        "tokenizer.chat_template.tool_use": "tools: " + CHAT,
    }
    tokenizer = tokenizer_from_metadata(metadata)
    try:
        chat = [{"role": "user", "content": "Hello"}]
        assert tokenizer.apply_chat_template(chat) == "<|begin|>Hello"
        assert tokenizer.apply_chat_template(chat, chat_template="tool_use") == "tools: <|begin|>Hello"
        assert tokenizer.chat_template_source(with_tools=True) == "tools: " + CHAT
    finally:
        tokenizer.close()


# ---- Pre-tokenizers that are not known ----


def test_an_unknown_pre_tokenizer_is_named() -> None:
    metadata = metadata_of(with_added_tokens().to_str(), "brand-new")
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.ggml\.pre of the GGUF file is 'brand-new'.*tokenizer\.json"
    ):
        tokenizer_from_metadata(metadata)
    metadata["tokenizer.ggml.model"] = "rwkv"
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.model of the GGUF file is 'rwkv'"):
        tokenizer_from_metadata(metadata)


def test_the_file_beside_takes_the_place_of_an_unknown_pre_tokenizer(tmp_path: Path) -> None:
    backend = with_added_tokens()
    end = backend.token_to_id("<|end of text|>")
    metadata = metadata_of(backend.to_str(), "brand-new", eos_token_id=end)
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    tokenizer = tokenizer_from_metadata(metadata, tmp_path)
    assert tokenizer.encode("It's 12 <tool> mills") == backend.encode("It's 12 <tool> mills").ids
    assert tokenizer.eos_ids == {end}
    inside = metadata | {"tokenizer.huggingface.json": backend.to_str()}
    assert tokenizer_from_metadata(inside).encode("It's 12") == backend.encode("It's 12").ids


def test_the_file_of_another_model_is_refused(tmp_path: Path) -> None:
    metadata = metadata_of(with_added_tokens().to_str(), "brand-new")
    (tmp_path / "tokenizer.json").write_bytes((TALE / "tokenizer.json").read_bytes())
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json beside it belongs to another model.*<\|begin\|>"
    ):
        tokenizer_from_metadata(metadata, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json beside it cannot be used"):
        tokenizer_from_metadata(metadata, tmp_path)


def test_a_known_pre_tokenizer_needs_no_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    assert (
        tokenizer_from_metadata(metadata_of(with_added_tokens().to_str(), "gpt-2"), tmp_path).vocab_size > 300
    )


def test_json_of_the_tokenizer_can_be_read_again() -> None:
    tokenizer = tokenizer_from_metadata(metadata_of(with_added_tokens().to_str(), "qwen2"))
    again = Backend.from_str(tokenizer.to_json())
    assert json.loads(tokenizer.to_json())["normalizer"] == {"type": "NFC"}
    for text in texts(50):
        assert again.encode(text).ids == tokenizer.encode(text)
