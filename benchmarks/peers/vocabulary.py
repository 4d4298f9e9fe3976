"""A synthetic vocabulary that every engine's tokenizer accepts: byte-level pair encoding of any size.

Prompts are token ids, so no engine's speed depends on it; the files exist because some engines do not load a model
without them.
"""

from __future__ import annotations

import itertools
import string
from typing import Any

SPECIAL = ("<unk>", "<s>", "</s>")
"""The first ids, as in Llama's vocabulary: bos is 1, eos is 2."""


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2, Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spare = itertools.count(0x100)
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def pairs(count: int) -> list[tuple[str, str]]:
    """The first `count` merges: two letters, then two pairs of letters. Raises ValueError for more than there are."""
    letters = string.ascii_lowercase
    short = [first + second for first, second in itertools.product(letters, letters)]
    merges = [*itertools.product(letters, letters), *itertools.product(short, short)]
    if not 0 <= count <= len(merges):
        raise ValueError(f"there are only {len(merges)} merges, not {count}")
    return merges[:count]


def tokens(size: int) -> list[str]:
    """All `size` tokens by id: the special ones, the bytes, then the merged ones. Raises ValueError under 259."""
    made = [first + second for first, second in pairs(size - len(SPECIAL) - 256)]
    return [*SPECIAL, *byte_characters(), *made]


def tokenizer_json(size: int) -> dict[str, Any]:
    """The vocabulary as a tokenizer.json of the `tokenizers` library."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": text, **flags, "special": True} for index, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(tokens(size))},
            "merges": [list(pair) for pair in pairs(size - len(SPECIAL) - 256)],
        },
    }
