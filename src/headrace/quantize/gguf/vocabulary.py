"""The tokenizer of a folder as GGUF metadata, checked with the reader: both must give the same tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from headrace.errors import TokenizerError, UnsupportedModel
from headrace.gguf.writer import Value
from headrace.text.gguf.build import settings_from_metadata, tokenizer_from_metadata
from headrace.text.gguf.pretokenizers import PRE_TOKENIZERS
from headrace.text.gguf.vocabulary import TokenType
from headrace.text.tokenizer import Tokenizer
from headrace.text.tokenizer_files import MAX_TOKENIZER_BYTES, read_text, read_tokenizer_files

_PROBE = (
    "Hello World! It's 12345678 o'clock, we'LL see; they've 3.14 <tags> {x: [1]}\n\n\n  def f(a_b):\n\treturn a+b"
    "  # ok?!\r\n   Größe naïve CAFÉ déjà-vu ΑΒγ Привет, мир! 你好，世界。 こんにちは カタカナ 한국어 שלום مرحبا "
    "🙂🙃 e\u0301 iPhone XMLHttp snake_case CamelCase v1.2.3-rc4 1,000 5% a@b.co https://x.yz/q?a=1&b=2  \t  end   "
)
"""Text on which pre-tokenizers differ: digits, cases, contractions, spaces, scripts."""

_PREFERRED = (
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "tekken",
    "gpt-4o",
    "deepseek-llm",
    "smollm",
    "starcoder",
    "olmo",
)


def vocabulary_metadata(folder: Path, size: int) -> dict[str, Value]:
    """`tokenizer.*` for the tokenizer.json of a folder, with `size` tokens; empty where the folder has none.

    Raises UnsupportedModel for a tokenizer that GGUF cannot say, and TokenizerError for a damaged one.
    """
    if not (folder / "tokenizer.json").is_file():
        return {}
    original = Tokenizer.from_folder(folder)
    whole = json.loads(read_text(folder / "tokenizer.json", MAX_TOKENIZER_BYTES) or "{}")
    model = whole.get("model") or {}
    if model.get("type") != "BPE":
        raise UnsupportedModel(
            f"the tokenizer of {folder} is of type {model.get('type')!r:.40}; GGUF files are written for BPE"
        )
    pieces = bool(model.get("byte_fallback"))
    found = _tokens(whole, size, pieces) | _ends(original)
    if pieces:
        candidates = [
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": flag}
            for flag in (True, False)
        ]
    else:
        found["tokenizer.ggml.merges"] = [" ".join(pair) for pair in _merges(model)]
        names = [*_PREFERRED, *(name for name in PRE_TOKENIZERS if name not in _PREFERRED)]
        candidates = [
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name}
            for name in names
            if _splits_alike(whole, name)
        ]
    for one in candidates:
        metadata: dict[str, Value] = {**one, **found}
        if _agree(metadata, original):
            metadata |= _last_end(metadata, original, folder)
            return metadata | _templates(read_tokenizer_files(folder).chat_templates)
    raise UnsupportedModel(
        f"no pre-tokenizer that GGUF files name gives the same tokens as the tokenizer of {folder}: --format "
        "compressed-tensors keeps tokenizer.json as it is"
    )


def _tokens(whole: Mapping[str, Any], size: int, pieces: bool) -> dict[str, Value]:
    model, added = whole["model"], whole.get("added_tokens") or []
    texts = {number: text for text, number in model["vocab"].items()}
    texts |= {token["id"]: token["content"] for token in added}
    kinds = {number: TokenType.NORMAL for number in texts}
    if pieces:
        kinds |= {number: TokenType.BYTE for number, text in texts.items() if _is_byte(text)}
        if model.get("unk_token") in model["vocab"]:
            kinds[model["vocab"][model["unk_token"]]] = TokenType.UNKNOWN
    kinds |= {
        token["id"]: TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED
        for token in added
        if kinds[token["id"]] != TokenType.UNKNOWN
    }
    found: dict[str, Value] = {
        "tokenizer.ggml.tokens": [texts.get(number, f"[PAD{number}]") for number in range(size)],
        "tokenizer.ggml.token_type": [int(kinds.get(number, TokenType.UNUSED)) for number in range(size)],
    }
    if pieces:
        ranks: dict[str, int] = {}
        for rank, pair in enumerate(_merges(model)):
            ranks.setdefault("".join(pair), rank)
        last = float(len(ranks) + 1)
        found["tokenizer.ggml.scores"] = [-float(ranks.get(texts.get(at, ""), last)) for at in range(size)]
    return found


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Older files have a pair as one text."""
    pairs = (one.split(" ", 1) if isinstance(one, str) else one for one in model.get("merges") or ())
    return [(first, second) for first, second in pairs]


