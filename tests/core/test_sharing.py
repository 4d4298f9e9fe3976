"""Completions and requests that share KV: forks, copy-on-write, prefix hits, salts."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.core.policy import Batching
from headrace.core.prefix_cache import MissReason
from headrace.core.types import Output
from tests.core.build import driver, full, granted, new, sinks, window, work
from tests.core.driver import Driver


def finished(engine: Driver) -> dict[str, Output]:
    """Run to the end, and give the last output of the first completion of each request."""
    last = {}
    take = engine._take

    def watch(output: Output) -> None:
        take(output)
        if output.finish_reason is not None and output.index == 0:
            last[output.request_id] = output

    engine._take = watch  # type: ignore[method-assign]
    engine.drain()
    return last


def test_completions_share_the_prompt_and_copy_what_they_write() -> None:
    engine = driver(caching=False)
    engine.add(new("a", 10, n=4, max_tokens=12))
    plan = engine.step()
    # Each further completion computes the last prompt token, for its logits, and writes nothing.
    assert granted(engine, plan) == {"a": 10, "a.1": 1, "a.2": 1, "a.3": 1}
    assert [(part.start, part.num_stored) for part in plan.slices] == [(0, 0), (9, 1), (9, 1), (9, 1)]
    assert plan.copies == ()
    tables = [request.tables[0].live for request in engine.engine.scheduler.running]
    shared = list(tables[0])
    assert tables == [shared] * 4
    plan = engine.step()  # all but the last who has the half-full block write to a copy of it
    assert [(copy.group, copy.source) for copy in plan.copies] == [(0, shared[2])] * 3
    assert len({copy.target for copy in plan.copies} | {shared[2]}) == 4
    tables = [request.tables[0].live for request in engine.engine.scheduler.running]
    assert all(table[:2] == shared[:2] for table in tables)
    assert Counter(block for table in tables for block in table)[shared[0]] == 4
    engine.drain()
    assert engine.events["forks"] == 3 and engine.events["copies"] == 3
    texts = {tuple(track.tokens) for track in engine.tracks.values()}
    assert len(texts) == 4  # four seeds


def test_greedy_completions_are_equal() -> None:
    engine = driver()
    engine.add(new("a", 10, n=3, temperature=0.0, max_tokens=12))
    engine.drain()
    assert len({tuple(track.tokens) for track in engine.tracks.values()}) == 1


def test_sharing_saves_blocks() -> None:
    held = {}
    for n in (1, 4):
        engine = driver(full(64), caching=False)
        engine.add(new("a", 40, n=n, max_tokens=4))
        engine.step()
        engine.step()
        held[n] = engine.engine.kv_usage().held_blocks
        engine.drain()
    assert held[4] <= held[1] + 3 * 2


@pytest.mark.parametrize("length", [1, 4, 8, 9, 11])
@pytest.mark.parametrize("groups", [(full(),), (full(), window(5)), (sinks(2, 5), full())])
def test_forks_in_all_groups_and_at_all_places_in_a_block(groups, length: int) -> None:  # type: ignore[no-untyped-def]
    engine = driver(*groups)
    engine.add(new("a", length, n=3, max_tokens=9))
    engine.drain()
    assert engine.events["forks"] == 2
    assert engine.events["copies"] == (0 if length % 4 == 0 else 2 * len(groups))


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("max_tokens", [0, 1, 2])
def test_a_prompt_is_computed_once_for_all_completions(caching: bool, max_tokens: int) -> None:
    """Also where the first ends in its first step."""
    engine = driver(caching=caching)
    engine.add(new("a", 15, n=8, max_tokens=max_tokens, ignore_eos=True))
    assert sum(granted(engine, engine.step()).values()) == 15 + 7
    engine.drain()
    assert engine.engine.stats().scheduler.scheduled_tokens == 15 + 7 + 8 * max(0, max_tokens - 1)


@pytest.mark.parametrize("length", [15, 16, 17])
def test_equal_prompts_that_arrive_together_are_computed_once(length: int) -> None:
    engine = driver(full(64))
    for index in range(8):
        engine.add(new(f"r{index}", range(length), max_tokens=1))
    assert sum(granted(engine, engine.step()).values()) == length + 7
    engine.drain()
    assert engine.events["forks"] == 7 and engine.events["hits"] == 7 * (length - 1)


def test_prompts_that_begin_alike_and_arrive_together_share_their_beginning() -> None:
    engine = driver()
    last = {}
    for index in range(3):
        engine.add(new(f"r{index}", [*range(9), 20 + index, 30], max_tokens=2))
    plan = engine.step()
    assert granted(engine, plan) == {"r0": 11, "r1": 3, "r2": 3}
    assert engine.events["shared in a step"] == 2
    last = finished(engine)
    assert [last[f"r{index}"].stats.num_cached for index in range(3)] == [0, 8, 8]


def test_nothing_is_shared_between_requests_where_the_cache_is_off_or_salts_differ() -> None:
    for caching, salts in ((False, ("", "")), (True, ("red", "blue"))):
        engine = driver(caching=caching)
        for name, salt in zip("ab", salts, strict=True):
            engine.add(new(name, range(10), salt=salt, max_tokens=2))
        assert granted(engine, engine.step()) == {"a": 10, "b": 10}
        engine.drain()


@pytest.mark.parametrize("n", [1, 3])
def test_readers_of_a_failed_slice_recompute_it(n: int) -> None:
    engine = driver()
    failing = engine.add(new("a", range(10), n=n, max_tokens=6))[0]
    engine.add(new("b", range(10), max_tokens=6))  # the whole prompt
    engine.add(new("c", [*range(9), 40, 41, 42, 43, 44], max_tokens=6))  # two blocks, and writes a third
    engine.add(new("d", [*range(9), 40, 41, 42, 43, 45], max_tokens=6))  # that d reads
    engine.add(new("e", range(20, 30), max_tokens=6))  # none of it
    engine.fail(failing.number)
    first = engine.step()
    assert granted(engine, first)["d"] == 2
    assert failing.reason is not None and engine.events["retried"] == 3 + n - 1
    assert engine.engine.scheduler.kv.cache is not None
    assert len(engine.engine.scheduler.kv.cache) == 2  # what e wrote
    again = engine.step()
    assert granted(engine, again) == {**({"a.1": 10, "a.2": 1} if n == 3 else {}), "b": 1 if n == 3 else 10,
                                      "c": 6, "d": 2, "e": 1}  # fmt: skip
    last = finished(engine)
    assert last["b"].stats.num_preemptions == 0 and engine.events["errors"] == 1


def test_an_error_after_reading_a_failed_slice_is_retried() -> None:
    engine = driver()
    tracks = [engine.add(new(name, range(10), max_tokens=6))[0] for name in "abc"]
    engine.fail(tracks[0].number)
    engine.fail(tracks[1].number)
    engine.step()
    assert [track.reason is None for track in tracks] == [False, True, True]
    engine.drain()
    assert engine.events["errors"] == 1 and len(tracks[1].tokens) == 6


@pytest.mark.parametrize("fails", [False, True])
def test_blocks_of_an_aborted_writer_stay_cached(fails: bool) -> None:
    """Unless its slice failed: then the others start again, although no caller waits for the error."""
    engine = driver()
    writer = engine.add(new("a", range(10), max_tokens=6))[0]
    reader = engine.add(new("b", range(10), max_tokens=6))[0]
    if fails:
        engine.fail(writer.number)
    engine.step(before=lambda: engine.abort("a"))
    assert engine.events["retried"] == fails and len(reader.tokens) == (not fails)
    assert granted(engine, engine.step()) == {"b": 10 if fails else 1}
    engine.drain()


def test_an_aborted_reader_passes_on_no_error() -> None:
    """The one between discards blocks that it computed from invalid KV."""
    engine = driver()
    failing = engine.add(new("a", range(10), max_tokens=6))[0]
    engine.add(new("b", [*range(9), 40, 41, 42, 43], max_tokens=6))
    engine.add(new("c", [*range(9), 40, 41, 42, 43], max_tokens=6))
    engine.fail(failing.number)
    engine.step(before=lambda: engine.abort("b"))
    assert engine.events["retried"] == 1
    assert granted(engine, engine.step()) == {"c": 13}
    engine.drain()


@pytest.mark.parametrize("batching", list(Batching))
def test_completions_join_a_batch_like_other_sequences(batching: Batching) -> None:
    engine = driver(batching=batching, batch_size=2, max_num_batched_tokens=20)
    engine.add(new("a", 10, n=3, max_tokens=6, ignore_eos=True))
    engine.add(new("b", 5, max_tokens=6, ignore_eos=True))
    first = granted(engine, engine.step())
    assert set(first) == {"a", "a.1", *(("a.2", "b") if batching is Batching.CONTINUOUS else ())}
    engine.drain()


def test_completions_run_together_without_a_cache_too() -> None:
    engine = driver(kv_cache=False)
    engine.add(new("a", 10, n=3, max_tokens=6))
    assert granted(engine, engine.step()) == {"a": 10, "a.1": 10, "a.2": 10}
    engine.drain()


def test_what_was_cached_is_counted_when_a_request_first_runs() -> None:
    engine = driver(full(9))
    for name in "ab":
        engine.add(new(name, 8, max_tokens=20))
    last = finished(engine)["b"].stats
    assert last is not None and last.num_preemptions > 0 and engine.events["hits"] > 0
    assert last.num_cached == 0


def test_completions_are_preempted_one_by_one() -> None:
    engine = driver(full(10), max_num_batched_tokens=6)
    engine.add(new("first", 16, max_tokens=20))
    engine.add(new("a", 8, n=3, max_tokens=12))
    engine.drain()
    assert engine.events["preemptions"] > 0 and engine.events["forks"] > 0


def test_prompt_logprobs_are_computed_by_every_completion() -> None:
    engine = driver()
    engine.add(new("a", 10, n=2, prompt_logprobs=0, max_tokens=3))
    engine.drain()
    assert engine.events["forks"] == engine.events["hits"] == 0
    assert all(len(track.prompt_logprobs) == 9 for track in engine.tracks.values())


def test_a_second_request_starts_after_the_shared_prefix() -> None:
    engine = driver()
    engine.add(new("a", range(10), max_tokens=2))
    first = finished(engine)["a"].stats
    engine.add(new("b", [*range(9), 40, 41], max_tokens=2))
    plan = engine.step()
    assert work(engine, plan)["b"].start == 8
    second = finished(engine)["b"].stats
    assert first is not None and first.num_cached == 0 and first.miss is not None
    assert first.miss.reason == MissReason.COLD.value
    assert second is not None and second.num_cached == 8 and second.miss is not None
    assert second.miss.reason == MissReason.NONE.value


def test_output_blocks_are_found() -> None:
    """The next turn of a chat begins with the last turn's prompt and answer."""
    engine = driver()
    first = engine.add(new("a", range(10), max_tokens=11))[0]
    engine.drain()
    engine.add(new("b", [*range(10), *first.tokens, 1, 2], max_tokens=2))
    assert work(engine, engine.step())["b"].start == 20  # the last answer token's KV was never computed
    engine.drain()


