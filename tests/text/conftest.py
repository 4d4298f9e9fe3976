"""Real tokenizers of every kind, trained on a few lines so that they cost nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from headrace.text.tokenizer import Tokenizer

LINES = [
    "Once upon a time there was a small mill by the river, and the miller was happy.",
    "The wheel turned; the water sang, 12 times and 345 more! It's the miller's wheel.",
    "Füchse fraßen süße Äpfel. Où est le garçon naïf? Él niño comió piñas.",
    "Жил-был мельник у реки. Ήταν ένας μυλωνάς.",
    "从前有一座磨坊。水流过水车。昔々、水車小屋がありました。",
    "כאן היה טחנה. كان هناك طحان. एक चक्की थी।",
    "    def mill(x):\n        return x * 2\n\n\tprint(mill(21))",
]

TEXTS = [
    "",
    " ",
    "Once upon a time",
    "  two spaces,  and\n\nnew lines\t\ttabs  ",
    "naïve café, Ünïcödé",
    "e\u0301 a\u0308 क्षि",
    "从前有一座磨坊，鹰和龙。",
    "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪",
    "כאן היה טחנה كان هناك طحان",
    "zero\u200bwidth\u200dand\ufeffbom",
    "\x00\x01\x7f control",
    "real � replacement \ufffd\ufffd",
    "𝔪𝔞𝔱𝔥 \U0010ffff",
]

SPECIALS = ["<|begin|>", "<|end|>", "<|user|>"]


def _write_folder(folder: Path, backend: Backend, config: dict[str, object] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def byte_level_backend() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(LINES, trainer)
    backend.add_tokens(["<tool call>", "ｗｉｄｅ｜token"])  # neither special nor in the byte alphabet
    return backend


def sentencepiece_backend() -> Backend:
    """As converted from SentencePiece BPE: spaces are ▁, the text gets one in front, rare bytes are <0xNN>."""
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("▁*[^▁]+"), "isolated")
    trained.train_from_iterator(LINES[:3], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    learnt = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"]]
    backend = Backend(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[tuple(pair) for pair in learnt["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def unigram_backend() -> Backend:
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=220, special_tokens=["<unk>", *SPECIALS], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


def wordpiece_backend() -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=250, special_tokens=["[UNK]", AddedToken("[SEP]", special=True)], show_progress=False
    )
    backend.train_from_iterator(LINES, trainer)
    return backend


BACKENDS: dict[str, Callable[[], Backend]] = {
    "byte_level": byte_level_backend,
    "sentencepiece": sentencepiece_backend,
    "unigram": unigram_backend,
    "wordpiece": wordpiece_backend,
}


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def backends() -> dict[str, Callable[[], Backend]]:
    return BACKENDS


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., Path]:
    """folder_of(backend, config): a folder with tokenizer.json and, unless None, tokenizer_config.json."""
    return partial(_write_folder, tmp_path / "model")


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}}
    return Tokenizer.from_folder(_write_folder(tmp_path_factory.mktemp("bl"), byte_level_backend(), config))


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return Tokenizer.from_folder(
        _write_folder(tmp_path_factory.mktemp("sp"), sentencepiece_backend(), config)
    )


@pytest.fixture(scope="session")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(_write_folder(tmp_path_factory.mktemp("uni"), unigram_backend(), {}))


@pytest.fixture(scope="session")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(_write_folder(tmp_path_factory.mktemp("wp"), wordpiece_backend(), {}))


@pytest.fixture(params=list(BACKENDS), scope="session")
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer
