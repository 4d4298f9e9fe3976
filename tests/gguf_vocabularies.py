"""Tokenizers as GGUF metadata: from a tokenizer.json as llama.cpp's converter does it, written and read by `gguf`."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from tests import needs

PREFIX = "tokenizer.ggml."

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def metadata_of(tokenizer_json: str, pre: str, size: int | None = None, **more: Any) -> dict[str, Any]:
    """A byte-pair tokenizer.json as keys and values. `size`: rows of the embedding; `more`: keys without prefix."""
    data = json.loads(tokenizer_json)
    ids: dict[str, int] = dict(data["model"]["vocab"])
    added = {token["content"]: token for token in data["added_tokens"]}
    ids |= {text: token["id"] for text, token in added.items()}
    texts = {i: text for text, i in ids.items()}
    tokens, types = [], []
    for i in range(size or max(texts) + 1):
        text = texts.get(i)
        if text is None:
            tokens.append(f"[PAD{i}]")
            types.append(UNUSED)
        elif text in added:
            tokens.append(text)
            types.append(CONTROL if added[text]["special"] else USER_DEFINED)
        else:
            tokens.append(text)
            types.append(NORMAL)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in data["model"]["merges"]],
        **{PREFIX + key: value for key, value in more.items()},
    }


def write_metadata(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file with these keys and no tensors, which llama.cpp loads with `vocab_only`."""
    gguf = needs.package("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys and values of a GGUF file, by the `gguf` package."""
    gguf = needs.package("gguf")
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def scored(
    pieces: Sequence[tuple[str, float, int]], model: str = "llama", charsmap: bytes = b"", **more: Any
) -> dict[str, Any]:
    """Keys and values for pieces with scores and types."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [text for text, _, _ in pieces],
        "tokenizer.ggml.scores": [float(score) for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [kind for _, _, kind in pieces],
        **{PREFIX + key: value for key, value in more.items()},
    }
    if charsmap:
        metadata["tokenizer.ggml.precompiled_charsmap"] = charsmap
    return metadata


# ---- Texts ----

SAMPLE = (
    "the wheel of a mill turned once upon It's I'LL we've don't DON'T x=1; def mill(x): return x*2 // 3.14159 "
    "2024-11-23 12345678 camelCase HTTPServer snake_case naïve Füchse fraßen süße Äpfel garçon niño Жил был мельник "
    "Ήταν μυλωνάς 从前有一座磨坊 水流过水车 昔々 水車小屋がありました 방앗간이 있었다 טחנה طحان चक्की थी ไทย ខ្មែរ "
    "👍🏽 👨‍👩‍👧 🏳️‍🌈 ½ Ⅷ ² ٣٤٥ {\"key\": [1, null]} <div class='a'> C:\\path #include --flag $HOME a+b~c^d`e`|f "
    "_x_ 「引用」 …—“quoted” e\u0301 \u00a0 \u3000"
)
_WORDS = SAMPLE.split(" ")
_GAPS = (" ", " ", " ", "", "  ", "\n", "\n\n", "\t", "    ", "\r\n", " \n ", "   \n")


def texts(count: int, seed: int = 0, inserted: Sequence[str] = (), exclude: str = "") -> list[str]:
    """Random texts: words of many scripts, code, digits, runs of spaces, any Unicode; `inserted` ones among them."""
    rng = random.Random(seed)
    drop = dict.fromkeys(map(ord, exclude))
    return [_text(rng, inserted).translate(drop) for _ in range(count)]


def _text(rng: random.Random, inserted: Sequence[str]) -> str:
    parts = []
    for _ in range(rng.randrange(1, 12)):
        kind = rng.random()
        if kind < 0.55:
            parts.append(rng.choice(_WORDS))
        elif kind < 0.65:
            parts.append(str(rng.randrange(10 ** rng.randrange(1, 14))))
        elif kind < 0.75:
            parts.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 10))))
        elif kind < 0.85:
            parts.append("".join(_any_character(rng) for _ in range(rng.randrange(1, 8))))
        elif kind < 0.93 or not inserted:
            parts.append(rng.choice("aAbn=-_* \n.é字👍") * rng.randrange(1, 20))
        else:
            parts.append(rng.choice(inserted))
        parts.append(rng.choice(_GAPS))
    return "".join(parts)


def _any_character(rng: random.Random) -> str:
    top = rng.choice((0x80, 0x250, 0x3000, 0xFFFF, 0x1FFFF, 0x10FFFF))
    while 0xD800 <= (code := rng.randrange(1, top)) <= 0xDFFF:
        pass
    return chr(code)


def across_words() -> Backend:
    """A byte-pair vocabulary with merges across spaces, digits and punctuation: wrong splits show in the ids."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r"[\s\S]{1,24}"), "isolated"
            ),  # short pieces, so that training is quick
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts(1000, seed=7), trainer)
    return backend


def marked_spaces() -> dict[str, Any]:
    """Keys and values for a byte-pair vocabulary as in Gemma 4: UTF-8, ▁ for spaces, <0xNN> for rare characters."""
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("[^\n]{1,24}|\n"), "isolated")
    trainer = trainers.BpeTrainer(vocab_size=1200, limit_alphabet=300, show_progress=False)
    backend.train_from_iterator(texts(1000, seed=8), trainer)
    model = json.loads(backend.to_str())["model"]
    control = ["<pad>", "<eos>", "<bos>", "<unk>"]
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    learnt = sorted(model["vocab"], key=lambda text: int(model["vocab"][text]))
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": [*control, *spelled, *learnt],
        "tokenizer.ggml.token_type": [CONTROL] * 4 + [BYTE] * 256 + [NORMAL] * len(learnt),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
    }
