"""How requests end: stop ids, lengths, aborts in every state, failures of one slice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.types import FinishReason, SliceResult, StepResult
from tests.core.build import VOCAB, driver, full, granted, new
from tests.core.driver import Driver


def outcome(engine: Driver, name: str = "a", index: int = 0) -> tuple[int, FinishReason | None]:
    track = engine.tracks[name, index]
    return len(track.tokens), track.reason


def greedy_tokens(length: int, count: int) -> list[int]:
    engine = driver()
    track = engine.add(new("a", length, temperature=0.0, max_tokens=count))[0]
    engine.drain()
    return track.tokens


def test_max_tokens() -> None:
    engine = driver()
    engine.add(new("a", 5, max_tokens=7))
    engine.drain()
    assert outcome(engine) == (7, FinishReason.LENGTH)


@pytest.mark.parametrize("eos", [True, False])
def test_a_stop_id_ends_a_request_with_itself(eos: bool) -> None:
    tokens = greedy_tokens(5, 12)
    stop = tokens[6]
    engine = driver(eos_ids=frozenset({stop}) if eos else frozenset())
    stop_ids = () if eos else (stop,)
    track = engine.add(new("a", 5, temperature=0.0, max_tokens=12, stop_token_ids=stop_ids))[0]
    engine.drain()
    assert track.tokens == tokens[: tokens.index(stop) + 1] and track.reason is FinishReason.STOP


def test_ignore_eos() -> None:
    stop = greedy_tokens(5, 12)[3]
    engine = driver(eos_ids=frozenset({stop}))
    engine.add(new("a", 5, temperature=0.0, max_tokens=12, ignore_eos=True))
    engine.drain()
    assert outcome(engine) == (12, FinishReason.LENGTH)


def test_min_tokens_bans_stop_ids() -> None:
    engine = driver(eos_ids=frozenset(range(VOCAB - 1)))  # all but one
    engine.add(new("a", 5, min_tokens=4, max_tokens=9))
    engine.drain()
    assert outcome(engine) == (5, FinishReason.STOP)
    assert engine.tracks["a", 0].tokens[:4] == [VOCAB - 1] * 4


def test_a_stop_id_before_min_tokens_does_not_end_a_request() -> None:
    """Executors hold stop ids off; one that fails to must not cut the request short."""
    engine = driver(eos_ids=frozenset({3}))
    engine.engine.add(new("a", 5, min_tokens=3, max_tokens=9), 0.0)
    reasons = []
    for token in (3, 3, 3, 3):
        plan = engine.engine.begin(0.0)
        part = SliceResult(plan.slices[0].request_id, (token,))
        outputs = engine.engine.finish(StepResult(plan.step_id, (part,)), 0.0)
        reasons.append(outputs[0].finish_reason)
    assert reasons == [None, None, None, FinishReason.STOP]


def test_the_models_length_ends_a_request() -> None:
    engine = driver(max_model_len=16)
    engine.add(new("a", 5, max_tokens=None))
    engine.drain()
    assert outcome(engine) == (11, FinishReason.LENGTH)


def test_the_pools_size_ends_a_request() -> None:
    engine = driver(full(3))
    engine.add(new("a", 5, max_tokens=None))
    engine.drain()
    assert outcome(engine) == (7, FinishReason.LENGTH)


@pytest.mark.parametrize("good", [1, 3, 8])
def test_accepted_drafts_do_not_run_past_an_end(good: int) -> None:
    stop = greedy_tokens(5, 20)[9]
    for limits in ({"max_tokens": 10}, {"max_tokens": 20, "stop_token_ids": (stop,)}):
        engine = driver(draft=(good, 0))
        track = engine.add(new("a", 5, temperature=0.0, **limits))[0]
        engine.drain()
        assert len(track.tokens) <= 10


def test_aborts_of_running_waiting_and_preempted_requests() -> None:
    engine = driver(full(6), caching=False, max_num_seqs=2)
    for name in "abc":
        engine.add(new(name, 8, max_tokens=16))
    engine.abort("c")
    assert engine.engine.stats().waiting == 2
    while not engine.events["preemptions"]:
        engine.step()
    engine.abort("b")
    engine.step()
    engine.abort("a")
    engine.drain()
    for state in ("waiting", "preempted", "running"):
        assert engine.events[f"abort {state}"] == 1, engine.events
    assert {track.reason for track in engine.tracks.values()} == {FinishReason.ABORT}


def test_aborting_frees_memory_at_once_and_tells_the_executor_next() -> None:
    engine = driver()
    engine.add(new("a", 12, max_tokens=9))
    engine.step()
    engine.abort("a")
    stats = engine.engine.stats()
    assert stats.free_blocks == stats.total_blocks and engine.engine.has_work
    plan = engine.step()
    assert plan.released == (0,) and not plan.slices and not plan.empty
    assert not engine.engine.has_work


@pytest.mark.parametrize("after_execution", [False, True])
def test_an_abort_during_a_step_drops_its_result(after_execution: bool) -> None:
    engine = driver()
    engine.add(new("a", 12, max_tokens=9))
    engine.add(new("b", 12, max_tokens=9))
    engine.step()
    engine.step(**{"after" if after_execution else "before": lambda: engine.abort("a")})
    assert outcome(engine) == (1, FinishReason.ABORT)
    assert outcome(engine, "b") == (2, None)
    engine.drain()


def test_a_name_may_be_used_again_once_its_request_has_ended() -> None:
    engine = driver()
    engine.engine.add(new("a", 12, max_tokens=9), 0.0)
    plan = engine.engine.begin(0.0)
    engine.engine.abort("a", 0.0)
    engine.engine.add(new("a", 5, max_tokens=1), 0.0)
    outputs = engine.engine.finish(StepResult(plan.step_id), 0.0)
    assert [output.finish_reason for output in outputs] == [FinishReason.ABORT]
    assert engine.engine.has_work


def test_the_end_of_a_name_is_reported_before_its_reuse() -> None:
    engine = driver().engine
    engine.add(new("a", 12, max_tokens=9), 0.0)
    engine.abort("a", 0.0)
    engine.add(new("a", 5, max_tokens=3), 0.0)
    plan = engine.begin(0.0)
    outputs = engine.finish(StepResult(plan.step_id, (SliceResult(1, (7,)),)), 0.0)
    assert [(output.finish_reason, output.tokens) for output in outputs] == [
        (FinishReason.ABORT, ()), (None, (7,)),
    ]  # fmt: skip


def test_aborting_one_completion_leaves_the_others() -> None:
    for index in range(3):
        for steps in range(4):
            engine = driver()
            engine.add(new("a", 10, n=3, max_tokens=6))
            for _ in range(steps):
                engine.step()
            engine.abort("a", index)
            engine.drain()
            reasons = [engine.tracks["a", at].reason for at in range(3)]
            assert reasons.pop(index) is FinishReason.ABORT
            assert reasons == [FinishReason.LENGTH] * 2
            if steps == 0 and index:
                assert engine.events["abort waiting"] == 1


def test_a_stop_string_found_by_the_caller_ends_as_a_stop() -> None:
    engine = driver()
    engine.engine.add(new("a", 5, max_tokens=9), 0.0)
    engine.engine.abort("a", 0.0, stopped=True)
    plan = engine.engine.begin(0.0)
    outputs = engine.engine.finish(StepResult(plan.step_id), 0.0)
    assert [output.finish_reason for output in outputs] == [FinishReason.STOP]


def test_aborting_the_unknown_and_the_ended_does_nothing() -> None:
    engine = driver()
    engine.add(new("a", 5, max_tokens=1))
    engine.abort("unknown")
    engine.drain()
    engine.abort("a")
    engine.drain()
    assert outcome(engine) == (1, FinishReason.LENGTH)


@pytest.mark.parametrize("n", [1, 3])
def test_a_failed_slice_fails_its_completion_alone(n: int) -> None:
    engine = driver()
    failing = engine.add(new("a", 10, n=n, max_tokens=6))[0]
    engine.add(new("b", 10, max_tokens=6))
    engine.step()
    engine.fail(failing.number)
    engine.drain()
    assert outcome(engine) == (1, FinishReason.ERROR)
    others = [track for track in engine.tracks.values() if track is not failing]
    assert [len(track.tokens) for track in others] == [6] * n


def test_a_failure_in_the_prompt_is_of_one_completion_alone() -> None:
    engine = driver()
    failing = engine.add(new("a", 10, n=3, max_tokens=6))[0]
    engine.fail(failing.number)
    engine.drain()
    assert [engine.tracks["a", at].reason for at in range(3)] == [
        FinishReason.ERROR, FinishReason.LENGTH, FinishReason.LENGTH,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "accepted"),
    [
        ((3, 7), True),
        ((1, 2, 7), True),
        ((3, 4, 7), True),
        ((4, 7), False),
        ((1, 4, 7), False),
        ((3, 2, 7), False),
    ],
)
def test_what_is_accepted_of_a_tree_is_a_path(tokens: tuple[int, ...], accepted: bool) -> None:
    engine = driver(max_draft=2).engine
    engine.add(new("a", 5, max_tokens=9), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    tree = SliceResult(number, (4,), draft=(1, 2, 3, 4), draft_parents=(-1, 0, -1, 2))
    engine.finish(StepResult(plan.step_id, (tree,)), 0.0)
    plan = engine.begin(0.0)
    (output,) = engine.finish(StepResult(plan.step_id, (SliceResult(number, tokens),)), 0.0)
    assert (output.finish_reason is None) == accepted
    assert accepted or "accepted the drafts" in (output.error or "")


@pytest.mark.parametrize("parents", [(-1,), (-1, 1), (-2, 0), (0, -1)])
def test_drafts_that_are_no_tree_fail_their_request(parents: tuple[int, ...]) -> None:
    engine = driver(max_draft=2).engine
    engine.add(new("a", 5, max_tokens=9), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    result = SliceResult(number, (4,), draft=(1, 2), draft_parents=parents)
    (output,) = engine.finish(StepResult(plan.step_id, (result,)), 0.0)
    assert output.finish_reason is FinishReason.ERROR and "with the parents" in (output.error or "")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((), "returned 0 tokens for a slice with 2 drafts"),
        ((1, 2, 3, 4), "returned 4 tokens for a slice with 2 drafts"),
        ((9, 5), "accepted the drafts"),
        (None, "no result"),
    ],
)
def test_impossible_results_fail_their_request(tokens: tuple[int, ...] | None, message: str) -> None:
    engine = driver(max_draft=2).engine
    engine.add(new("a", 5, max_tokens=9), 0.0)
    plan = engine.begin(0.0)
    number = plan.slices[0].request_id
    engine.finish(StepResult(plan.step_id, (SliceResult(number, (4,), draft=(1, 2)),)), 0.0)
    plan = engine.begin(0.0)
    assert plan.slices[0].tokens == (4, 1, 2) and plan.slices[0].num_draft == 2
    parts = () if tokens is None else (SliceResult(number, tokens),)
    (output,) = engine.finish(StepResult(plan.step_id, parts), 0.0)
    assert output.finish_reason is FinishReason.ERROR and output.error is not None
    assert message in output.error
    assert engine.stats().free_blocks == engine.stats().total_blocks


def test_unexpected_tokens_fail_their_request() -> None:
    engine = driver(max_num_batched_tokens=4).engine
    engine.add(new("a", 9, max_tokens=9), 0.0)
    plan = engine.begin(0.0)
    assert not plan.slices[0].sample
    (output,) = engine.finish(StepResult(plan.step_id, (SliceResult(0, (4,)),)), 0.0)
    assert output.finish_reason is FinishReason.ERROR


def test_prompt_logprobs_come_once_a_position() -> None:
    """Chunked, preempted and recomputed; the driver compares them with the oracle's."""
    engine = driver(full(7), max_num_batched_tokens=3)
    engine.add(new("a", 9, max_tokens=12))
    engine.add(new("b", 9, max_tokens=12, prompt_logprobs=0))
    engine.drain()
    assert engine.events["preemptions"] > 0
    assert len(engine.tracks["b", 0].prompt_logprobs) == 8


