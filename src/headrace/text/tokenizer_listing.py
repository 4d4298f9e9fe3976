"""A tokenizer as rows for people."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.text.tokenizer import Tokenizer

MAX_SHOWN = 8
"""Most tokens or templates that are listed by name."""


def tokenizer_rows(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """Source, size of the vocabulary, special tokens and chat templates, each with its name."""
    named = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
    texts = [f"{name} {_token(tokenizer, i)}" for name, i in named.items() if i is not None]
    return [
        ("source", tokenizer.source),
        ("vocabulary", f"{tokenizer.vocab_size:,} tokens, {len(tokenizer.special_ids):,} of them special"),
        ("special tokens", ", ".join(texts) or "none by name"),
        ("ends a text", _shown(_token(tokenizer, i) for i in sorted(tokenizer.eos_ids))),
        ("chat template", _shown(tokenizer.template_names)),
    ]


def _token(tokenizer: Tokenizer, token_id: int) -> str:
    text = tokenizer.token(token_id)
    return str(token_id) if text is None else f"{text!r:.80} ({token_id})"


def _shown(texts: Iterable[str]) -> str:
    listed = list(texts)
    more = [f"and {len(listed) - MAX_SHOWN} more"] if len(listed) > MAX_SHOWN else []
    return ", ".join([*listed[:MAX_SHOWN], *more]) or "none"
