"""Trains the byte-level BPE tokenizer on the first training documents."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tqdm import tqdm

from tools.tale.corpus import stream
from tools.tale.words import SPECIALS

MARKS = re.compile("|".join(re.escape(s) for s in SPECIALS))


def train(documents: int, vocabulary: int = 2048) -> Tokenizer:
    """A tokenizer with the special tokens first, then all 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    docs = tqdm(stream(0, documents), total=documents, desc="tokenizer", unit="doc")
    tokenizer.train_from_iterator((part for d in docs for part in MARKS.split(d.text) if part), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", 0)]
    )
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the tokenizer.json to write")
    parser.add_argument("--documents", type=int, default=15_000)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    train(args.documents).save(str(args.out))


if __name__ == "__main__":
    main()
