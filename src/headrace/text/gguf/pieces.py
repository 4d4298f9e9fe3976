"""Text to ids for vocabularies of SentencePiece: added tokens, spaces, and the algorithm between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import tokenizers
from tokenizers import AddedToken, models

from headrace.text.gguf.charsmap import Charsmap
from headrace.text.gguf.sentencepiece import Segment, merges_by_score, most_probable
from headrace.text.gguf.vocabulary import TokenType, Vocabulary

SPACE = "▁"
"""How pieces spell a space."""

_CACHED_CHARS = 64
_CACHED_STRETCHES = 2**16
"""Stretches of at most so many characters, and so many of them, are segmented once: words come again."""


class PieceEncoder:
    """Text -> ids by a vocabulary with scores; safe to share between threads.

    Added tokens (control, user-defined and unknown tokens) are found in the raw text, and what lies between two of them
    is encoded alone, each with its own prefixed space if the vocabulary has one: as llama.cpp does.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises TokenizerError for a vocabulary that cannot spell every text or has a damaged table."""
        unigram = vocabulary.model == "t5"
        pieces, self._segment = (most_probable if unigram else merges_by_score)(vocabulary)
        self._cached: Segment = lru_cache(_CACHED_STRETCHES)(self._segment)
        self._prepared = _preparation(vocabulary, unigram)
        self._added = _AddedTokens(vocabulary)
        self._unknown = vocabulary.named.get("unk_token")
        # Neither algorithm makes a piece across two characters that are neighbours in no piece. So a text falls into
        # stretches, mostly words, that do not depend on each other.
        self._neighbours = frozenset(piece[i : i + 2] for piece in pieces for i in range(len(piece) - 1))

    def __call__(self, text: str) -> list[int]:
        """Ids of a text, without bos and eos."""
        ids: list[int] = []
        for token, raw in self._added.split(text):
            if token is not None:
                ids.append(token)
            else:
                self._encode(self._prepared(raw), ids)
        return ids

    def _encode(self, text: str, ids: list[int]) -> None:
        begin = len(ids)
        neighbours = self._neighbours
        start = 0
        for end in range(1, len(text) + 1):
            if end == len(text) or text[end - 1 : end + 1] not in neighbours:
                stretch = text[start:end]
                ids += (self._cached if end - start <= _CACHED_CHARS else self._segment)(stretch)
                start = end
        if self._unknown is not None and self._unknown in ids[begin:]:
            # Unknown characters in a row are one unknown token.
            kept = [
                token
                for i, token in enumerate(ids[begin:], begin)
                if token != self._unknown or i == begin or ids[i - 1] != token
            ]
            ids[begin:] = kept


def _preparation(vocabulary: Vocabulary, unigram: bool) -> Callable[[str], str]:
    """What happens to a text before its pieces are sought.

    llama.cpp normalizes texts and removes spaces for unigram vocabularies alone, and no converter writes either for
    others, so the same is done here.
    """
    prefixed = vocabulary.add_space_prefix is not False
    collapsed = unigram and bool(vocabulary.remove_extra_whitespaces)
    charsmap = Charsmap(vocabulary.charsmap) if unigram and vocabulary.charsmap else None

    def prepared(text: str) -> str:
        if charsmap is not None:
            text = charsmap.normalized(text)
        if collapsed:
            text = re.sub(" +", " ", text).strip(" ")
        if prefixed and text:
            text = " " + text
        return text.replace(" ", SPACE)

    return prepared


class _AddedTokens:
    """Finds tokens that are matched in raw text, the first in the text and of those the longest."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        added = dict(vocabulary.of_type(*ADDED_TYPES))
        # A backend whose only word is "everything between added tokens"; these are its other ids.
        self._backend = tokenizers.Tokenizer(models.WordLevel({"": 0}, unk_token=""))
        self._backend.add_tokens([AddedToken(text, normalized=False) for text in added])
        numbers = self._backend.get_vocab()
        self._ids: Mapping[int, int] = {numbers[text]: i for text, i in added.items()}

    def split(self, text: str) -> Iterator[tuple[int | None, str]]:
        """The parts of a text in order: the id of an added token, or None and the text between two of them."""
        if not self._ids:
            yield None, text
            return
        found = self._backend.encode(text, add_special_tokens=False)
        for number, (start, end) in zip(found.ids, found.offsets, strict=True):
            yield self._ids.get(number), text[start:end]


ADDED_TYPES = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
"""Tokens that are found in the raw text, before anything else happens to it."""
