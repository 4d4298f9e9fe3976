"""Requests that run out of time: which expire and when, which blocks become free, and when the engine checks again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.core.deadlines import Deadlines
from headrace.core.engine import Engine
from headrace.core.policy import Batching
from headrace.core.scheduler import Scheduler
from headrace.core.types import MAX_TIMEOUT_S, FinishReason, NewRequest, StepResult
from headrace.errors import InvalidParams
from tests.core.build import CONFIG, driver, full, new, request
from tests.core.checks import Broken
from tests.core.random_runs import MOVES, SEEDS, random_run


def test_a_request_that_waits_too_long_expires() -> None:
    engine = driver(max_num_seqs=1)
    busy = engine.add(new("busy", 8, max_tokens=20, queue_timeout_s=1.0))[0]
    late = engine.add(new("late", 8, max_tokens=20, queue_timeout_s=1.0))[0]
    engine.step()
    engine.advance(0.9)
    engine.step()
    assert late.reason is None
    engine.advance(0.1)
    engine.step()
    assert late.reason is FinishReason.TIMEOUT and late.tokens == []
    engine.advance(50)
    engine.drain()
    assert busy.reason is FinishReason.LENGTH  # the clock of the queue stopped when it was scheduled


@pytest.mark.parametrize("status", ["waiting", "running", "preempted"])
def test_a_request_that_takes_too_long_expires(status: str) -> None:
    engine = driver(full(9), max_num_seqs=1 if status == "waiting" else 8, caching=False)
    tracks = [
        engine.add(new(name, 8, max_tokens=16, timeout_s=2.0 if name == "c" else None))[0] for name in "abc"
    ]
    while status == "preempted" and not engine.events["preemptions"]:
        engine.step()
    engine.step()
    engine.advance(2.0)
    engine.step()
    assert engine.events[f"expired {status}"] == 1
    assert [track.reason for track in tracks] == [None, None, FinishReason.TIMEOUT]
    engine.drain()


def test_expired_requests_free_blocks_for_the_same_step() -> None:
    engine = driver(full(8), caching=False)
    engine.add(new("first", 20, max_tokens=12, timeout_s=1.0))
    second = engine.add(new("second", 20, max_tokens=12))[0]
    engine.step()
    assert second.number not in engine.executor.samplings  # there is room for one of the two
    engine.advance(1.0)
    plan = engine.step()
    assert [work.request_id for work in plan.slices] == [second.number]
    engine.drain()


def test_all_completions_expire_together_and_one_that_has_started_counts_for_all() -> None:
    engine = driver(max_num_batched_tokens=4)
    tracks = engine.add(new("a", 12, n=3, max_tokens=4, queue_timeout_s=1.0))
    engine.step()  # the prompt takes two more steps, and leaves no room for the other two
    engine.advance(5.0)
    engine.drain()
    assert [track.reason for track in tracks] == [FinishReason.LENGTH] * 3
    tracks = engine.add(new("b", 12, n=3, max_tokens=4, timeout_s=1.0))
    engine.step()
    engine.advance(1.0)
    engine.step()
    assert [track.reason for track in tracks] == [FinishReason.TIMEOUT] * 3


def test_a_filling_batch_wakes_for_a_deadline() -> None:
    engine = Engine(
        CONFIG.__class__(
            max_num_seqs=8, max_num_batched_tokens=64, max_model_len=64, vocab_size=50, batching=Batching.DYNAMIC,
            batch_wait_s=10.0,
        ),
        [full()],
    )  # fmt: skip
    engine.add(new("a", 8, queue_timeout_s=3.0), 100.0)
    plan = engine.begin(100.0)
    assert plan.wait_until == 103.0
    engine.finish(StepResult(plan.step_id), 100.0)
    plan = engine.begin(103.0)
    (output,) = engine.finish(StepResult(plan.step_id), 103.0)
    assert output.finish_reason is FinishReason.TIMEOUT and not engine.has_work
    assert output.error == "the request waited for 3 s without being scheduled"


def test_the_reason_names_the_deadline_of_the_whole_request() -> None:
    engine = Engine(CONFIG, [full()])
    engine.add(new("a", 8, queue_timeout_s=3.0, timeout_s=2.5), 0.0)
    plan = engine.begin(9.0)
    (output,) = engine.finish(StepResult(plan.step_id), 9.0)
    assert output.error == "the request did not end within 2.5 s"


def test_entries_of_ended_requests_do_not_pile_up() -> None:
    deadlines = Deadlines()
    resident = request(10**6, [1], [full()])
    resident.finish_by = 7e6
    deadlines.add(resident)
    for number in range(5000):
        guest = request(number, [1], [full()])
        guest.start_by, guest.finish_by = 1e6 + number, 2e6 + number
        deadlines.add(guest)
        deadlines.discard(guest)
    assert len(deadlines) == 1 and len(deadlines._heap) < 100
    assert deadlines.expired(6e6) == [] and deadlines.next == 7e6


@pytest.mark.parametrize("field", ["queue_timeout_s", "timeout_s", "weight"])
@pytest.mark.parametrize("value", [-1.0, MAX_TIMEOUT_S + 1, float("nan"), float("inf"), "1", True])
def test_times_and_weights_have_bounds(field: str, value: object) -> None:
    with pytest.raises(InvalidParams, match=f"^{field} must be a number"):
        NewRequest("a", (1,), **{field: value})  # type: ignore[arg-type]


def never_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deadlines, "expired", lambda *args: [])


def expire_early(patch: pytest.MonkeyPatch) -> None:
    original = Deadlines.expired
    patch.setattr(Deadlines, "expired", lambda self, now: original(self, now + 0.1))


def expire_who_has_started(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("headrace.core.request.Request.started", False)


def keep_the_blocks(patch: pytest.MonkeyPatch) -> None:
    """Who expires is dropped from the books without giving anything back."""
    patch.setattr(Scheduler, "expire", lambda self, now: self.deadlines.expired(now))


@pytest.mark.parametrize(
    ("plant", "failure"),
    [
        (never_expire, r"^deadlines: \d+ is still there"),
        (expire_early, r"ended with FinishReason.TIMEOUT, not"),
        (expire_who_has_started, r"ended with FinishReason.TIMEOUT, not"),
        (keep_the_blocks, r"^(reference counts|queues)"),
    ],
)
def test_planted_bugs_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Broken, match=failure):
        for seed in SEEDS:
            random_run(seed, MOVES)
