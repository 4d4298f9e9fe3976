"""Responses that are stored: going on from them, fetching and deleting them, each key its own, within a bound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.errors import ResponseNotFound
from headrace.server.access.key_file import KeySources
from headrace.server.access.keys import Caller
from headrace.server.access.traffic import Rules, TrafficOptions
from headrace.server.openai.responses.store import MAX_ENTRY_BYTES, ResponseStore, StoredItems, StoredResponse
from tests.server.conftest import TinyServer
from tests.server.echo import echo, echo_server
from tests.server.keyring import keyed, secret
from tests.server.openai.test_responses import ARGUMENTS, CALLS, NOW, WEATHER

__all__ = ["echo"]  # a fixture


def test_a_response_continues_another(echo: TinyServer) -> None:
    create = echo.openai.responses.create
    first = create(model="tiny", input="My name is Ann.", instructions="Be brief.")
    second = create(model="tiny", input="And my cat?", previous_response_id=first.id)
    third = create(
        model="tiny", input=[{"role": "user", "content": "Thanks."}], previous_response_id=second.id
    )
    assert (second.output_text, third.output_text) == ("And my cat?", "Thanks.")
    assert (first.previous_response_id, second.previous_response_id) == (None, first.id)
    said = ["My name is Ann.", "And my cat?", "Thanks."]  # the model repeats the user's message
    turns = [{"role": role, "content": text} for text in said for role in ("user", "assistant")]
    whole = create(model="tiny", input=turns[:-1])  # type: ignore[arg-type]
    assert third.usage is not None and whole.usage is not None
    # Instructions are not carried over, as in OpenAI's API.
    assert third.usage.input_tokens == whole.usage.input_tokens


@pytest.mark.parametrize("stream", [True, False])
def test_results_of_calls_continue_the_calls(echo: TinyServer, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": f"I look. {CALLS}", "tools": [WEATHER, NOW]}
    if stream:
        first = list(echo.openai.responses.create(**asked, stream=True))[-1].response
    else:
        first = echo.openai.responses.create(**asked)
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == [ARGUMENTS, "{}"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    second = echo.openai.responses.create(
        model="tiny", previous_response_id=first.id, tools=[WEATHER, NOW],  # type: ignore[list-item]
        input=[*results, {"role": "user", "content": "So it rains."}],  # type: ignore[list-item]
    )  # fmt: skip
    written = [
        {"role": "user", "content": asked["input"]},
        *(item.to_dict() for item in first.output),
        *results,
    ]
    whole = echo.openai.responses.create(
        model="tiny", tools=[WEATHER, NOW], input=[*written, {"role": "user", "content": "So it rains."}],  # type: ignore[list-item]
    )  # fmt: skip
    assert second.output_text == whole.output_text == "So it rains."
    assert second.usage is not None and whole.usage is not None
    assert second.usage.input_tokens == whole.usage.input_tokens


def test_fetched_and_deleted(echo: TinyServer) -> None:
    answer = echo.openai.responses.create(model="tiny", input="Hi", metadata={"a": "b"})
    assert answer.to_dict()["store"] is True
    assert echo.openai.responses.retrieve(answer.id) == answer
    with echo.openai.responses.stream(model="tiny", input="Hi") as stream:
        streamed = stream.get_final_response()
    fetched = echo.openai.responses.retrieve(streamed.id)
    assert (fetched.output_text, fetched.usage) == (streamed.output_text, streamed.usage)
    echo.openai.responses.delete(answer.id)
    for lost in (answer.id, "resp_none", "x" * 2000):
        with pytest.raises(openai.NotFoundError):
            echo.openai.responses.retrieve(lost)
        with pytest.raises(openai.NotFoundError):
            echo.openai.responses.delete(lost)
    with pytest.raises(openai.BadRequestError) as refused:
        echo.openai.responses.create(model="tiny", input="Hi", previous_response_id=answer.id)
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError):
        list(echo.openai.responses.retrieve(streamed.id, stream=True))


def test_store_false_is_obeyed(echo: TinyServer) -> None:
    first = echo.openai.responses.create(model="tiny", input="Hi")
    second = echo.openai.responses.create(
        model="tiny", input="Ho", store=False, previous_response_id=first.id
    )
    assert second.to_dict()["store"] is False and second.output_text == "Ho"
    with pytest.raises(openai.NotFoundError):
        echo.openai.responses.retrieve(second.id)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    traffic = keyed(Caller("ann"), Caller("bob"))
    server = echo_server(tmp_path_factory.mktemp("keys") / "model", "hermes", traffic=traffic)
    yield server
    server.close()


def test_a_response_belongs_to_its_key(shared: TinyServer) -> None:
    ann, bob = (shared.openai.with_options(api_key=secret(name)) for name in ("ann", "bob"))
    mine = ann.responses.create(model="tiny", input="A secret.")
    for status, attempt in (
        (404, lambda: bob.responses.retrieve(mine.id)),
        (404, lambda: bob.responses.delete(mine.id)),
        (400, lambda: bob.responses.create(model="tiny", input="What?", previous_response_id=mine.id)),
    ):
        with pytest.raises(openai.APIStatusError, match="there is no response") as refused:
            attempt()
        assert refused.value.status_code == status
    assert ann.responses.retrieve(mine.id).output_text == "A secret."


def test_the_responses_of_a_removed_key_are_deleted(tmp_path: Path) -> None:
    """A key of the same name that is added later is another owner's."""
    file = tmp_path / "keys.json"

    def write(**keys: str) -> None:
        file.write_text(json.dumps({"keys": [{"name": name, "key": secret(keys[name])} for name in keys]}))

    async def reload() -> None:
        server.traffic.reload()

    write(ann="ann", bob="bob")
    traffic = TrafficOptions(rules=Rules(KeySources(file=file)))
    server = echo_server(tmp_path / "model", "hermes", traffic=traffic)
    try:
        ann, bob, new = (server.openai.with_options(api_key=secret(name)) for name in ("ann", "bob", "new"))
        kept = bob.responses.create(model="tiny", input="Bob's.")
        mine = ann.responses.create(model="tiny", input="A secret.")
        write(ann="new", bob="bob")  # one step: ann's key is changed
        server.call(reload())
        assert new.responses.retrieve(mine.id).output_text == "A secret."
        running = iter(new.responses.create(model="tiny", input="Late. " * 100, stream=True))
        begun = next(running)
        assert begun.type == "response.created"
        write(bob="bob")
        server.call(reload())
        *_, last = running
        assert last.type == "response.completed" and last.response.to_dict()["store"] is False
        write(ann="ann", bob="bob")
        server.call(reload())
        for lost in (mine.id, begun.response.id):
            with pytest.raises(openai.NotFoundError):
                ann.responses.retrieve(lost)
        assert bob.responses.retrieve(kept.id).output_text == "Bob's."
    finally:
        server.close()


