"""Drafts: k of n accepted, what is kept of the rest, and its statistics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.policy import Batching
from headrace.core.types import FinishReason, SliceResult, StepPlan, StepResult
from tests.core.build import driver, full, new, sinks, state, window, work
from tests.core.driver import Driver

LENGTH = 24


def plain_tokens(**params: float) -> list[int]:
    engine = driver()
    track = engine.add(new("a", 9, max_tokens=LENGTH, **params))[0]
    engine.drain()
    return track.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("good", "bad"), [(0, 1), (0, 4), (1, 1), (3, 0), (2, 3), (5, 2)])
def test_drafts_change_the_number_of_steps_and_nothing_else(good: int, bad: int, temperature: float) -> None:
    engine = driver(draft=(good, bad))
    track = engine.add(new("a", 9, max_tokens=LENGTH, temperature=temperature))[0]
    engine.drain()
    assert track.tokens == plain_tokens(temperature=temperature)
    assert engine.events["steps"] == 1 + -(-(LENGTH - 1) // (good + 1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("good", "bad"), [(0, 1), (1, 1), (3, 0), (2, 3)])
def test_trees_change_the_number_of_steps_and_nothing_else(good: int, bad: int, temperature: float) -> None:
    engine = driver(draft=(good, bad), tree=True)
    track = engine.add(new("a", 9, max_tokens=LENGTH, temperature=temperature))[0]
    engine.drain()
    assert track.tokens == plain_tokens(temperature=temperature)
    assert engine.events["steps"] == 1 + -(-(LENGTH - 1) // (good + 1))
    assert engine.events["side paths"] >= (good > 0)


def test_a_tree_takes_a_place_for_each_depth() -> None:
    engine = driver(full(4, 4), max_draft=2).engine
    engine.add(new("a", 5, max_tokens=9), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    tree = SliceResult(number, (4,), draft=(1, 2, 3, 4, 5, 6), draft_parents=(-1, -1, 0, 0, 1, -1))
    engine.finish(StepResult(plan.step_id, (tree,)), 0.0)
    (part,) = engine.begin(0.0).slices
    assert part.tokens == (4, 1, 2, 3, 4, 5, 6) and part.draft_parents == tree.draft_parents
    assert (part.known, part.num_draft, part.span, part.room) == (1, 6, 3, 2)
    assert engine.kv_usage().held_blocks == 3  # 5 + 3 positions, and 2 for the next drafts
    engine.finish(StepResult(1 + plan.step_id, (SliceResult(number, (2, 5, 9)),)), 0.0)
    request = engine._requests[number]
    assert (request.num_computed, request.tokens[-4:]) == (8, [4, 2, 5, 9])
    assert (request.stats.num_drafted, request.stats.num_accepted) == (6, 2)
    assert engine.stats().scheduler.accepted_at == (1, 1)


def test_while_drafting_rests_slices_have_no_room_for_drafts() -> None:
    engine = driver(full(9, 4), max_draft=4).engine
    engine.add(new("a", 8, max_tokens=9), 0.0)
    rooms, blocks = [], []
    for rests in (True, True, False, False):
        plan = engine.begin(0.0)
        rooms.append(plan.slices[0].room)
        blocks.append(engine.kv_usage().held_blocks)
        result = SliceResult(plan.slices[0].request_id, (4,))
        engine.finish(StepResult(plan.step_id, (result,), rests), 0.0)
    assert rooms == [4, 0, 0, 4] and blocks == [3, 3, 3, 4]


@pytest.mark.parametrize("draft", [(), (1, 2, 3, 4)])
def test_drafts_of_others_are_cut_before_a_sequence_is_preempted(draft: tuple[int, ...]) -> None:
    engine = driver(full(4, 4), max_draft=4, caching=False).engine

    def step(rests: bool, draft: tuple[int, ...] = ()) -> StepPlan:
        plan = engine.begin(0.0)
        results = [SliceResult(part.request_id, (4,)) for part in plan.slices]
        if draft:
            results[0] = replace(results[0], draft=draft)
        engine.finish(StepResult(plan.step_id, tuple(results), rests), 0.0)
        return plan

    engine.add(new("first", 3, max_tokens=1), 0.0)
    step(rests=True)  # so that the next step keeps no blocks for drafts
    engine.add(new("a", 3, max_tokens=8 if draft else 2), 0.0)
    engine.add(new("b", 8, max_tokens=2), 0.0)
    assert len(step(rests=False, draft=draft).slices) == 2 and engine.kv_usage().held_blocks == 3
    one, other = step(rests=True).slices  # the last block is b's: a needs it for drafts alone
    assert (one.num_draft, one.room, other.start) == (0, 0, 8)
    assert engine.stats().scheduler.preemptions == 0


def test_drafts_after_the_end_of_an_output_are_not_counted_as_accepted() -> None:
    engine = driver(max_draft=4).engine
    engine.add(new("a", 5, max_tokens=9, stop_token_ids=[2]), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    engine.finish(StepResult(plan.step_id, (SliceResult(number, (4,), draft=(1, 2, 3, 5)),)), 0.0)
    plan = engine.begin(0.0)
    (output,) = engine.finish(StepResult(plan.step_id, (SliceResult(number, (1, 2, 3, 5, 6)),)), 0.0)
    assert output.tokens == (1, 2) and output.finish_reason is FinishReason.STOP
    assert output.stats is not None and (output.stats.num_drafted, output.stats.num_accepted) == (4, 2)
    counts = engine.stats().scheduler
    assert (counts.accepted_tokens, counts.accepted_at, counts.output_tokens) == (2, (1, 1, 0, 0), 3)


def test_trees_are_cut_to_what_can_be_accepted() -> None:
    engine = driver(max_draft=4).engine
    engine.add(new("a", 5, max_tokens=4), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    tree = SliceResult(number, (4,), draft=(1, 2, 3, 4, 5), draft_parents=(-1, 0, 1, 0, -1))
    engine.finish(StepResult(plan.step_id, (tree,)), 0.0)
    (part,) = engine.begin(0.0).slices  # three tokens are left, the last of which needs no KV
    assert part.tokens == (4, 1, 2, 4, 5) and part.draft_parents == (-1, 0, 0, -1)


def test_the_budget_cuts_trees_by_tokens() -> None:
    engine = driver(max_draft=4, max_num_batched_tokens=5).engine
    engine.add(new("a", 5, max_tokens=9), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    tree = SliceResult(number, (4,), draft=(1, 2, 3, 4, 5), draft_parents=(-1, 0, 1, -1, -1))
    engine.finish(StepResult(plan.step_id, (tree,)), 0.0)
    (part,) = engine.begin(0.0).slices
    assert part.tokens == (4, 1, 2, 3, 4) and part.draft_parents == (-1, 0, 1, -1)


def test_models_with_states_verify_the_main_chain() -> None:
    engine = driver(full(), state(9), max_draft=3).engine
    engine.add(new("a", 5, max_tokens=9), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    tree = SliceResult(number, (4,), draft=(1, 2, 3, 4), draft_parents=(-1, -1, 0, 2))
    engine.finish(StepResult(plan.step_id, (tree,)), 0.0)
    (part,) = engine.begin(0.0).slices
    assert part.tokens == (4, 1, 3, 4) and part.draft_parents == ()


def test_one_step_accepts_k_of_n() -> None:
    engine = driver(draft=(2, 3))
    track = engine.add(new("a", 9, max_tokens=LENGTH))[0]
    request = engine.engine._requests[track.number]
    engine.step()
    assert (request.num_computed, len(request.tokens), len(request.draft)) == (9, 10, 5)
    part = work(engine, engine.step())["a"]
    assert (part.start, len(part.tokens), part.num_draft, part.sample) == (9, 6, 5, True)
    # Two accepted, and the token sampled after them: its KV is still to be computed.
    assert (request.num_computed, len(request.tokens)) == (12, 13)
    assert (request.stats.num_drafted, request.stats.num_accepted) == (5, 2)
    engine.drain()
    assert engine.executor.accepted == request.stats.num_accepted
    assert engine.executor.rejected == request.stats.num_drafted - request.stats.num_accepted


def test_rejected_drafts_keep_their_block_for_the_next_token() -> None:
    engine = driver(full(6), draft=(0, 4))
    engine.add(new("a", 4, max_tokens=8))
    held = []
    while engine.engine.has_work:
        engine.step()
        held.append(engine.engine.kv_usage().held_blocks)
    assert max(held) <= 4 and engine.events["rejected"] > 0


@pytest.mark.parametrize("chunked", [True, False])
def test_the_budget_cuts_drafts(chunked: bool) -> None:
    engine = driver(draft=(4, 0), max_num_batched_tokens=6, chunked_prefill=chunked)
    for name in "ab":
        engine.add(new(name, 3, max_tokens=12))
    engine.step()
    parts = work(engine, engine.step())
    assert [len(part.tokens) for part in parts.values()] == [5, 1]
    assert [part.num_draft for part in parts.values()] == [4, 0]
    engine.drain()


def test_drafts_stay_within_the_models_length() -> None:
    engine = driver(draft=(8, 0), max_model_len=16)
    track = engine.add(new("a", 9, max_tokens=None))[0]
    while engine.engine.has_work:
        assert all(part.start + len(part.tokens) < 16 for part in engine.step().slices)
    assert len(track.tokens) == 7


@pytest.mark.parametrize("groups", [(window(5),), (sinks(2, 5),), (full(9), window(3, 7)), (full(9),)])
@pytest.mark.parametrize("batching", [Batching.CONTINUOUS, Batching.STATIC])
@pytest.mark.parametrize("tree", [False, True])
def test_drafts_under_windows_sharing_and_preemption(groups, tree: bool, batching: Batching) -> None:  # type: ignore[no-untyped-def]
    engine = driver(*groups, draft=(1, 2), tree=tree, batching=batching, max_num_batched_tokens=12)
    for name in "abc":
        engine.add(new(name, 8, n=2, max_tokens=14))
    engine.drain()
    assert engine.events["accepted"] > 0 and engine.events["rejected"] > 0


def test_preemption_forgets_drafts() -> None:
    engine = driver(full(7), draft=(1, 2), caching=False)
    for name in "ab":
        engine.add(new(name, 8, max_tokens=16))
    while not engine.events["preemptions"]:
        engine.step()
    preempted = [request for request in engine.engine.scheduler.waiting]
    assert preempted and all(request.draft == () for request in preempted)
    engine.drain()


@pytest.mark.parametrize("draft", [(0, 4), (2, 2)])
def test_no_draft_delays_a_prompt_that_waits(draft: tuple[int, int]) -> None:
    engine = driver(draft=draft, chunked_prefill=False, max_num_batched_tokens=16)
    engine.add(new("a", 4, max_tokens=40))
    for _ in range(2):
        engine.step()
    engine.add(new("b", 14, max_tokens=2))
    parts = work(engine, engine.step())
    assert len(parts["b"].tokens) == 14 and parts["a"].num_draft == 1
    engine.drain()


def test_a_prompt_that_cannot_join_leaves_drafts_alone() -> None:
    engine = driver(draft=(4, 0), chunked_prefill=False, max_num_batched_tokens=16)
    engine.add(new("a", 4, max_tokens=40))
    for _ in range(2):
        engine.step()
    engine.add(new("b", 16, max_tokens=2))  # it waits for a step of its own
    assert work(engine, engine.step())["a"].num_draft == 4
    engine.drain()


def steps_with(engine: Driver, **params: int) -> int:
    engine.add(new("a", 9, **params))
    engine.drain()
    return engine.events["steps"]


def test_statistics_hold_for_the_whole_engine() -> None:
    engine = driver(draft=(3, 1))
    assert steps_with(engine, max_tokens=LENGTH) == 7
    stats = replace(engine.engine.stats().scheduler)
    assert stats.output_tokens == LENGTH
    assert stats.scheduled_tokens >= 9 + LENGTH - 1 + engine.executor.rejected