def _ends(original: Tokenizer) -> dict[str, Value]:
    found: dict[str, Value] = {}
    others = sorted(original.eos_ids - {original.eos_id})
    end = original.eos_id if original.eos_id is not None or not others else others.pop(0)
    ids = {
        "bos": original.bos_id,
        "eos": end,
        "padding": original.pad_id,
        "eot": others[0] if others else None,
    }
    for name, number in ids.items():
        if number is not None:
            found[f"tokenizer.ggml.{name}_token_id"] = number
    empty = original.encode("")
    found["tokenizer.ggml.add_bos_token"] = bool(empty) and empty[0] == original.bos_id
    found["tokenizer.ggml.add_eos_token"] = bool(empty) and empty[-1] == original.eos_id
    return found


def _last_end(metadata: Mapping[str, Value], original: Tokenizer, folder: Path) -> dict[str, Value]:
    """The key of a token that ends a text and that readers do not know by the others or by its text. Raises
    UnsupportedModel for more than one."""
    missing = sorted(original.eos_ids - settings_from_metadata(metadata).eos_ids)
    if len(missing) > 1:
        shown = ", ".join(map(str, missing[:8]))
        raise UnsupportedModel(
            f"GGUF files name three tokens that end a text, and the model in {folder} has tokens {shown} besides two "
            "others: --format compressed-tensors keeps its configs as they are"
        )
    return {"tokenizer.ggml.eom_token_id": missing[0]} if missing else {}


def _splits_alike(whole: Mapping[str, Any], name: str) -> bool:
    """Whether a text is split as the folder's tokenizer splits it; quick, because no vocabulary is built."""
    own, other = (
        tokenizers.Tokenizer.from_str(
            json.dumps({**whole, "model": _EMPTY, "added_tokens": [], "post_processor": None})
        ),
        PRE_TOKENIZERS[name],
    )
    splits, normalizer = other.pre_tokenizer(), other.normalizer()
    if not other.byte_level or splits is None or own.pre_tokenizer is None:
        return False
    ours = own.normalizer.normalize_str(_PROBE) if own.normalizer else _PROBE
    theirs = normalizer.normalize_str(_PROBE) if normalizer else _PROBE
    return [text for text, _ in own.pre_tokenizer.pre_tokenize_str(ours)] == [
        text for text, _ in splits.pre_tokenize_str(theirs)
    ]


_EMPTY = {"type": "BPE", "vocab": {}, "merges": []}


def _agree(metadata: Mapping[str, Value], original: Tokenizer) -> bool:
    try:
        other = tokenizer_from_metadata(metadata)
    except TokenizerError:
        return False
    texts = (_PROBE, *_PROBE.split(" "), " a", "")
    return all(other.encode(text) == original.encode(text) for text in texts)


def _templates(sources: Mapping[str, str]) -> dict[str, Value]:
    templates, found = dict(sources), dict[str, Value]()
    if "default" in templates:
        found["tokenizer.chat_template"] = templates.pop("default")
    if templates:
        found["tokenizer.chat_templates"] = list(templates)
        found |= {f"tokenizer.chat_template.{name}": text for name, text in templates.items()}
    return found
