"""The engine's interface: validation, seeds, and the protocol of begin and finish."""

from __future__ import annotations

from random import Random

import pytest

from headrace.core.types import StepResult
from headrace.errors import InvalidParams, PromptTooLong, RequestError
from tests.core.build import VOCAB, driver, full, new, sinks, window


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([], {}, RequestError, "empty"),
        ([VOCAB], {}, InvalidParams, f"token id {VOCAB} is outside"),
        ([-1], {}, InvalidParams, "token id -1 is outside"),
        ([1], {"stop_token_ids": (VOCAB,)}, InvalidParams, "names token"),
        (32, {}, PromptTooLong, "context holds 32"),
    ],
)
def test_requests_that_cannot_run_are_refused_and_leave_no_trace(prompt, params, error, message) -> None:  # type: ignore[no-untyped-def]
    engine = driver(max_model_len=32)
    with pytest.raises(error, match=message):
        engine.add(new("a", prompt, **params))
    assert not engine.engine.has_work
    engine.add(new("a", 31, max_tokens=5))
    engine.drain()
    assert len(engine.tracks["a", 0].tokens) == 1


@pytest.mark.parametrize("group", [full(3), sinks(5, 9, blocks=3)])
def test_a_prompt_that_no_pool_can_hold_is_refused(group) -> None:  # type: ignore[no-untyped-def]
    engine = driver(group, max_model_len=None)
    with pytest.raises(PromptTooLong, match="whole KV cache holds 12"):
        engine.add(new("a", 12))
    engine.add(new("a", 11))
    engine.drain()


def test_a_prompt_may_be_far_longer_than_a_window_pool() -> None:
    engine = driver(window(8, blocks=4), max_model_len=None)
    engine.add(new("a", 50, max_tokens=5))
    engine.drain()
    assert len(engine.tracks["a", 0].tokens) == 5


def test_a_name_is_taken_until_its_last_completion_has_ended() -> None:
    engine = driver()
    engine.add(new("a", 5, n=2, max_tokens=5))
    engine.step()
    engine.abort("a", 0)
    with pytest.raises(InvalidParams, match="already running"):
        engine.add(new("a", 5))
    engine.drain()
    engine.engine.check(new("a", 5))


def seeds(name: str, **params: int) -> list[int]:
    engine = driver()
    tracks = engine.add(new(name, 5, max_tokens=1, **params))
    engine.drain()
    return [engine.executor.samplings[track.number].seed for track in tracks]


def test_seeds() -> None:
    assert len(set(seeds("a", n=4))) == 4
    assert seeds("a", n=4)[:2] == seeds("a", n=2)
    assert seeds("a") != seeds("b")  # without a seed of their own, by name
    assert seeds("a", seed=7, n=2) == seeds("b", seed=7, n=2)
    assert seeds("a", seed=7) != seeds("a", seed=8)
    assert all(0 <= seed < 2**64 for seed in seeds("a", n=4))


def test_steps_come_in_pairs() -> None:
    engine = driver().engine
    with pytest.raises(RuntimeError, match="does not belong"):
        engine.finish(StepResult(1), 0.0)
    engine.add(new("a", 5, max_tokens=1), 0.0)
    plan = engine.begin(0.0)
    with pytest.raises(RuntimeError, match="has not been finished"):
        engine.begin(0.0)
    with pytest.raises(RuntimeError, match="does not belong"):
        engine.finish(StepResult(plan.step_id + 1), 0.0)
    engine.finish(StepResult(plan.step_id), 0.0)  # the step is still there to be finished


def test_an_idle_engine_gives_empty_plans() -> None:
    engine = driver()
    assert not engine.engine.has_work
    assert engine.step().empty and engine.step().empty


def test_a_snapshot_stays_as_it_was() -> None:
    engine = driver()
    engine.add(new("a", 9, n=3, max_tokens=3))
    before = engine.engine.stats()
    assert (before.running, before.waiting, before.free_blocks) == (0, 3, 32)
    engine.step()
    during = engine.engine.stats()
    assert (during.running, during.waiting, during.free_blocks) == (3, 0, 29)
    assert before.scheduler.steps == 0 and during.scheduler.steps == 1
    engine.add(new("b", 9, max_tokens=3))
    engine.drain()
    after = engine.engine.stats()
    assert (after.running, after.waiting, after.free_blocks) == (0, 0, 32)
    assert during.cache is not None and after.cache is not None
    assert during.cache.queries < after.cache.queries
    assert during.cache.misses.total() == 1  # a snapshot, too


def test_the_same_input_gives_the_same_plans() -> None:
    runs = []
    for _ in range(2):
        engine, rng, plans = driver(full(12), draft=(1, 1)), Random(4), []
        for number in range(12):
            engine.add(new(f"r{number}", rng.randint(1, 20), n=rng.randint(1, 3), max_tokens=9))
            plans.append(engine.step())
        runs.append(plans)
        engine.drain()
    assert runs[0] == runs[1]
