from __future__ import annotations

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest, Output, StepPlan, StepResult
from headrace.errors import EngineDead, InvalidParams, PromptTooLong
from headrace.serving.inprocess import InProcessClient
from headrace.serving.stepper import Stepper
from tests.serving.tiny_engine import CRASH, FAIL, TinyExecutor, tiny_engine


class FakeTime:
    """Stands still except when asked to sleep."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def client(**options: object) -> InProcessClient:
    return InProcessClient(tiny_engine(**options), TinyExecutor(), FakeTime())  # type: ignore[arg-type]


def drain(client: InProcessClient) -> list[Output]:
    outputs = []
    while client.has_work:
        outputs += client.step()
    return outputs


def tokens_of(outputs: list[Output], name: str) -> tuple[int, ...]:
    return tuple(token for output in outputs if output.request_id == name for token in output.tokens)


def test_requests_run_to_their_end() -> None:
    one = client()
    one.add(NewRequest("a", (1, 2, 3), SamplingParams(max_tokens=4)))
    one.add(NewRequest("b", (10,), SamplingParams(max_tokens=2)))
    outputs = drain(one)
    assert tokens_of(outputs, "a") == (4, 5, 6, 7)
    assert tokens_of(outputs, "b") == (11, 12)
    assert not one.has_work
    stats = one.stats()
    assert stats.free_blocks == stats.total_blocks


def test_refused_requests_leave_others_alone() -> None:
    one = client()
    one.add(NewRequest("a", (1,), SamplingParams(max_tokens=3)))
    with pytest.raises(PromptTooLong):
        one.add(NewRequest("b", (1,) * 600))
    with pytest.raises(InvalidParams):
        one.add(NewRequest("a", (1,)))
    one.add(NewRequest("c", (FAIL,)))
    outputs = drain(one)
    assert tokens_of(outputs, "a") == (2, 3, 4)
    assert [output.finish_reason for output in outputs if output.request_id == "c"] == [FinishReason.ERROR]


def test_aborts() -> None:
    one = client()
    one.add(NewRequest("a", (1,), SamplingParams(max_tokens=100)))
    one.step()
    one.abort("a", stopped=True)
    one.abort("nobody")
    (output,) = one.step()
    assert output.finish_reason is FinishReason.STOP
    drain(one)
    assert one.stats().free_blocks == one.stats().total_blocks


def test_an_executor_that_raises_ends_the_engine() -> None:
    one = client()
    one.add(NewRequest("a", (CRASH,)))
    with pytest.raises(EngineDead, match="the tiny executor crashed") as caught:
        one.step()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not one.has_work
    for refused in (one.step, lambda: one.add(NewRequest("b", (1,)))):
        with pytest.raises(EngineDead, match="the tiny executor crashed"):
            refused()
    one.abort("a")


def test_an_interrupt_stays_one_but_ends_the_engine() -> None:
    class Interrupted(TinyExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            raise KeyboardInterrupt

    one = InProcessClient(tiny_engine(), Interrupted(), FakeTime())
    one.add(NewRequest("a", (1,)))
    with pytest.raises(KeyboardInterrupt):
        one.step()
    with pytest.raises(EngineDead):
        one.step()


def test_waiting_for_a_batch_sleeps() -> None:
    time = FakeTime()
    one = InProcessClient(
        tiny_engine(batching="dynamic", batch_wait_s=0.25), TinyExecutor(), time, time.sleep
    )
    one.add(NewRequest("a", (1,), SamplingParams(max_tokens=2)))
    assert one.step() == []
    assert time.slept == [0.25]
    assert tokens_of(drain(one), "a") == (2, 3)
    assert time.slept == [0.25]


def test_a_scheduler_that_makes_no_progress_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    monkeypatch.setattr(engine, "begin", lambda now: StepPlan(1))
    monkeypatch.setattr(engine, "finish", lambda result, now: [])
    stepper = Stepper(engine, TinyExecutor(), FakeTime())
    with pytest.raises(EngineDead, match="granted nothing"):
        for _ in range(5000):
            stepper.step()
