"""The tokenizer of a GGUF file, and what comes from the folder that it lies in."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import CheckpointError, ConfigError, TokenizerError
from headrace.gguf.files import GGUFModel
from headrace.text.gguf.build import tokenizer_from_metadata
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_listing import tokenizer_rows
from headrace.text.tokenizer_source import check_same_tokens, open_settings, open_tokenizer
from tests.gguf_vocabularies import NORMAL, metadata_of, scored, texts, write_metadata
from tests.places import TALE
from tests.text.gguf.test_sentencepiece import BYTES, META


def tale_metadata(pre: str = "gpt-2") -> dict[str, Any]:
    tale = Tokenizer.from_folder(TALE)
    metadata = metadata_of(tale.to_json(), pre, bos_token_id=0, eos_token_id=1, add_bos_token=True)
    return metadata | {"tokenizer.chat_template": tale.chat_template_source()}


def test_the_tokenizer_of_a_file(tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "m.gguf", tale_metadata())
    tale, ours = Tokenizer.from_folder(TALE), open_tokenizer(str(path))
    for text in texts(300):
        assert ours.encode(text) == tale.encode(text)
    settings = open_settings(path)
    assert settings.chat_templates == open_settings(TALE).chat_templates
    assert settings.tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


def test_a_file_without_a_vocabulary_uses_the_tokenizer_beside_it(tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "m.gguf", {"tokenizer.ggml.model": "no_vocab"})
    with pytest.raises(TokenizerError, match="no vocabulary"):
        open_tokenizer(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((TALE / name).read_bytes())
    assert open_tokenizer(path).encode("a mill") == Tokenizer.from_folder(TALE).encode("a mill")
    assert "default" in open_settings(path).chat_templates


def test_an_unknown_pre_tokenizer_uses_the_tokenizer_beside_it(tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "m.gguf", tale_metadata("brand-new"))
    with pytest.raises(TokenizerError, match="brand-new"):
        open_tokenizer(path)
    (tmp_path / "tokenizer.json").write_bytes((TALE / "tokenizer.json").read_bytes())
    tokenizer = open_tokenizer(path)
    assert tokenizer.encode("a mill") == Tokenizer.from_folder(TALE).encode("a mill")
    assert tokenizer.source == "the tokenizer.json beside it"


def test_rows_for_people(tmp_path: Path) -> None:
    rows = dict(tokenizer_rows(open_tokenizer(write_metadata(tmp_path / "m.gguf", tale_metadata()))))
    assert rows["source"] == "GGUF metadata: 'gpt2', pre-tokenizer 'gpt-2'"
    assert rows["special tokens"] == "bos '<|begin|>' (0), eos '<|end|>' (1)"
    assert rows["chat template"] == "default"
    assert dict(tokenizer_rows(Tokenizer.from_folder(TALE)))["source"] == "tokenizer.json"


# ---- Damaged files ----


def with_pieces() -> dict[str, Any]:
    pieces = [*META, *BYTES, ("▁a", -1.0, NORMAL), ("▁", -2.0, NORMAL)]
    return scored(pieces, bos_token_id=1, eos_token_id=2) | {"tokenizer.chat_template": "{{ messages }}"}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_damaged_files_give_a_tokenizer_or_a_typed_error(seed: int, tmp_path: Path) -> None:
    """Bytes of the tokenizer's metadata are changed, lengths and counts among them; 10,000 files in the long run."""
    rng = random.Random(seed)
    path = tmp_path / "m.gguf"
    small = metadata_of(Tokenizer.from_folder(TALE).to_json(), "gpt-2", bos_token_id=0, eos_token_id=1)
    small["tokenizer.ggml.merges"] = small["tokenizer.ggml.merges"][:50]
    files = [write_metadata(path, metadata).read_bytes() for metadata in (small, with_pieces())]
    outcomes = dict.fromkeys(("built", "refused"), 0)
    tracemalloc.start()
    try:
        for _ in range(150 if seed == 1 else 1000):
            data = bytearray(rng.choice(files))
            for _ in range(rng.randrange(1, 6)):
                at = rng.randrange(24, len(data))
                length = rng.choice((1, 1, 1, 4, 8))
                data[at : at + length] = rng.choice((rng.randbytes(length), bytes(length), b"\xff" * length))
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try:
                tokenizer = tokenizer_from_metadata(GGUFModel(path).metadata)
                tokenizer.decode(tokenizer.encode("a mill é"))
                outcomes["built"] += 1
            except (CheckpointError, TokenizerError) as error:
                outcomes["refused"] += 1
                assert len(str(error)) < 1000 and "\n" not in str(error)
            assert tracemalloc.get_traced_memory()[1] - before < 64 * len(data) + 2**20
    finally:
        tracemalloc.stop()
    assert min(outcomes.values()) > 5, outcomes


def test_a_model_with_other_tokens_cannot_draft(tmp_path: Path) -> None:
    tale = Tokenizer.from_folder(TALE)
    check_same_tokens(tale, TALE, "same")
    config = json.loads((TALE / "tokenizer.json").read_text())
    words = [word for word, number in config["model"]["vocab"].items() if number >= 300]
    for changed in (2, len(words)):  # a few tokens of its own do no harm
        numbers = [config["model"]["vocab"][word] for word in words[:changed]]
        other = config["model"] | {
            "vocab": config["model"]["vocab"] | dict(zip(words, reversed(numbers), strict=False))
        }
        (tmp_path / "tokenizer.json").write_text(json.dumps(config | {"model": other}))
        if changed == 2:
            check_same_tokens(tale, tmp_path, "small")
            continue
        with pytest.raises(
            ConfigError, match=r"small cannot draft for this model: its token .* is another one here"
        ):
            check_same_tokens(tale, tmp_path, "small")


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_a_model_whose_tokens_are_not_known_cannot_draft(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"its tokens are not known.* copy the model's tokenizer\.json into"
    ) as error:
        check_same_tokens(Tokenizer.from_folder(TALE), tmp_path, "small")
    assert "--tokenizer" not in str(error.value)
