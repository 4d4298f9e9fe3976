"""Views of the engine over the wire, and what has ended in between."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.engine import EngineStats
from headrace.core.params import SamplingParams
from headrace.core.prefix_cache import CacheStats
from headrace.core.scheduler_counts import SchedulerStats
from headrace.core.snapshot import BlockMap, Lane, Phase, Snapshot
from headrace.core.types import FinishReason, NewRequest, Output, RequestStats
from headrace.errors import EngineDead
from headrace.serving.engine.state import MAX_ENDED, WATCHED_S, Journal, View
from headrace.serving.wire import messages as wire
from tests.serving.client.test_process_client import engine, read, run_async
from tests.serving.tiny_engine import CRASH

names = st.text(st.characters(codec="utf-8"), max_size=12)
counts = st.integers(0, 2**40)
times = st.floats(allow_nan=False)
lanes = st.builds(
    Lane, names, st.integers(0, 127), st.sampled_from(Phase), times, st.none() | times, st.none() | times,
    counts, counts, counts, counts, counts,
)  # fmt: skip
maps = st.builds(
    BlockMap,
    names,
    counts,
    counts,
    st.integers(1, 99),
    counts,
    counts,
    st.lists(st.integers(-1, 2**31), max_size=20).map(tuple),
)
STATS = EngineStats(1, 2, 30, 4, SchedulerStats(5, 6, 7, 8, 9, 10, 11), CacheStats(5, 3, 1, Counter()))
snapshots = st.builds(
    Snapshot, times, st.just(STATS), counts, counts, st.lists(lanes, max_size=3).map(tuple),
    st.lists(maps, max_size=3).map(tuple),
)  # fmt: skip
ENDED = (Output("a", 1, finish_reason=FinishReason.STOP, stats=RequestStats(1.5, num_output=3)),)


@given(snapshots, st.sampled_from([(), ENDED]))
def test_views_arrive_unchanged(taken: Snapshot, ended: tuple[Output, ...]) -> None:
    view = View(taken, ended)
    assert wire.decode_from_engine(wire.encode(wire.Snapshot(4, view))) == wire.Snapshot(4, view)


def ending(name: str) -> Output:
    return Output(name, 0, (1, 2), finish_reason=FinishReason.STOP, stats=RequestStats(0.0))


def test_a_journal_records_endings_while_watched() -> None:
    journal = Journal()
    journal.note([ending("before")], 0.0)
    assert journal.take(1.0) == ()
    journal.note([ending("a"), Output("b", 0, (1,))], 1.0 + WATCHED_S)
    (noted,) = journal.take(2.0)
    assert (noted.request_id, noted.tokens) == ("a", ())
    journal.note([ending("c")], 2.1)
    journal.note([], 2.1 + 2 * WATCHED_S)  # no longer watched
    assert journal.take(100.0) == ()


def test_a_journal_is_bounded() -> None:
    journal = Journal()
    journal.take(0.0)
    journal.note([ending(str(number)) for number in range(MAX_ENDED + 5)], 1.0)
    assert [output.request_id for output in journal.take(1.0)] == [str(n) for n in range(5, MAX_ENDED + 5)]


@run_async
async def test_the_engine_process_returns_its_view() -> None:
    async with engine(step_s=0.002) as client:
        empty = await client.view()
        assert empty.snapshot.lanes == empty.ended == ()
        stream = await client.submit(NewRequest("a", (1, 2, 3), SamplingParams(max_tokens=400)))
        short = await client.submit(NewRequest("b", (1, 2, 3), SamplingParams(max_tokens=2)))
        await read(short)
        view = await client.view()
        (lane,) = view.snapshot.lanes
        assert (lane.request_id, lane.phase, lane.num_prompt) == ("a", Phase.DECODE, 3)
        assert lane.arrival_s <= view.snapshot.now
        (one,) = view.snapshot.maps
        assert one.held >= 1 and one.runs[2] == 1
        (over,) = view.ended
        assert (over.request_id, over.finish_reason) == ("b", FinishReason.LENGTH)
        assert over.stats is not None and over.stats.num_output == 2
        client.abort("a")
        await read(stream)
        assert (await client.view()).snapshot.lanes == ()
        ended = [over.request_id for _ in range(3) for over in (await client.view()).ended]
        assert ended == ["a"]  # once, in whichever view


@run_async
async def test_a_view_fails_with_the_engine() -> None:
    async with engine(step_s=0.3) as client:
        await client.submit(NewRequest("a", (1, 2), SamplingParams(max_tokens=3)))
        await client.submit(NewRequest("crash", (1, CRASH), SamplingParams(max_tokens=3)))
        viewing = [asyncio.ensure_future(client.view()) for _ in range(3)]
        outcomes = await asyncio.gather(*viewing, return_exceptions=True)
        assert any(isinstance(outcome, EngineDead) for outcome in outcomes)
        with pytest.raises(EngineDead):
            await client.view()
