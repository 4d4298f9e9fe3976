"""Every field at its bound, and one beyond it; nothing that is a number, a list or a text may be without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

from headrace.server.http.body import COSTS, MAX_BODY_BYTES, MAX_WORK
from headrace.server.openai.schemas import CompletionRequest
from headrace.server.requests.fields import MAX_PROMPT_TOKENS, checked_prompts
from tests.server.bounds import Case, Node, bodies, cases, unbounded
from tests.server.conftest import TinyServer
from tests.server.hand_bounds import BEYOND, TOO_LONG, WITHIN
from tests.waiting import until

BASE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [1], "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/embeddings": {"input": [1]},
    "/api/chat": {
        "messages": [{"role": "user", "content": "a"}],
        "options": {"num_predict": 2},
        "stream": False,
    },
    "/api/generate": {"prompt": "a", "options": {"num_predict": 2}, "stream": False},
    "/api/embed": {"input": "a"},
    "/api/embeddings": {"prompt": "a"},
    "/api/show": {"model": "tiny"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}
BESIDE: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "messages": {"prompt": None}}
"""Other fields that a field needs to be validated."""

OTHER = {
    "model": "the model '",
    "n": "running or waiting|n other than 1",
    "best_of": "best_of other than n",
    "prompt": "running or waiting|the model's vocabulary",
    "input": "running or waiting|the model's vocabulary",
    "messages": "characters, but the context",
    "max_tokens": "the context holds|with echo only",
    "max_completion_tokens": "the context holds",
    "max_output_tokens": "the context holds",
    "min_tokens": "greater than max_tokens",
    "logit_bias": "the vocabulary has",
    "stop_token_ids": "the vocabulary has",
    "allowed_token_ids": "the vocabulary has",
    "tokens": "vocabulary of",
    "dimensions": "dimensions",
    "options": "the context holds",
    "keep_alive": "a duration such as",
    "previous_response_id": "there is no response",
    "thinking": r"thinking\.type is missing",
    "queue_timeout": "within 0 s|waited for 0 s",
    "timeout": "within 0 s|waited for 0 s",
}
"""Why else a value within a field's bounds may be refused by this server, with its 64 places, 512 tokens of context and
a vocabulary of 2048."""

ALSO = {"input": "the prompt is empty"}
"""What a field is called elsewhere."""

NO_GRAMMARS = "does not support grammars"

MOST_ITEMS = MAX_WORK // COSTS[","] // 2
"""Much longer lists are more than a body may hold; there is a test of that."""

NAMES = {"/v1/models/{name}", "/page/{name}", "/v1/responses/{response_id}"}
"""Routes that end in a name, which is looked up, and is no longer than the head of a request may be."""


@pytest.fixture(scope="module")
def roomy() -> Iterator[TinyServer]:
    """A server that takes bodies as large as a real one does."""
    server = TinyServer(max_body_bytes=MAX_BODY_BYTES, step_s=0.0)
    yield server
    server.close()


def ask(server: TinyServer, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    # NaN and infinities go as Python and some other clients write them.
    answer = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    if answer.status_code == 429:
        until(lambda: server.idle)  # those that had been accepted are taken back
    error = answer.json().get("error") or {}
    return answer.status_code, {"message": error} if isinstance(error, str) else error


def known(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Those of the fields that a body of this path may have: the same ones are tried on several paths."""
    foreign = ("messages", "logprobs") if path == "/v1/responses" else ()
    return {name: value for name, value in fields.items() if name not in foreign}


def faults(server: TinyServer, path: str, tried: Iterable[Case]) -> list[str]:
    """What a server gets wrong about values at their bounds, and beyond."""
    found = []
    for case in tried:
        if isinstance(case.value, list) and len(case.value) > MOST_ITEMS:
            continue
        status, error = ask(
            server, path, case.put_into({**BASE[path], **known(path, BESIDE.get(case.field, {}))})
        )
        message = str(error.get("message", ""))
        if case.allowed:
            other = OTHER.get(case.field)
            if status != 200 and not (other and status in (400, 404, 429, 504) and re.search(other, message)):
                found.append(f"{path} {case} is refused: {status} {message[:200]}")
        elif status != 400:
            found.append(f"{path} {case} is not refused: {status} {message[:200]}")
        elif error.get("param") != case.field and not re.search(
            f"{case.field}|{ALSO.get(case.field, '$^')}", message
        ):
            found.append(f"{path} {case} is refused without its name: {message[:200]}")
    return found


