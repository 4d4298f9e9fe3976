"""How much of a row of logits is put in order before a draw."""

from __future__ import annotations

WIDTHS = (64, 256, 1024)
"""Prefixes of the sorted row that are tried before a full sort. See `first_width`."""


def first_width(k: int, vocab_size: int) -> int:
    """The narrowest prefix that can settle the first k ranks with one witness behind them.

    A partial selection pays off up to an eighth of the vocabulary; past that the whole row is sorted.
    """
    return next((w for w in WIDTHS if k < w <= vocab_size // 8), vocab_size)
