"""Hidden states added up: bitwise the same however a prompt is cut, and equal to the plain definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.core.types import Pooling, SeqSlice
from headrace.runner.pooling import NOT_FINITE, Pool, add_states, pooled_rows

LENGTH, HIDDEN = 97, 40


def states(length: int = LENGTH) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    spread = 10.0 ** rng.uniform(-6, 6, (length, 1))  # so that the order of a sum shows
    return (rng.standard_normal((length, HIDDEN)) * spread).astype(np.float32)


def pieces(cuts: list[int], request_id: int = 0) -> list[SeqSlice]:
    edges = [0, *sorted(set(cuts)), LENGTH]
    return [SeqSlice(request_id, tuple(range(a, b)), a, sample=False) for a, b in pairwise(edges)]


def run(kind: Pooling, cuts: list[int]) -> bytes:
    pool, all_states = Pool(kind, LENGTH), states()
    for work in pieces(cuts):
        rows = pooled_rows([work], [pool])
        results = add_states([work], [pool], all_states[work.start :][rows])
    return results[0].pooled or b""


@pytest.mark.parametrize("kind", list(Pooling))
@given(cuts=st.lists(st.integers(1, LENGTH - 1), max_size=12))
def test_any_cut_gives_the_same_bytes(kind: Pooling, cuts: list[int]) -> None:
    assert run(kind, cuts) == run(kind, [])


def test_the_definition() -> None:
    mean = np.frombuffer(run(Pooling.MEAN, [5]), dtype="<f4")
    assert np.allclose(mean, states().astype(np.float64).mean(axis=0), rtol=1e-6, atol=0)
    assert run(Pooling.LAST, [5]) == states()[-1].tobytes()


def test_a_sum_in_another_order_would_be_noticed() -> None:
    """The states are such that float64 sums of them differ with the order."""
    forth = np.add.accumulate(states().astype(np.float64), axis=0)[-1]
    back = np.add.accumulate(states()[::-1].astype(np.float64), axis=0)[-1]
    assert (forth != back).any()


def test_rows_of_a_mixed_batch() -> None:
    works = [
        SeqSlice(1, (7, 8, 9), 0, sample=True),  # no pool
        SeqSlice(2, (7, 8), 0, sample=False),  # the first part of a mean
        SeqSlice(3, (7, 8), 3, sample=False),  # the end of a last
        SeqSlice(4, (7, 8), 0, sample=False),  # the first part of a last
    ]
    pools = [None, Pool(Pooling.MEAN, 9), Pool(Pooling.LAST, 5), Pool(Pooling.LAST, 5)]
    rows = pooled_rows(works, pools)
    assert rows == [3, 4, 6]
    results = add_states(works, pools, states(3))
    assert list(results) == [3] and results[3].pooled == states(3)[2].tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_an_error_of_its_request(value: float) -> None:
    work, pool = SeqSlice(5, (1,), 0, sample=False), Pool(Pooling.MEAN, 1)
    row = np.full((1, HIDDEN), value, dtype=np.float32)
    (result,) = add_states([work], [pool], row).values()
    assert result.error == NOT_FINITE and result.pooled is None
