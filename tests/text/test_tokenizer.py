from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, processors

from headrace.errors import RequestError, TokenizerError
from headrace.text import tokenizer as tokenizer_module
from headrace.text import tokenizer_files
from headrace.text.tokenizer import Tokenizer

Backends = dict[str, Callable[[], Backend]]
FolderOf = Callable[..., Path]

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


# ---- Ids and text ----


def test_round_trip(byte_level: Tokenizer, sentencepiece: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        assert byte_level.decode(byte_level.encode(text)) == text
        assert sentencepiece.decode(sentencepiece.encode(text)) == text


@given(UNICODE)
def test_round_trip_of_any_text(byte_level: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text), skip_special_tokens=False) == text
    ids = sentencepiece.encode(text, add_special_tokens=False)
    assert sentencepiece.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("skip", [True, False])
def test_decode_is_that_of_the_tokenizers_library(
    any_tokenizer: Tokenizer, backends: Backends, texts: list[str], skip: bool
) -> None:
    backend = any_tokenizer._backend
    for text in texts:
        ids = any_tokenizer.encode(text)
        assert any_tokenizer.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)


@given(st.data())
def test_decode_of_any_ids_is_that_of_the_tokenizers_library(
    byte_level: Tokenizer, sentencepiece: Tokenizer, unigram: Tokenizer, data: st.DataObject
) -> None:
    tokenizer = data.draw(st.sampled_from([byte_level, sentencepiece, unigram]))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=12))
    for skip in (True, False):
        theirs = tokenizer._backend.decode(ids, skip_special_tokens=skip)
        ours = tokenizer.decode(ids, skip)
        # The library replaces every byte of a run of byte tokens that holds one invalid byte; we only that part.
        if tokenizer is not sentencepiece or "\ufffd" not in theirs:
            assert ours == theirs


def test_every_token_of_the_vocabulary_decodes_as_in_the_library(any_tokenizer: Tokenizer) -> None:
    for token_id in range(any_tokenizer.vocab_size):
        theirs = any_tokenizer._backend.decode([token_id], skip_special_tokens=False)
        assert any_tokenizer.decode([token_id], skip_special_tokens=False) == theirs


def test_encode_batch_and_special_tokens(sentencepiece: Tokenizer) -> None:
    rows = sentencepiece.encode_batch(["a mill", "", "the wheel"])
    assert rows == [sentencepiece.encode(text) for text in ("a mill", "", "the wheel")]
    assert all(row[0] == sentencepiece.bos_id for row in rows)
    assert sentencepiece.encode("a mill", add_special_tokens=False) == rows[0][1:]
    assert sentencepiece.encode_batch([]) == []


def test_lone_surrogates_and_other_types_are_refused(any_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"character 3 of the text, U\+D83D"):
        any_tokenizer.encode("abc\ud83d")
    with pytest.raises(RequestError, match="not a string"):
        any_tokenizer.encode(b"abc")  # type: ignore[arg-type]


def test_ids_without_a_token_decode_to_nothing(any_tokenizer: Tokenizer) -> None:
    odd = [-1, any_tokenizer.vocab_size, 2**31, 2**40, -(2**70)]
    ids = any_tokenizer.encode("the wheel")
    assert any_tokenizer.decode([*odd, *ids, *odd]) == any_tokenizer.decode(ids)
    assert [any_tokenizer.token(i) for i in odd] == [""] * 5
    assert [any_tokenizer.token_bytes(i) for i in odd] == [b""] * 5


def test_panics_of_the_backend_become_errors() -> None:
    panic = type("PanicException", (BaseException,), {})
    with (
        pytest.raises(RequestError, match=r"what: no\."),
        tokenizer_module.native_errors(RequestError, "what"),
    ):
        raise panic("no")
    with pytest.raises(KeyboardInterrupt), tokenizer_module.native_errors(RequestError, "what"):
        raise KeyboardInterrupt


# ---- Bytes ----


def test_bytes_of_byte_level_tokens(byte_level: Tokenizer) -> None:
    assert sorted(byte_level.token_bytes(byte_level.encode(chr(0x20))[0])) == [0x20]
    single = {byte_level.token_bytes(i) for i in range(byte_level.vocab_size)}
    assert all(bytes([byte]) in single for byte in range(256))
    assert byte_level.token_bytes(byte_level.bos_id or 0) == b"<|begin|>"
    assert b"<tool call>" in single
    assert "ｗｉｄｅ｜token".encode() in single


def test_bytes_of_sentencepiece_tokens(sentencepiece: Tokenizer) -> None:
    ids = {sentencepiece.token(i): i for i in range(sentencepiece.vocab_size)}
    assert sentencepiece.token_bytes(ids["<0xE2>"]) == b"\xe2"
    assert sentencepiece.token_bytes(ids["▁mill"]) == b" mill"


