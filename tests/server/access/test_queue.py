"""The bounded queue and deadlines, over HTTP: refusals, Retry-After, and timeouts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from headrace.core.types import MAX_TIMEOUT_S
from headrace.server.access.keys import Caller
from headrace.server.requests.gate import Reservation
from tests.server.conftest import TinyServer
from tests.server.keyring import code, complete, keyed
from tests.serving.tiny_engine import FAIL
from tests.waiting import until

SLOW = {"step_s": 0.01, "max_num_seqs": 1}  # one request at a time, a hundred tokens a second


def start(server: TinyServer, count: int = 1, **body: Any) -> list[threading.Thread]:
    """Requests that run in threads; returns once all of them are at the engine."""
    held = server.stats()
    before = held.running + held.waiting
    threads = [threading.Thread(target=complete, args=(server,), kwargs=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: (stats := server.stats()).running + stats.waiting == before + count)
    return threads


def events(answer: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def bounded() -> Iterator[TinyServer]:
    server = TinyServer(traffic=keyed(max_queue=8, max_queue_tokens=500), **SLOW)
    yield server
    server.close()


def test_a_full_queue_answers_429_with_retry_after(bounded: TinyServer) -> None:
    threads = start(bounded, 4, prompt=[1] * 50, max_tokens=90)
    answer = complete(bounded, prompt=[1] * 100, max_tokens=1)
    assert code(answer) == (429, "overloaded") and 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert code(complete(bounded, prompt=[[1]] * 5, max_tokens=1)) == (429, "overloaded")
    # There is room for a small one.
    assert complete(bounded, prompt=[1] * 10, max_tokens=5).status_code == 200
    for thread in threads:
        thread.join()
    admission = bounded.traffic.admission
    assert admission is not None and (admission.completions, admission.tokens) == (0, 0)


@pytest.mark.parametrize(
    "body", [{"prompt": [[1]] * 9}, {"n": 9}, {"prompt": [[1] * 251] * 2, "max_tokens": 1}, {"prompt": [[1] * 300] * 2}]
)  # fmt: skip
def test_a_request_that_can_never_fit_gets_400(bounded: TinyServer, body: dict[str, Any]) -> None:
    answer = complete(bounded, **body)
    assert code(answer) == (400, "invalid_params")
    assert "no more than" in answer.json()["error"]["message"]


def test_all_prompts_of_a_request_are_taken_or_none(bounded: TinyServer) -> None:
    threads = start(bounded, 5, max_tokens=90)
    steps = bounded.stats().scheduler.output_tokens
    assert code(complete(bounded, prompt=[[1], [2], [3], [4]], max_tokens=1)) == (429, "overloaded")
    assert bounded.stats().waiting <= 4 and bounded.stats().scheduler.output_tokens < steps + 100
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("how", ["refused by the engine", "left", "failed"])
def test_the_queue_releases_disconnected_requests(bounded: TinyServer, how: str) -> None:
    if how == "refused by the engine":
        assert complete(bounded, prompt=[5000]).status_code == 400
        assert complete(bounded, prompt=[[1], [5000], [2]]).status_code == 400
    elif how == "failed":
        assert complete(bounded, prompt=[FAIL]).status_code == 500
    else:
        with pytest.raises(httpx.ReadTimeout):
            bounded.http.post("/v1/completions", json={"prompt": [1], "max_tokens": 200, "n": 2}, timeout=0.2)
    until(lambda: bounded.idle)
    admission = bounded.traffic.admission
    assert admission is not None and (admission.completions, admission.tokens) == (0, 0)


def test_a_gate_that_leaks_is_noticed(bounded: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reservation, "release", lambda *args: None)
    with pytest.raises(AssertionError):
        test_the_queue_releases_disconnected_requests(bounded, "failed")
    admission = bounded.traffic.admission
    assert admission is not None
    admission.completions = admission.tokens = 0


# ---- Deadlines ----


@pytest.fixture(scope="module")
def patient() -> Iterator[TinyServer]:
    server = TinyServer(**SLOW)
    yield server
    server.close()


def test_a_request_that_waits_too_long_gets_504(patient: TinyServer) -> None:
    threads = start(patient, max_tokens=300)
    with pytest.raises(openai.InternalServerError) as caught:
        patient.openai.completions.create(
            model="tiny", prompt=[1], max_tokens=5, extra_body={"queue_timeout": 0.2}
        )
    assert caught.value.status_code == 504 and caught.value.code == "deadline_exceeded"
    assert "waited for 0.2 s without being scheduled" in caught.value.message
    stats = patient.stats()
    assert (stats.running, stats.waiting) == (1, 0)  # its place was still taken
    for thread in threads:
        thread.join()


def test_a_request_that_runs_too_long_gets_504_and_frees_its_blocks(patient: TinyServer) -> None:
    before = patient.stats().scheduler.output_tokens
    answer = complete(patient, max_tokens=400, timeout=0.3)
    assert code(answer) == (504, "deadline_exceeded") and "within 0.3 s" in answer.text
    assert patient.stats().scheduler.output_tokens - before < 400
    assert patient.idle  # in the very step that ended it


def test_a_stream_that_runs_too_long_ends_with_an_error_event(patient: TinyServer) -> None:
    chunks = events(complete(patient, max_tokens=400, timeout=0.3, stream=True))
    assert len(chunks) > 5 and chunks[-1]["error"]["code"] == "deadline_exceeded"
    assert all("choices" in chunk for chunk in chunks[:-1])
    with pytest.raises(openai.APIError, match="did not end within"):
        list(
            patient.openai.completions.create(
                model="tiny", prompt=[1], max_tokens=400, stream=True, extra_body={"timeout": 0.2}
            )
        )
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 300, "timeout": 0.2}
    assert code(patient.http.post("/v1/chat/completions", json=chat)) == (504, "deadline_exceeded")
    assert patient.idle


def test_timeouts_that_do_not_expire_change_nothing(patient: TinyServer) -> None:
    answer = complete(patient, max_tokens=5, timeout=20, queue_timeout=20)
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("field", ["timeout", "queue_timeout"])
@pytest.mark.parametrize("value", [-0.1, MAX_TIMEOUT_S + 1, "1", True, float("nan"), float("inf")])
def test_times_have_bounds(patient: TinyServer, field: str, value: object) -> None:
    body = json.dumps({"prompt": [1], field: value}).encode()
    answer = patient.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and field in answer.json()["error"]["message"]


def test_the_servers_timeouts_apply_to_all_requests() -> None:
    rules = {"queue_timeout_s": 0.2, "request_timeout_s": 0.5}
    server = TinyServer(traffic=keyed(rules=rules), **SLOW)
    try:
        assert code(complete(server, max_tokens=400, timeout=3600.0))[0] == 504
        assert server.stats().scheduler.output_tokens < 400
        threads = start(server, max_tokens=400)
        assert code(complete(server, queue_timeout=3600.0)) == (504, "deadline_exceeded")
        for thread in threads:
            thread.join()
        assert server.idle
    finally:
        server.close()


# ---- Priorities ----


def order_of_ends(server: TinyServer, bodies: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Names in the order in which their answers came; each is sent when the one before has arrived at the engine."""
    ended: list[str] = []

    def one(name: str, body: dict[str, Any]) -> None:
        key = body.pop("key", "")
        assert complete(server, key, **{"max_tokens": 25} | body).status_code == 200
        ended.append(name)

    threads = []
    for number, (name, body) in enumerate(bodies, 1):
        threads.append(threading.Thread(target=one, args=(name, body)))
        threads[-1].start()
        until(lambda number=number: (s := server.stats()).running + s.waiting + len(ended) >= number)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    return ended