def test_times_and_counts_of_a_request() -> None:
    engine = driver()
    engine.advance(1.0)
    track = engine.add(new("a", 5, max_tokens=3))[0]
    stats = engine.engine._requests[track.number].stats
    for _ in range(3):
        engine.advance(1.0)
        engine.step()
    assert replace(stats, miss=None) == replace(
        stats, miss=None, arrival_s=1.0, first_scheduled_s=2.0, first_token_s=2.0, last_token_s=4.0,
        finished_s=4.0, num_prompt=5, num_output=3, num_cached=0, num_preemptions=0,
    )  # fmt: skip
    assert granted(engine, engine.step()) == {}


@pytest.mark.parametrize(("length", "min_tokens"), [(3, 0), (9, 0), (5, 5)])
def test_a_grammar_at_its_end_ends_a_request(length: int, min_tokens: int) -> None:
    """At its longest and before min_tokens too: the output is whole, and nothing can be added to it."""
    engine = driver().engine
    engine.add(new("a", 5, max_tokens=9, min_tokens=min_tokens), 0.0)
    for emitted in range(1, length + 1):
        plan = engine.begin(0.0)
        result = SliceResult(plan.slices[0].request_id, (4,), done=emitted == length)
        (output,) = engine.finish(StepResult(plan.step_id, (result,)), 0.0)
        assert (output.finish_reason is FinishReason.STOP) == result.done
    assert output.stop_token is None
    assert engine.stats().free_blocks == engine.stats().total_blocks
