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
    assert granted(engine, engine.step()) == {"a": 10}
    plan = engine.step()
    # A follower computes the last prompt token again, for its logits, in a copy of the last block.
    assert granted(engine, plan) == {"a": 1, "a.1": 1, "a.2": 1, "a.3": 1}
    assert [part.start for part in plan.slices] == [10, 9, 9, 9]
    leader = engine.engine.scheduler.running[0].tables[0].live
    assert [(copy.group, copy.source) for copy in plan.copies] == [(0, leader[2])] * 3
    assert len({copy.target for copy in plan.copies}) == 3
    tables = [request.tables[0].live for request in engine.engine.scheduler.running]
    assert all(table[:2] == leader[:2] for table in tables)
    assert Counter(block for table in tables for block in table)[leader[0]] == 4
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
    # A block that holds nothing but the token to be recomputed is not worth a copy.
    assert engine.events["copies"] == (0 if length % 4 == 1 else engine.events["forks"] * len(groups))
    assert engine.events["forks"] + engine.events["hits"] > 0 or length == 1


def test_followers_of_a_leader_that_ended_at_once_find_the_cache() -> None:
    engine = driver()
    engine.add(new("a", 10, n=3, max_tokens=1))
    engine.drain()
    assert engine.events["forks"] == 0 and engine.events["hits"] == 16


@pytest.mark.parametrize("batching", list(Batching))
def test_followers_join_their_leaders_batch(batching: Batching) -> None:
    engine = driver(batching=batching, batch_size=1)
    engine.add(new("a", 10, n=3, max_tokens=6))
    engine.step()
    assert set(granted(engine, engine.step())) == {"a", "a.1", "a.2"}
    engine.drain()


def test_followers_take_no_place_in_a_batch_from_others() -> None:
    engine = driver(batching=Batching.STATIC, batch_size=2, max_num_batched_tokens=10)
    engine.add(new("a", 10, n=3, max_tokens=6))
    engine.add(new("b", 5, max_tokens=6))
    assert set(granted(engine, engine.step())) == {"a"}
    assert set(granted(engine, engine.step())) == {"a", "a.1", "a.2", "b"}
    engine.drain()


def test_followers_run_beside_their_leader_without_a_cache_too() -> None:
    engine = driver(kv_cache=False)
    engine.add(new("a", 10, n=3, max_tokens=6))
    engine.step()
    assert granted(engine, engine.step()) == {"a": 11, "a.1": 10, "a.2": 10}
    engine.drain()


def test_what_was_cached_is_counted_when_a_request_first_runs() -> None:
    engine = driver(full(9))
    for name in "ab":
        engine.add(new(name, 8, max_tokens=20))
    last = finished(engine)["b"].stats
    assert last is not None and last.num_preemptions > 0 and engine.events["hits"] > 0
    assert last.num_cached == 0


def test_followers_of_a_preempted_leader_get_along_without_it() -> None:
    engine = driver(full(10), max_num_batched_tokens=6)
    engine.add(new("first", 16, max_tokens=20))
    engine.add(new("a", 8, n=3, max_tokens=12))
    engine.drain()
    assert engine.events["preemptions"] > 0


def test_prompt_logprobs_are_computed_by_every_completion() -> None:
    engine = driver()
    engine.add(new("a", 10, n=2, prompt_logprobs=0, max_tokens=3))
    engine.drain()
    assert engine.events["forks"] == engine.events["hits"] == 0
    assert all(len(track.prompt_logprobs) == 9 for track in engine.tracks.values())


def test_a_second_request_starts_behind_the_shared_prefix() -> None:
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


def test_output_is_found_too() -> None:
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
