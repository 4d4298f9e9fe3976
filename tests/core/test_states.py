"""Recurrent states: one slot a sequence, and states that are kept at some borders for the prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.prefix_cache import MissReason, PrefixCache
from headrace.core.request import Table
from headrace.core.states import StateGroup
from headrace.core.types import NOWHERE, FinishReason, KVGroupSpec, Retention, StateSlots
from tests.core.build import driver, full, granted, new, state, window, work
from tests.core.random_runs import MOVES, random_run

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]


def test_a_slice_names_where_its_state_starts_and_where_it_is_left() -> None:
    engine = driver(full(), state(interval=8), max_num_batched_tokens=10)
    engine.add(new("a", PROMPT, max_tokens=3))
    first = work(engine, engine.step())["a"].states
    assert first[0] is None and first[1] is not None
    assert first[1].source == NOWHERE
    assert [count for count, _ in first[1].writes] == [8, 10]
    own = first[1].writes[-1][1]
    # 16 is a multiple of the interval, 20 the prompt's last whole block and the end of the slice
    second = work(engine, engine.step())["a"].states[1]
    assert second is not None and second.source == own
    assert [count for count, _ in second.writes] == [6, 10]
    assert second.writes[-1][1] == own
    third = work(engine, engine.step())["a"].states[1]
    assert (
        third is not None and third.source == own and third.writes[-1][1] != own
    )  # that one is in the cache
    engine.drain()


@pytest.mark.parametrize(
    ("shared", "found"), [(7, 0), (8, 8), (11, 8), (17, 16), (19, 16), (20, 20), (22, 20)]
)
def test_a_prefix_is_found_up_to_the_last_state_kept(shared: int, found: int) -> None:
    engine = driver(full(), state(interval=8))
    engine.add(new("a", PROMPT, max_tokens=1))
    engine.drain()
    prompt = [*PROMPT[:shared], *[40] * (23 - shared)]
    (track,) = engine.add(new("b", prompt, max_tokens=2))
    assert granted(engine, engine.step()) == {"b": 23 - found}
    stats = engine.engine._requests[track.number].stats
    assert stats.num_cached == found and stats.miss is not None
    whole = shared // 4 * 4
    if found < whole:
        assert stats.miss.reason == MissReason.NO_STATE.value
        assert stats.miss.detail == f"tokens up to {whole} are known, but the last state kept is at {found}"
    engine.drain()


def test_the_same_prompt_is_found_up_to_its_last_whole_block() -> None:
    engine = driver(full(), state(interval=None))
    for name in ("a", "b"):
        engine.add(new(name, PROMPT, max_tokens=2))
        plan = engine.step()
        assert granted(engine, plan) == {name: 22 if name == "a" else 2}
        engine.drain()


def test_a_state_is_found_in_the_step_that_writes_it() -> None:
    engine = driver(full(), state(interval=None))
    engine.add(new("a", PROMPT, max_tokens=2))
    engine.add(new("b", PROMPT, max_tokens=2))
    assert granted(engine, engine.step()) == {"a": 22, "b": 2}
    engine.drain()


def test_completions_branch_off_before_the_last_token() -> None:
    engine = driver(full(), state())
    engine.add(new("a", PROMPT, n=4, max_tokens=6, temperature=1.0))
    plan = engine.step()
    assert granted(engine, plan) == {"a": 22, "a.1": 1, "a.2": 1, "a.3": 1}
    slots = [part.states[1] for part in plan.slices]
    assert all(slot is not None for slot in slots)
    branch = next(slot for count, slot in slots[0].writes if count == 21)  # type: ignore[union-attr]
    assert {slot.source for slot in slots[1:] if slot is not None} == {branch}
    assert len({slot.writes[-1][1] for slot in slots if slot is not None}) == 4
    assert engine.engine.stats().scheduler.forks == 3
    engine.drain()


def test_completions_branch_without_a_prefix_cache_and_of_one_token() -> None:
    for prompt in ([5], [5, 6], PROMPT):
        engine = driver(full(), state(interval=None), caching=False)
        engine.add(new("a", prompt, n=3, max_tokens=4, temperature=1.0))
        engine.step()
        assert engine.engine.stats().scheduler.forks == 2
        engine.drain()


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_few_slots_slow_down_but_stop_nobody(slots: int) -> None:
    engine = driver(full(), state(slots, interval=4))
    for name in ("a", "b", "c"):
        engine.add(new(name, PROMPT, n=2, max_tokens=9, temperature=1.0))
    engine.drain()
    assert all(track.reason is FinishReason.LENGTH for track in engine.tracks.values())


def test_a_preempted_sequence_continues_from_a_state() -> None:
    engine = driver(full(14), state(40, interval=4), max_num_batched_tokens=32)
    for name in ("a", "b"):
        engine.add(new(name, 16, max_tokens=24))
    engine.drain()
    stats = engine.engine.stats()
    assert stats.scheduler.preemptions > 0
    assert stats.cache is not None and stats.cache.hits > 0  # no two prompts are alike


@pytest.mark.parametrize("interval", [None, 8, 512])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 20])
def test_the_next_turn_starts_from_the_last_whole_block_of_the_answer(
    length: int, interval: int | None
) -> None:
    engine = driver(full(), state(interval=interval))
    (track,) = engine.add(new("a", PROMPT, max_tokens=length))
    engine.drain()
    turn = [*PROMPT, *track.tokens, 40, 41, 42, 43, 44]
    engine.add(new("b", turn, max_tokens=2))
    computed = 22 + length - 1  # the last token of the answer was not an input
    assert granted(engine, engine.step()) == {"b": len(turn) - computed // 4 * 4}
    engine.drain()


def test_an_answer_keeps_one_state_at_a_time() -> None:
    engine = driver(full(), state(9, interval=16))
    engine.add(new("a", PROMPT, max_tokens=40))
    cache = engine.engine.scheduler.kv.cache
    assert cache is not None
    while engine.engine.has_work:
        engine.step()
        length = 22 + len(engine.tracks["a", 0].tokens) - 1
        # those of the interval, the prompt's last block, and the answer's
        assert len(cache.findable(1)) == len({*range(16, length + 1, 16), 20, length // 4 * 4})
    assert engine.engine.stats().cache.evictions == 0  # type: ignore[union-attr]


def test_an_answer_of_others_keeps_its_state() -> None:
    engine = driver(full(), state(12, interval=None))
    (first,) = engine.add(new("a", PROMPT, max_tokens=7, seed=3))
    engine.drain()
    (second,) = engine.add(new("b", PROMPT, max_tokens=20, seed=3))  # the same tokens, and more
    engine.drain()
    assert second.tokens[:7] == first.tokens
    for answer, rest in ((first.tokens, 1 + 3), (second.tokens, 2 + 3)):
        engine.add(new(f"next {len(answer)}", [*PROMPT, *answer, 40, 41, 42], max_tokens=1))
        assert list(granted(engine, engine.step()).values()) == [rest]
        engine.drain()


def test_few_slots_are_not_lost_to_answers() -> None:
    """A state that is forgotten is the next slot that is taken, so another conversation keeps its own."""
    engine = driver(full(40), state(5, interval=None))
    (other,) = engine.add(new("other", [*range(30, 41)], max_tokens=6))
    engine.drain()
    engine.add(new("a", PROMPT, max_tokens=40))
    engine.drain()
    turn = [*range(30, 41), *other.tokens, 1, 2]
    engine.add(new("b", turn, max_tokens=1))
    assert granted(engine, engine.step()) == {"b": len(turn) - 16}
    engine.drain()


def test_pinned_prefixes_keep_their_state() -> None:
    engine = driver(full(12), state(4, interval=None))
    engine.add(new("a", PROMPT, max_tokens=1, pin=(12, 100.0)))
    engine.drain()
    for name in ("b", "c", "d", "e"):
        engine.add(new(name, 26, max_tokens=8))
    engine.drain()
    assert engine.engine.stats().cache.evictions > 0  # type: ignore[union-attr]
    engine.add(new("f", [*PROMPT[:13], 40], max_tokens=1))
    assert granted(engine, engine.step()) == {"f": 2}
    engine.drain()


def test_a_state_goes_back_to_the_last_accepted_draft() -> None:
    engine = driver(full(), state(interval=4), draft=(2, 1))
    (track,) = engine.add(new("a", PROMPT, max_tokens=30))
    engine.drain()
    assert engine.executor.accepted > 10 and engine.executor.rejected > 5
    again = [*PROMPT, *track.tokens]  # 52 tokens: states after accepted drafts were kept, too
    (track,) = engine.add(new("b", [*again[:46], 40, 40], max_tokens=2))
    assert granted(engine, engine.step()) == {"b": 4}
    engine.drain()


def test_without_free_slots_nothing_is_drafted() -> None:
    engine = driver(full(), state(1), draft=(2, 1), caching=False)
    engine.add(new("a", PROMPT, max_tokens=9))
    engine.drain()
    assert engine.executor.accepted == engine.executor.rejected == 0


def test_states_beside_windows() -> None:
    engine = driver(window(6), state(40, interval=4), full())
    for name in ("a", "b"):
        engine.add(new(name, PROMPT, n=2, max_tokens=20, temperature=1.0))
        engine.drain()
    assert engine.events["dropped blocks"] > 0
    assert engine.engine.stats().cache.hits > 0  # type: ignore[union-attr]


def test_a_slot_is_not_a_place_for_tokens() -> None:
    engine = driver(full(), state())
    engine.add(new("a", PROMPT, n=2, max_tokens=6, temperature=1.0))
    engine.step()
    usage = engine.engine.kv_usage()
    assert usage.held_blocks == 6 + 3  # of 22 tokens; two sequences, and where they branch
    assert usage.reserved_tokens == 24 and usage.used_tokens == 22
    assert engine.engine.scheduler.limit == 64
    engine.drain()


def test_an_interval_is_a_number_of_blocks() -> None:
    with pytest.raises(ValueError, match="states are kept every 6 tokens, which is not a number of blocks"):
        driver(full(), state(interval=6))
    group = KVGroupSpec("state", 3, 16, Retention.STATE)
    assert group.reach_blocks == 1 and group.reach == 2


def overwrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write to a slot although the cache or another sequence refers to it."""

    def target(self: StateGroup, table: Table) -> int:
        return table.live[0] if table.live else self._pool.allocate()

    monkeypatch.setattr(StateGroup, "_target", target)


def keep_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the state of another border."""
    kept = StateGroup.kept

    def wrong(self: StateGroup, request: Any, index: int) -> int | None:
        return kept(self, request, index) and request.tables[self._index].live[0]

    monkeypatch.setattr(StateGroup, "kept", wrong)


def find_without_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Continue from any border."""
    monkeypatch.setattr(PrefixCache, "_complete", lambda *args: True)


def start_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = StateGroup.advance

    def wrong(self: StateGroup, request: Any, end: int) -> None:
        advance(self, request, end)
        request.tables[self._index].source = NOWHERE

    monkeypatch.setattr(StateGroup, "advance", wrong)


@pytest.mark.parametrize("plant", [overwrite, keep_elsewhere, find_without_state, start_from_zero])
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        for seed in range(60):
            random_run(seed, MOVES)


def test_slots_of_a_slice_are_plain_values() -> None:
    assert StateSlots(NOWHERE, ((3, 1),)) == StateSlots(-1, ((3, 1),))
