"""Bad words as token ids, which a sampler can exclude."""

from __future__ import annotations

from dataclasses import replace

from headrace.core.params import SamplingParams
from headrace.errors import InvalidParams
from headrace.text.tokenizer import Tokenizer


def with_bad_word_ids(params: SamplingParams, tokenizer: Tokenizer | None) -> SamplingParams:
    """The parameters with token ids in place of bad words that are text.

    A word is tokenized as at the beginning of a text and as after a space, as in vLLM; unlike there, both forms count
    even if one has more tokens than the other. Raises InvalidParams for words without a tokenizer, and for words
    without tokens.
    """
    if not any(isinstance(word, str) for word in params.bad_words):
        return params
    if tokenizer is None:
        raise InvalidParams("bad_words need a tokenizer, and this model has none: give token ids")
    found: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        if not isinstance(word, str):
            found[word] = None
            continue
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if not ids:
                raise InvalidParams(f"bad_words holds {word!r:.80}, of which the tokenizer makes no tokens")
            found[ids] = None
    return replace(params, bad_words=tuple(found))
