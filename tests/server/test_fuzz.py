"""Thousands of broken bodies: each is refused as a client error, reveals no internals, changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from headrace.errors import EngineDead, HeadraceError
from headrace.server.http import errors
from headrace.server.http.events import EventStream, EventWriter, event
from tests.server.conftest import ServeProcess, TinyServer
from tests.server.fuzz import BODIES, Case, cases
from tests.server.leaks import leaks
from tests.serving.tiny_engine import CRASH, FAIL

THREADS = 8
PROMPT = {"prompt": "Once upon a time there was", "temperature": 0.0, "max_tokens": 24, "logprobs": 1}


@dataclass(frozen=True)
class Verdict:
    case: Case
    status: int
    reported: str  # error text, in the body or in events


def post(client: httpx.Client, case: Case) -> Verdict:
    answer = client.post(case.path, content=case.raw, headers={"Content-Type": case.content_type})
    reported = answer.text if answer.status_code >= 400 else "\n".join(errors_in(answer.text))
    return Verdict(case, answer.status_code, reported)


def errors_in(stream: str) -> list[str]:
    """Events of a stream, or lines of JSON, that are errors."""
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith(("data: {", "{"))]
    return [line for line in lines if json.loads(line).get("error")]


def recorded(client: httpx.Client) -> object:
    answer = client.post("/v1/completions", json=PROMPT)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def faults(verdict: Verdict) -> list[str]:
    """What is wrong with an answer."""
    found = []
    if not (verdict.status == 200 or 400 <= verdict.status < 500):
        found.append(f"status {verdict.status}")
    if '"internal_error"' in verdict.reported or '"engine_dead"' in verdict.reported:
        found.append("a failure of the server")
    # What a caller sent may be quoted; none of the bodies holds anything that resembles internals.
    found += leaks(verdict.reported)
    if verdict.status >= 400:
        try:
            error = json.loads(verdict.reported)["error"]
            if verdict.case.path.startswith("/api/"):  # Ollama's form
                error = {"message": error, "type": "any"}
            if not (isinstance(error["message"], str) and error["message"] and error["type"]):
                found.append("an error without words")
        except (ValueError, KeyError, TypeError):
            found.append("an error in another shape")
    return found


def test_every_route_that_takes_a_body_is_fuzzed(tiny: TinyServer) -> None:
    routes = {path for path, methods in tiny.app.openapi()["paths"].items() if "post" in methods}
    assert routes == set(BODIES)


@pytest.mark.parametrize("count", [800, pytest.param(10_000, marks=pytest.mark.long)])
def test_broken_bodies_are_client_errors(tale: ServeProcess, count: int) -> None:
    engine = tale.descendants()
    with httpx.Client(base_url=tale.url, timeout=60) as client:
        before = recorded(client)
        with ThreadPoolExecutor(THREADS) as pool:
            verdicts = list(pool.map(lambda case: post(client, case), cases(count, seed=4)))
        after = recorded(client)
    wrong = [
        f"{verdict.case.path} #{verdict.case.number} {verdict.case.raw[:300]!r}: {found} {verdict.reported[:300]}"
        for verdict in verdicts
        if (found := faults(verdict))
    ]
    assert wrong == [], f"{len(wrong)} answers:\n" + "\n".join(wrong[:20])
    statuses = Counter(verdict.status for verdict in verdicts)
    assert statuses[200] > count // 20, statuses  # changes that leave a body valid are part of the work
    assert statuses[400] > count // 3, statuses
    assert after == before
    assert tale.descendants() == engine


@pytest.mark.parametrize(
    "reported",
    [
        "cannot read /home/somebody/model.safetensors",
        "File \"engine.py\", line 3, in step",
        "<object at 0x7f3a2b1c4d50>",
        "Traceback (most recent call last)",
        "KeyError: 'tokens'",
        "headrace.core.engine said no",
    ],
)  # fmt: skip
def test_the_check_finds_a_planted_leak(reported: str) -> None:
    body = json.dumps(errors.error_body(reported, 400))
    assert faults(Verdict(Case(0, "/", b""), 400, body))


def test_the_check_finds_planted_failures() -> None:
    case = Case(0, "/", b"")
    assert faults(Verdict(case, 500, json.dumps(errors.error_body("no", 500))))
    assert faults(Verdict(case, 400, "no"))
    assert faults(Verdict(case, 200, json.dumps(errors.error_body("no", 500, "internal_error"))))
    assert not faults(Verdict(case, 400, json.dumps(errors.error_body("max_tokens must be at least 1", 400))))


INSIDE = "the file /home/somebody/secret.py failed at 0x7f3a2b1c4d50"


@pytest.mark.parametrize("error", [RuntimeError(INSIDE), HeadraceError(INSIDE), EngineDead(INSIDE)])
@pytest.mark.parametrize("streamed", [False, True])
def test_server_errors_reveal_no_internals(error: Exception, streamed: bool) -> None:
    """Planted in a route of an app that answers errors as ours does."""
    app = FastAPI()
    errors.install(app)

    class Failing:
        """A source that fails after its first item."""

        waiting, exhausted = True, False
        items = iter([[1]])

        def listen(self, call: Callable[[], None] | None) -> None:
            if call is not None:
                call()

        def take(self) -> list[int]:
            for items in self.items:
                return items
            raise error

    class Chunks(EventWriter[int]):
        def write(self, item: int) -> bytes:
            return event({"choices": [item]})

    @app.get("/planted")
    async def planted() -> EventStream:
        if streamed:
            return EventStream(Failing(), Chunks(), lambda: None)
        raise error

    answer = TestClient(app, raise_server_exceptions=False).get("/planted")
    assert '"error"' in answer.text
    assert leaks(answer.text) == []


def test_engine_errors_reveal_no_internals(doomed: TinyServer) -> None:
    failed = doomed.http.post("/v1/completions", json={"prompt": [FAIL], "max_tokens": 2})
    assert failed.status_code == 500 and leaks(failed.text) == [], failed.text
    crashed = doomed.http.post("/v1/completions", json={"prompt": [CRASH], "max_tokens": 2})
    assert crashed.status_code == 503 and leaks(crashed.text) == [], crashed.text
    assert "tiny executor" not in crashed.text  # the words of an exception
    later = doomed.http.post("/v1/completions", json={"prompt": [5], "max_tokens": 2})
    assert later.status_code == 503 and leaks(later.text) == [], later.text
    assert "tiny executor" not in later.text + doomed.http.get("/health").text
