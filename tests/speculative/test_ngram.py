"""What an n-gram index proposes, against a plain search."""

from __future__ import annotations

import random

import pytest

from headrace.speculative.ngram import NGramIndex


def searched(tokens: list[int], sizes: tuple[int, ...]) -> list[int]:
    """Places after earlier occurrences of the last tokens, of the longest of `sizes` that has one."""
    for size in sorted(sizes, reverse=True):
        last = tokens[-size:]
        places = [at for at in range(size, len(tokens)) if tokens[at - size : at] == last]
        if len(last) == size and places:
            return places
    return []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("sizes", [(1,), (2,), (2, 4), (1, 3, 5)])
def test_it_finds_an_occurrence_where_there_is_one(seed: int, sizes: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    tokens = [rng.randrange(4) for _ in range(300)]
    index = NGramIndex(sizes)
    found = 0
    for count in range(1, len(tokens) + 1):
        index.extend(tokens[count - 1 : count])
        places = searched(tokens[:count], sizes)
        assert (index.at is not None) == bool(places)
        if index.at is None:
            assert index.continuation(5) == ()
            continue
        found += 1
        assert tokens[index.at - index.length : index.at] == tokens[count - index.length : count]
        assert index.length >= min(sizes)
    assert found > 100


def test_an_occurrence_is_followed_as_long_as_it_goes_on() -> None:
    text = list(range(50))
    index = NGramIndex((2, 4))
    index.extend([*text, 99, *text[10:12]])
    assert (index.at, index.length) == (12, 2)
    index.extend(text[12:20])
    assert (index.at, index.length) == (20, 10)
    assert index.continuation(4) == (20, 21, 22, 23)
    index.extend([77])
    assert index.at is None


def test_a_continuation_that_reaches_the_present_goes_on_in_its_period() -> None:
    index = NGramIndex((2,))
    index.extend([5, 6, 7, 5, 6, 7, 5, 6])
    assert index.continuation(7) == (7, 5, 6, 7, 5, 6, 7)


def test_pieces_of_any_size_give_the_same_index() -> None:
    rng = random.Random(3)
    tokens = [rng.randrange(3) for _ in range(200)]
    one, many = NGramIndex((2, 4)), NGramIndex((2, 4))
    one.extend(tokens)
    while len(many) < len(tokens):
        many.extend(tokens[len(many) : len(many) + rng.randrange(1, 9)])
    assert (one.at, one.length, one.continuation(9)) == (many.at, many.length, many.continuation(9))