def test_joined_bytes_are_the_text(any_tokenizer: Tokenizer) -> None:
    text = "the wheel turned, the water sang"
    first, *rest = any_tokenizer.encode(text, add_special_tokens=False)
    joined = any_tokenizer.decode([first]).encode() + b"".join(map(any_tokenizer.token_bytes, rest))
    assert joined.decode() == any_tokenizer.decode([first, *rest])


# ---- Folders ----


def test_special_tokens_from_the_configuration(folder_of: FolderOf, backends: Backends) -> None:
    config = {
        "bos_token": {"content": "<|begin|>", "lstrip": False},
        "eos_token": "<|end|>",
        "pad_token": None,
        "additional_special_tokens": ["<tool call>", "not in the vocabulary"],
    }
    folder = folder_of(backends["byte_level"](), config)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2, -1], "pad_token_id": 0}')
    (folder / "config.json").write_text('{"eos_token_id": 7, "bos_token_id": 9}')
    tokenizer = Tokenizer.from_folder(folder)
    assert (tokenizer.bos_id, tokenizer.pad_id) == (0, None)
    assert tokenizer.eos_ids == {1, 2}
    call = tokenizer.encode("<tool call>")
    assert len(call) == 1 and call[0] in tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode("a<tool call>b")) == "ab"
    assert tokenizer.decode(tokenizer.encode("not in the vocabulary")) == "not in the vocabulary"


def test_special_tokens_from_other_files(folder_of: FolderOf, backends: Backends) -> None:
    folder = folder_of(backends["byte_level"]())
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|user|>"}}')
    (folder / "config.json").write_text('{"text_config": {"eos_token_id": 1}, "bos_token_id": 0}')
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.bos_id == 0
    assert tokenizer.eos_ids == {1, 2}
    assert tokenizer.special_ids == {0, 1, 2}


def test_added_tokens_decoder_marks_special(folder_of: FolderOf, backends: Backends) -> None:
    plain = Tokenizer.from_folder(folder_of(backends["byte_level"](), {}))
    call = plain.encode("<tool call>")[0]
    assert call not in plain.special_ids
    added = {str(call): {"content": "<tool call>", "special": True}}
    marked = Tokenizer.from_folder(folder_of(backends["byte_level"](), {"added_tokens_decoder": added}))
    assert call in marked.special_ids


def test_bos_asked_for_only_in_the_configuration(folder_of: FolderOf, backends: Backends) -> None:
    config = {"bos_token": "<|begin|>", "add_bos_token": True}
    tokenizer = Tokenizer.from_folder(folder_of(backends["byte_level"](), config))
    assert tokenizer.encode("a")[0] == tokenizer.bos_id
    assert tokenizer.encode("a", add_special_tokens=False)[0] != tokenizer.bos_id
    backend = backends["byte_level"]()
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    assert Tokenizer.from_folder(folder_of(backend, config)).encode("a").count(0) == 1


def test_truncation_and_padding_of_the_file_are_ignored(folder_of: FolderOf, backends: Backends) -> None:
    backend = backends["byte_level"]()
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    assert len(Tokenizer.from_folder(folder_of(backend)).encode("x" * 20)) == 20


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", b'{"model": ', "tokenizer.json cannot be used"),
        ("tokenizer.json", b"[]", "tokenizer.json cannot be used"),
        ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "no vocabulary"),
        (
            "tokenizer.json",
            b'{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["x y"]}}',
            "cannot be used",
        ),
        ("tokenizer_config.json", b"{", "tokenizer_config.json is damaged"),
        ("tokenizer_config.json", b"[" * 100_000, "tokenizer_config.json is damaged"),
        ("tokenizer_config.json", b"[]", "does not hold a JSON object"),
        ("tokenizer_config.json", b'{"bos_token": 5}', "bos_token"),
        ("tokenizer_config.json", b'{"additional_special_tokens": 5}', "additional_special_tokens"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "chat_template"),
        ("generation_config.json", b'{"eos_token_id": "</s>"}', "eos_token_id"),
        ("generation_config.json", b'{"eos_token_id": [true]}', "eos_token_id"),
        ("config.json", json.dumps({"eos_token_id": [1] * 257}).encode(), "eos_token_id"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja is not UTF-8"),
    ],
)
def test_damaged_folders(
    folder_of: FolderOf, backends: Backends, name: str, content: bytes | None, message: str
) -> None:
    folder = folder_of(backends["byte_level"](), {})
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_folder(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_files_are_read_up_to_a_limit(
    folder_of: FolderOf, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(backends["byte_level"](), {})
    monkeypatch.setattr(tokenizer_module, "MAX_TOKENIZER_BYTES", 1000)
    with pytest.raises(TokenizerError, match="larger than 1000 bytes"):
        Tokenizer.from_folder(folder)
    monkeypatch.setattr(tokenizer_files, "MAX_CONFIG_BYTES", 1)
    with pytest.raises(TokenizerError, match=r"tokenizer_config.json is larger"):
        Tokenizer.from_folder(folder)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"has no tokenizer.json: copy it .* with --tokenizer$"):
        Tokenizer.from_folder(tmp_path / "nowhere")


def test_a_tokenizer_of_an_older_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(TokenizerError, match=r"no tokenizer.json, only tokenizer.model: convert it once"):
        Tokenizer.from_folder(tmp_path)


def test_largest_id_counts_where_ids_have_gaps(folder_of: FolderOf) -> None:
    backend = Backend(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))
    backend.add_tokens(["c"])
    tokenizer = Tokenizer.from_folder(folder_of(backend))
    assert tokenizer.token(tokenizer.vocab_size - 1)