QUEUE: list[tuple[str, dict[str, Any]]] = [
    ("first", {"max_tokens": 100}), ("second", {}), ("third", {}), ("background", {"priority": "background"}),
    ("urgent", {"priority": -5}), ("most urgent", {"priority": "urgent"}),
]  # fmt: skip


def test_a_late_urgent_request_overtakes_the_queue() -> None:
    server = TinyServer(order="priority", **SLOW)
    try:
        ended = order_of_ends(server, [(name, dict(body)) for name, body in QUEUE])
        assert ended == ["first", "most urgent", "urgent", "second", "third", "background"]
    finally:
        server.close()


def test_under_fcfs_no_request_overtakes(patient: TinyServer) -> None:
    assert order_of_ends(patient, [(name, dict(body)) for name, body in QUEUE]) == [name for name, _ in QUEUE]


def test_a_key_may_use_priorities_up_to_its_own() -> None:
    callers = Caller("low", max_priority=10), Caller("normal"), Caller("any", max_priority=None)
    server = TinyServer(traffic=keyed(*callers), order="priority")
    try:
        for name, priority, allowed in [
            ("low", 10, True), ("low", "background", True), ("low", 9, False), ("low", None, False),
            ("normal", 0, True), ("normal", None, True), ("normal", -1, False), ("normal", "urgent", False),
            ("any", -(2**31) + 1, True),
        ]:  # fmt: skip
            answer = complete(server, name, priority=priority)
            assert code(answer) == ((200, None) if allowed else (403, "not_permitted")), (name, priority)
        assert server.traffic.usage.of("normal").refused == {"not_permitted": 2}
    finally:
        server.close()


def test_unknown_priority_classes_are_refused(tiny: TinyServer) -> None:
    answer = complete(tiny, priority="first")
    assert answer.status_code == 400 and "urgent, normal, background" in answer.json()["error"]["message"]
