from __future__ import annotations

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Pooling, StepPlan, StepResult
from headrace.errors import EngineDead, RequestError
from headrace.serving.client.inprocess import Call, InProcessClient
from headrace.serving.engine.stepper import Stepper
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
    return InProcessClient(tiny_engine(**options), TinyExecutor(), clock=FakeTime())  # type: ignore[arg-type]


def call(*requests: NewRequest, growing: bool = False) -> Call:
    return Call([(new, None) for new in requests], growing=growing)


def drain(client: InProcessClient, call: Call) -> dict[str, tuple[int, ...]]:
    while call.left:
        client.advance(call)
    call.closed = True
    return {name: result.outputs[0].token_ids for name, result in call.results.items()}


def is_idle(client: InProcessClient) -> bool:
    stats = client.stats()
    return stats.free_blocks == stats.total_blocks and not stats.running and not stats.waiting


def test_requests_run_to_their_end() -> None:
    one = client()
    both = call(
        NewRequest("a", (1, 2, 3), SamplingParams(max_tokens=4)),
        NewRequest("b", (10,), SamplingParams(max_tokens=2)),
    )
    assert drain(one, both) == {"a": (4, 5, 6, 7), "b": (11, 12)}
    assert both.num_tokens == 6
    assert is_idle(one)


def test_calls_run_together_and_each_gets_its_own() -> None:
    one = client()
    first, second = (call(NewRequest(name, (1,), SamplingParams(max_tokens=4))) for name in "ab")
    one.advance(first)
    assert drain(one, second) == {"b": (2, 3, 4, 5)}
    assert one.stats().scheduler.steps == 5  # the first one's four are among them
    assert drain(one, first) == {"a": (2, 3, 4, 5)}
    assert one.stats().scheduler.steps == 5
    assert is_idle(one)


def test_a_refused_call_affects_no_other_and_leaks_nothing() -> None:
    one = client()
    good = call(NewRequest("a", (1,), SamplingParams(max_tokens=3)))
    one.advance(good)
    for bad in (
        call(NewRequest("b", (1,)), NewRequest("c", (1,) * 600)),
        call(NewRequest("d", (1,)), NewRequest("a", (1,))),
        call(NewRequest("e", (1,), SamplingParams(stop=("x",)))),  # there is no tokenizer to look for it
    ):
        with pytest.raises(RequestError):
            one.advance(bad)
        bad.closed = True
    failing = call(NewRequest("f", (FAIL,)))
    drain(one, failing)
    assert failing.results["f"].outputs[0].finish_reason == "error"
    assert drain(one, good) == {"a": (2, 3, 4)}
    assert is_idle(one)


def test_a_closed_call_is_aborted_by_the_next_one() -> None:
    one = client()
    left, other = (call(NewRequest(name, (1,), SamplingParams(max_tokens=50))) for name in "ab")
    one.advance(left)
    assert one.stats().running == 1
    left.closed = True
    one.advance(other)
    assert one.stats().running == 1
    other.closed = True
    one.settle()
    assert is_idle(one)


def test_partial_results_come_after_each_step_that_adds() -> None:
    one = client(max_num_batched_tokens=4)
    grows = call(NewRequest("a", tuple(range(10)), SamplingParams(max_tokens=3)), growing=True)
    seen: list[int] = []
    while grows.left:
        one.advance(grows)
        seen.append(-1 if grows.partial is None else len(grows.partial.outputs[0].token_ids))
    assert seen == [-1, -1, 1, 2, -1]  # two steps of prompt alone, and the last token comes with the result


def test_embeddings_end_with_their_vector() -> None:
    one = client()
    asks = call(NewRequest("a", (1, 2, 3), SamplingParams(max_tokens=0), pooling=Pooling.LAST))
    assert drain(one, asks) == {}
    assert asks.pooled["a"].pooled is not None and asks.num_tokens == 3
    assert is_idle(one)


def test_an_executor_that_raises_ends_the_engine() -> None:
    one = client()
    bad, good = call(NewRequest("a", (CRASH,))), call(NewRequest("b", (1,)))
    with pytest.raises(EngineDead, match="the tiny executor crashed") as caught:
        one.advance(bad)
    assert isinstance(caught.value.__cause__, RuntimeError)
    bad.closed = True
    one.settle()
    with pytest.raises(EngineDead, match="the tiny executor crashed"):
        one.advance(good)


def test_waiting_for_a_batch_sleeps() -> None:
    time = FakeTime()
    one = InProcessClient(
        tiny_engine(batching="dynamic", batch_wait_s=0.25), TinyExecutor(), clock=time, sleep=time.sleep
    )
    waits = call(NewRequest("a", (1,), SamplingParams(max_tokens=2)))
    one.advance(waits)
    assert waits.num_tokens == 0 and time.slept == [0.25]
    assert drain(one, waits) == {"a": (2, 3)}
    assert time.slept == [0.25]


def test_a_finalizer_that_calls_the_model_in_a_step_is_refused() -> None:
    class Calls(TinyExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            one.stats()
            return super().execute(plan)

    one = InProcessClient(tiny_engine(), Calls())
    with pytest.raises(EngineDead, match="finalizer"):
        one.advance(call(NewRequest("a", (1,))))


def test_an_exception_in_another_thread_is_raised_and_ends_the_engine() -> None:
    """`PyThreadState_SetAsyncExc` cannot be held back as signals are."""

    class Interrupted(TinyExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            raise KeyboardInterrupt

    engine = tiny_engine()
    engine.add(NewRequest("a", (1,)), 0.0)
    stepper = Stepper(engine, Interrupted(), FakeTime())
    with pytest.raises(KeyboardInterrupt):
        stepper.step()
    with pytest.raises(EngineDead):
        stepper.step()


def test_a_scheduler_without_progress_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    monkeypatch.setattr(engine, "begin", lambda now: StepPlan(1))
    monkeypatch.setattr(engine, "finish", lambda result, now: [])
    stepper = Stepper(engine, TinyExecutor(), FakeTime())
    with pytest.raises(EngineDead, match="granted nothing"):
        for _ in range(5000):
            stepper.step()