# ---- Chat ----

CHATML = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"
MESSAGES = [{"role": "user", "content": "mill"}]


def test_chat_template_of_the_configuration(folder_of: FolderOf, backends: Backends) -> None:
    config = {"chat_template": "{{ bos_token }}" + CHATML, "bos_token": "<|begin|>", "add_bos_token": True}
    tokenizer = Tokenizer.from_folder(folder_of(backends["byte_level"](), config))
    assert tokenizer.has_chat_template
    assert tokenizer.apply_chat_template(MESSAGES) == "<|begin|><|user|>mill<|end|>"
    ids = tokenizer.encode_chat(MESSAGES)
    assert ids.count(0) == 1 and tokenizer.decode(ids, False) == "<|begin|><|user|>mill<|end|>"


def test_chat_templates_by_name(folder_of: FolderOf, backends: Backends) -> None:
    config = {
        "chat_template": [
            {"name": "default", "template": "default"},
            {"name": "tool_use", "template": "tools {{ tools|length }}"},
        ]
    }
    tokenizer = Tokenizer.from_folder(folder_of(backends["byte_level"](), config))
    assert tokenizer.apply_chat_template(MESSAGES) == "default"
    assert tokenizer.apply_chat_template(MESSAGES, tools=[]) == "default"
    assert tokenizer.apply_chat_template(MESSAGES, tools=[{"name": "f"}]) == "tools 1"
    assert tokenizer.apply_chat_template(MESSAGES, chat_template="tool_use", tools=[{}, {}]) == "tools 2"
    assert tokenizer.apply_chat_template(MESSAGES, chat_template="own {{ x }}", x=[1]) == "own [1]"
    with pytest.raises(RequestError, match="damaged"):
        tokenizer.apply_chat_template(MESSAGES, chat_template="{{")


def test_chat_template_files(folder_of: FolderOf, backends: Backends) -> None:
    folder = folder_of(backends["byte_level"](), {"chat_template": "old"})
    (folder / "chat_template.jinja").write_text("new")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("rag {{ documents[0] }}")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.apply_chat_template(MESSAGES) == "new"
    assert tokenizer.apply_chat_template(MESSAGES, chat_template="rag", documents=["d"]) == "rag d"
    bare = folder_of(backends["byte_level"](), {})
    (bare / "chat_template.jinja").unlink()
    (bare / "chat_template.json").write_text('{"chat_template": "processor"}')
    assert Tokenizer.from_folder(bare).apply_chat_template(MESSAGES) == "processor"


def test_without_a_chat_template(wordpiece: Tokenizer) -> None:
    assert not wordpiece.has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        wordpiece.encode_chat(MESSAGES)


def test_a_damaged_template_fails_only_chats(folder_of: FolderOf, backends: Backends) -> None:
    tokenizer = Tokenizer.from_folder(folder_of(backends["byte_level"](), {"chat_template": "{% if"}))
    assert tokenizer.encode("fine")
    with pytest.raises(TokenizerError, match="damaged"):
        tokenizer.encode_chat(MESSAGES)


def test_a_surrogate_in_a_chat_is_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        byte_level.encode_chat([{"role": "user", "content": "\ud800"}], chat_template=CHATML)


def test_variables_may_have_any_name(byte_level: Tokenizer) -> None:
    names = [
        "self",
        "context",
        "environment",
        "limits",
        "source",
        "range",
        "namespace",
        "class",
        "a b",
        "",
        "tools_",
    ]
    variables = {name: 1 for name in names}
    assert (
        byte_level.apply_chat_template(MESSAGES, chat_template="{{ range }}{{ context }}", **variables)
        == "11"
    )
    assert byte_level.encode_chat(MESSAGES, chat_template="ok", **variables)
