"""SentencePiece's two algorithms on one stretch of text without spaces: byte-pair merges by score, and unigram.

Both are written out here, not left to `tokenizers`. Its byte-pair model takes a list of merges, so that two merges are
never equal in rank. By scores they often are: two ways to make one piece have the same score, and some converters
write one score for all pieces. SentencePiece then merges what comes first in the text, whichever pair it is, and no
list of merges does that (tests/text/gguf/test_sentencepiece.py has examples). Its unigram model lets the spellings of
control tokens and bytes match in a text.

Kudo and Richardson 2018, "SentencePiece"; Sennrich et al. 2016 and Kudo 2018 for the models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from headrace.errors import TokenizerError
from headrace.text.gguf.vocabulary import TokenType, Vocabulary

Segment = Callable[[str], tuple[int, ...]]
"""Ids of a stretch of text."""

_UNKNOWN_PENALTY = 10.0
"""How much worse than the worst piece an unknown character is, as in SentencePiece."""


MAX_PIECE_CHARS = 256
"""Longest piece of a unigram model, whose search looks so far ahead at each character; trainers make up to 16."""


def merges_by_score(vocabulary: Vocabulary) -> tuple[Mapping[str, int], Segment]:
    """The pieces that can come out of merges, and the function that makes them."""
    scores = {
        text: -vocabulary.scores[i]
        for text, i in vocabulary.of_type(TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    }
    ids = vocabulary.ids
    unknown = spelling(vocabulary)

    def segment(text: str) -> tuple[int, ...]:
        # Symbols are stretches of the text: `size[i]` characters at i; 0 for a symbol that is part of the one before.
        count = len(text)
        size = [1] * count
        following = [*range(1, count), -1]
        previous = list(range(-1, count - 1))
        queue = [
            (score, i, i + 1, 2)
            for i in range(count - 1)
            if (score := scores.get(text[i : i + 2])) is not None
        ]
        heapify(queue)  # the best score first, and of equal ones the first in the text
        while queue:
            _, left, right, width = heappop(queue)
            if not size[left] or not size[right] or size[left] + size[right] != width:
                continue  # one of the two has been merged since
            size[left], size[right] = width, 0
            after = following[left] = following[right]
            if after >= 0:
                previous[after] = left
                wider = width + size[after]
                if (score := scores.get(text[left : left + wider])) is not None:
                    heappush(queue, (score, left, after, wider))
            before = previous[left]
            if before >= 0:
                wider = size[before] + width
                if (score := scores.get(text[before : before + wider])) is not None:
                    heappush(queue, (score, before, left, wider))
        found: list[int] = []
        i = 0
        while i < count:
            piece = text[i : i + size[i]]
            if piece in scores:
                found.append(ids[piece])
            else:  # one character
                found.extend(unknown(piece))
            i += size[i]
        return tuple(found)

    return {text: ids[text] for text in scores}, segment


def most_probable(vocabulary: Vocabulary) -> tuple[Mapping[str, int], Segment]:
    """The pieces of a unigram model, and the function that finds those with the highest sum of scores.

    Raises TokenizerError for a piece of more than `MAX_PIECE_CHARS`.
    """
    pieces = {text: (vocabulary.scores[i], i) for text, i in vocabulary.of_type(TokenType.NORMAL)}
    longest: dict[str, int] = {}  # by first character
    for text in pieces:
        longest[text[0]] = max(longest.get(text[0], 0), len(text))
    if max(longest.values(), default=0) > MAX_PIECE_CHARS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens of the GGUF file has a piece of {max(longest.values())} characters; "
            f"pieces of unigram models have up to {MAX_PIECE_CHARS}."
        )
    worst = min((score for score, _ in pieces.values()), default=0.0) - _UNKNOWN_PENALTY
    unknown = spelling(vocabulary)

    def segment(text: str) -> tuple[int, ...]:
        # The best way to each position: its score, where its last piece begins, and the id of that (-1: unknown).
        count = len(text)
        best: list[tuple[float, int, int] | None] = [(0.0, 0, -1), *[None] * count]
        for start in range(count):
            here = best[start]
            assert here is not None  # every character can be passed alone
            single = False
            for end in range(start + 1, min(start + longest.get(text[start], 0), count) + 1):
                if (piece := pieces.get(text[start:end])) is not None:
                    single = single or end == start + 1
                    score, there = here[0] + piece[0], best[end]
                    if there is None or score > there[0]:
                        best[end] = (score, start, piece[1])
            there = best[start + 1]
            if not single and (there is None or here[0] + worst > there[0]):
                best[start + 1] = (here[0] + worst, start, -1)
        found: list[tuple[int, ...]] = []
        end = count
        while end:
            step = best[end]
            assert step is not None
            found.append((step[2],) if step[2] >= 0 else unknown(text[step[1] : end]))
            end = step[1]
        return tuple(i for ids in reversed(found) for i in ids)

    return {text: i for text, (_, i) in pieces.items()}, segment


def spelling(vocabulary: Vocabulary) -> Segment:
    """Ids of a character that is not a piece: of its bytes, or the unknown token.

    Raises TokenizerError for a vocabulary that has neither.
    """
    spelled = [vocabulary.ids.get(f"<0x{byte:02X}>") for byte in range(256)]
    byte_ids = [i for i in spelled if i is not None]
    if len(byte_ids) == 256:
        return lambda char: tuple(byte_ids[byte] for byte in char.encode("utf-8"))
    unknown = vocabulary.named.get("unk_token")
    if unknown is None:
        raise TokenizerError(
            "tokenizer.ggml.tokens of the GGUF file has neither a token for each byte nor an unknown token, "
            "so that it cannot spell every text."
        )
    return lambda char: (unknown,)