def test_rejected_drafts_are_never_found() -> None:
    engine = driver(draft=(0, 3))
    first = engine.add(new("a", range(10), max_tokens=11))[0]
    engine.drain()
    engine.add(new("b", [*range(10), *first.tokens, 1, 2], max_tokens=2))
    assert work(engine, engine.step())["b"].start == 20
    engine.drain()
    assert engine.events["rejected"] > 0


@pytest.mark.parametrize("salts", [("red", "blue"), ("", "red"), ("red", "red")])
def test_salts_keep_requests_apart(salts: tuple[str, str]) -> None:
    engine = driver()
    for name, salt in zip("ab", salts, strict=True):
        engine.add(new(name, range(10), salt=salt, max_tokens=2))
        engine.drain()
    assert (engine.events["hits"] > 0) == (salts[0] == salts[1])


def test_a_cache_that_is_off_finds_nothing() -> None:
    engine = driver(caching=False)
    for name in "ab":
        engine.add(new(name, range(10), max_tokens=2))
        engine.drain()
    assert engine.engine.stats().cache is None and engine.events["hits"] == 0


def test_evicted_prefixes_are_computed_again() -> None:
    engine = driver(full(6))
    for name in "ab":
        engine.add(new(name, range(10), max_tokens=2))
        engine.drain()
        engine.add(new(f"big-{name}", range(20, 41), max_tokens=2))
        engine.drain()
    assert engine.events["evictions"] > 0
