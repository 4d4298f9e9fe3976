"""A tokenizer of any vocabulary size for measurements: tokens of a real one, and pairs of them."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from headrace.errors import ConfigError
from headrace.text.tokenizer import Tokenizer

MAX_TOKEN_CHARS = 16


def widened(tokenizer: Tokenizer, vocab_size: int, seed: int = 0) -> Tokenizer:
    """A byte-pair tokenizer with `vocab_size` ids, the first of them those of `tokenizer`, which must be one, too.

    A grammar's masks take time by the number and the kinds of the tokens, which a small vocabulary cannot show.
    Raises ConfigError for a tokenizer of another kind.
    """
    data = json.loads(tokenizer.to_json())
    model = data["model"]
    if model["type"] != "BPE" or vocab_size < tokenizer.vocab_size:
        raise ConfigError("only a byte-pair tokenizer can be made wider")
    special = {token["content"] for token in data["added_tokens"]}
    words = [word for word in model["vocab"] if word not in special]
    chosen = random.Random(seed)
    while len(model["vocab"]) < vocab_size:
        left, right = chosen.choice(words), chosen.choice(words)
        both = left + right
        if both not in model["vocab"] and len(both) <= MAX_TOKEN_CHARS and not right.startswith("Ġ"):
            model["vocab"][both] = len(model["vocab"])
            model["merges"].append([left, right])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_text(json.dumps(data))
        ends = sorted(tokenizer.eos_ids)
        Path(folder, "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        return Tokenizer.from_folder(folder)