MANY = ("/v1/completions",)
"""Every third value is tried of these in the usual run: most fields of the others are checked by the same code."""


@pytest.mark.parametrize(
    ("path", "share"),
    [(path, 3 if path in MANY else 10) for path in BASE]
    + [pytest.param(path, 1, marks=pytest.mark.long) for path in BASE],
)
def test_values_at_bounds_and_beyond(roomy: TinyServer, path: str, share: int) -> None:
    """One value of `share`."""
    tried = list(cases(bodies(roomy.app)[path]))
    assert len(tried) >= 4
    assert faults(roomy, path, tried[::share]) == []
    until(lambda: roomy.idle)


def test_every_body_is_tried(roomy: TinyServer) -> None:
    assert set(bodies(roomy.app)) == set(BASE)


def test_longer_lists_than_a_body_holds() -> None:
    assert COSTS[","] * MAX_PROMPT_TOKENS >= MAX_WORK
    with pytest.raises(ValueError, match="at most"):
        checked_prompts([1] * (MAX_PROMPT_TOKENS + 1))


# ---- What no schema bounds ----


def by_hand(path: str, server: TinyServer) -> list[str]:
    return sorted(unbounded(bodies(server.app)[path]))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path in ("/v1/responses",) else pytest.mark.long) for path in BASE],
)
def test_explicitly_bounded_fields(roomy: TinyServer, path: str) -> None:
    for name in by_hand(path, roomy):
        for fields in WITHIN.get(f"{path} {name}", WITHIN.get(name, [])):
            status, error = ask(roomy, path, BASE[path] | known(path, fields))
            message = str(error.get("message"))
            assert status == 200 or (
                status in (400, 429) and re.search(f"{NO_GRAMMARS}|{TOO_LONG}|context holds", message)
            ), (path, name, message[:300])
        for fields, words in BEYOND.get(f"{path} {name}", BEYOND.get(name, ())):
            status, error = ask(roomy, path, BASE[path] | known(path, fields))
            assert status == 400 and re.search(words, error["message"]), (path, name, status, error)
    until(lambda: roomy.idle)


def forgotten(app: FastAPI) -> set[str]:
    """Fields of all bodies that no schema bounds and no test knows, and such parameters of all routes."""
    found = {
        f"{path} {name}"
        for path, model in bodies(app).items()
        for name in unbounded(model)
        if not BEYOND.get(f"{path} {name}", BEYOND.get(name))
    }
    for path, methods in get_openapi(title="x", version="x", routes=app.routes)["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if path not in NAMES and not Node(("",), parameter["schema"]).bounded:
                    found.add(f"{path} ?{parameter['name']}")
    return found


def test_every_field_is_bounded(roomy: TinyServer) -> None:
    assert forgotten(roomy.app) == set()
    known = {name.rpartition(" ")[2] for name in BEYOND}
    assert known == {name for path in BASE for name in by_hand(path, roomy)}
    assert {name.rpartition(" ")[2] for name in WITHIN} <= known


# ---- Planted faults ----


class Planted(CompletionRequest):
    """Numbers, lists and objects without a bound, and one with a bound."""

    limit: int | None = None
    least: Annotated[int, Field(ge=0)] | None = None
    weight: float | None = None
    values: list[bool] | None = None
    deep: dict[str, Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(max_length=3)]] | None = None
    said: str | None = None
    whatever: Any = None
    fine: Annotated[list[bool], Field(max_length=4)] | None = None


def test_fields_without_a_bound_are_found() -> None:
    app = FastAPI()

    @app.post("/planted")
    async def planted(body: Planted, count: int = 1) -> None: ...

    names = ("limit", "least", "weight", "values", "deep", "said", "whatever", "?count")
    assert forgotten(app) == {f"/planted {name}" for name in names}


class Lower(BaseModel):
    """Says less than the server allows."""

    temperature: Annotated[float, Field(ge=0, le=50)]


class Higher(BaseModel):
    """Says more."""

    stop: Annotated[list[Annotated[str, Field(max_length=5)]], Field(max_length=65)]


def test_bounds_that_are_not_kept_are_found(roomy: TinyServer) -> None:
    (taken,) = faults(roomy, "/v1/completions", cases(Lower))
    assert "is not refused: 200" in taken
    lists = [case for case in cases(Higher) if isinstance(case.value, list) and len(case.value) > 1]
    assert ["is refused" in fault for fault in faults(roomy, "/v1/completions", lists)] == [True]
