"""Unread output of a slow reader is bounded by its size."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from headrace.core.types import FinishReason, Output, TokenLogprobs
from headrace.errors import Overloaded
from headrace.serving.client.source import arrivals
from headrace.serving.client.stream import LEAST_UNREAD_BYTES, MAX_TAKEN, OutputStream, Unread

LIMIT = 100_000
SMALL = Output("r", 0, (1,))
LARGE = Output("r", 0, (1,), logprobs=(TokenLogprobs(1, -0.5, 1, tuple((i, -1.0, i) for i in range(64))),))


def fill(output: Output) -> int:
    """How many such outputs a stream buffers before its reader is dropped."""
    stream = OutputStream("r", 1, LIMIT)
    for count in range(10_000):
        stream.put(output)
        if stream.full:
            return count
    raise AssertionError("the stream is never full")


def test_outputs_count_by_their_size() -> None:
    assert 150 < fill(SMALL) < 300
    assert 8 < fill(LARGE) < 15


def test_one_output_may_be_of_any_size() -> None:
    stream = OutputStream("r", 1, LIMIT)
    stream.put(Output("r", 0, (1,), prompt_logprobs=LARGE.logprobs * 1000))
    assert not stream.full
    stream.put(SMALL)
    assert not stream.full


def test_reading_makes_room() -> None:
    async def read() -> None:
        stream = OutputStream("r", 1, LIMIT)
        for _ in range(20):
            for _ in range(100):
                stream.put(SMALL)
            assert not stream.full
            assert len(stream.take()) == 100
        stream.put(Output("r", 0, finish_reason=FinishReason.STOP))
        assert [len(outputs) async for outputs in arrivals(stream)] == [1]

    asyncio.run(read())


def test_a_long_queue_is_read_in_parts() -> None:
    shared = Unread()
    stream = OutputStream("r", 1, shared=shared)
    sizes = [1 + number % 7 for number in range(MAX_TAKEN * 2 + 10)]
    for size in sizes:
        stream.put(Output("r", 0, (1,) * size))
    taken = []
    for _ in range(3):
        assert stream.waiting
        taken.append([len(output.tokens) for output in stream.take()])
    assert [len(part) for part in taken] == [MAX_TAKEN, MAX_TAKEN, 10]
    assert [size for part in taken for size in part] == sizes
    assert not stream.waiting and stream.take() == []
    assert shared.bytes == 0


def test_a_listener_is_called_for_all_outputs() -> None:
    stream = OutputStream("r", 1)
    heard: list[int] = []
    stream.put(SMALL)
    stream.listen(lambda: heard.append(len(stream.take())))
    stream.put(SMALL)
    assert heard == [1, 1]
    stream.listen(None)
    stream.put(SMALL)
    stream.put(Output("r", 0, finish_reason=FinishReason.STOP))
    assert heard == [1, 1] and not stream.exhausted
    stream.listen(lambda: heard.append(len(stream.take())))
    assert heard == [1, 1, 2] and stream.exhausted


def test_an_error_comes_after_earlier_outputs() -> None:
    stream = OutputStream("r", 1)
    calls: list[None] = []
    stream.listen(lambda: calls.append(None))
    stream.put(SMALL)
    stream.fail(Overloaded("no more"))
    assert len(calls) == 2
    assert stream.take() == [SMALL]
    for _ in range(2):
        assert stream.waiting and not stream.exhausted
        with pytest.raises(Overloaded):
            stream.take()


@pytest.mark.parametrize("top", [None, 0, 20, 64])
def test_the_bound_holds_in_memory(top: int | None) -> None:
    """The buffered memory when a reader is dropped, as the interpreter counts it, is near the limit."""
    limit = 2 * 2**20
    tracemalloc.start()
    try:
        stream = OutputStream("r", 1, limit)
        number = 1000
        while not stream.full:
            number += 1
            logprobs: tuple[TokenLogprobs, ...] = ()
            if top is not None:
                entries = tuple((number + i, -1.0 * number - i, i) for i in range(top))
                logprobs = (TokenLogprobs(number, -0.5 * number, 1, entries),)
            stream.put(Output(f"request {number}", 0, (number,), logprobs=logprobs))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert limit / 3 < held < 1.5 * limit


def test_all_readers_together_are_bounded() -> None:
    shared = Unread(5 * LEAST_UNREAD_BYTES)
    streams = [OutputStream(f"r{i}", 1, 100 * LEAST_UNREAD_BYTES, shared) for i in range(50)]
    given_up: set[int] = set()
    for _ in range(2 * LEAST_UNREAD_BYTES // 400):
        for number, stream in enumerate(streams):
            stream.put(SMALL)
            if stream.full:
                stream.give_up(Overloaded("too slow"))
                given_up.add(number)
    assert len(given_up) > 40
    assert shared.bytes <= shared.most + len(streams) * LEAST_UNREAD_BYTES
    streams[-1].close()
    del streams, stream
    assert shared.bytes == 0


def test_a_fast_reader_is_not_dropped_for_others() -> None:
    shared = Unread(1000)
    stuck, quick = (OutputStream(name, 1, LIMIT, shared) for name in ("stuck", "quick"))
    for _ in range(100):
        stuck.put(SMALL)
        quick.put(SMALL)
        assert not quick.full and len(quick.take()) == 1
    assert shared.bytes > shared.most


def test_dropping_a_reader_frees_unread_output() -> None:
    stream = OutputStream("r", 1, LIMIT)
    stream.put(SMALL)
    stream.give_up(Overloaded("too slow"))
    with pytest.raises(Overloaded):
        stream.take()