# ---- The store ----


def entry(name: str, size: int) -> StoredResponse:
    return StoredResponse(name, b"x" * (size - 10), StoredItems((b"y" * 10,)))


def test_the_store_is_bounded_and_fair() -> None:
    store = ResponseStore(1000)
    for number in range(3):
        assert store.put("ann", entry(f"a{number}", 100))
    for number in range(50):  # a flood of bob's
        assert store.put("bob", entry(f"b{number}", 100))
    assert store.size == 1000
    assert [store.get("ann", f"a{number}").id for number in range(3)] == ["a0", "a1", "a2"]
    assert store.get("bob", "b49").size == 100
    with pytest.raises(ResponseNotFound):
        store.get("bob", "b0")
    assert not store.put("bob", entry("large", 1001)) and store.size == 1000
    store.delete("ann", "a0")
    assert store.size == 900
    assert not ResponseStore(MAX_ENTRY_BYTES * 2).put("ann", entry("large", MAX_ENTRY_BYTES + 1))


def test_the_most_recently_used_response_stays() -> None:
    store = ResponseStore(300)
    for name in ("a", "b", "c"):
        store.put("ann", entry(name, 100))
    store.get("ann", "a")
    store.put("ann", entry("d", 100))
    assert store.get("ann", "a").id == "a"
    with pytest.raises(ResponseNotFound):
        store.get("ann", "b")


def test_a_server_without_a_store_reports_it(echo: TinyServer) -> None:
    state = echo.app.state
    kept = state.responses
    state.responses = ResponseStore(0)
    try:
        answer = echo.openai.responses.create(model="tiny", input="Hi", store=True)
        assert answer.to_dict()["store"] is False
        with pytest.raises(openai.BadRequestError, match="stores no responses"):
            echo.openai.responses.create(model="tiny", input="Hi", previous_response_id=answer.id)
        state.responses = ResponseStore(100)  # too small for any
        events = list(echo.openai.responses.create(model="tiny", input="Hi", stream=True))
        assert events[-1].response.to_dict()["store"] is False  # type: ignore[union-attr]
    finally:
        state.responses = kept
