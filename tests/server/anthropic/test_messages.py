"""/v1/messages with Anthropic's official client; the model says what the test has it say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from headrace.errors import InvalidParams
from headrace.server.access.keys import Caller
from headrace.server.anthropic.conversation import chat_messages
from tests import needs
from tests.server.conftest import ServeProcess, TinyServer
from tests.server.echo import echo, echo_server
from tests.server.keyring import keyed, secret

__all__ = ["echo"]  # a fixture

anthropic = needs.lazily("anthropic")

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {"name": "weather", "description": "The weather", "input_schema": SCHEMA}
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object"}}
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
THOUGHT = f"<think>Hm.</think>I look. {CALLS}"
THINKING: dict[str, Any] = {"type": "enabled", "budget_tokens": 1024}


def client_of(server: TinyServer | ServeProcess, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0, timeout=30)


@pytest.fixture
def client(echo: TinyServer) -> Iterator[anthropic.Anthropic]:
    with client_of(echo) as made:
        yield made


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 500, "messages": [{"role": "user", "content": text}]} | more


# ---- Whole answers ----


def test_text(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**said("Hello ü", system="Be brief."))
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "tiny")
    assert answer.id.startswith("msg_") and answer._request_id
    (block,) = answer.content
    assert block.type == "text" and block.text == "Hello ü"
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0


def test_lengths_and_stop_sequences(client: anthropic.Anthropic) -> None:
    short = client.messages.create(**said("one two three four five", max_tokens=2))
    assert (short.stop_reason, short.usage.output_tokens) == ("max_tokens", 2)
    stopped = client.messages.create(**said("one two three four", stop_sequences=["three", "nine"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "three")
    assert stopped.content[0].text == "one two "  # type: ignore[union-attr]
    assert client.messages.create(**said("")).content == []


def test_calls_and_their_results(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**said(THOUGHT, tools=[WEATHER, NOW], thinking=THINKING))
    thinking, text, weather, now = first.content
    assert thinking.type == "thinking" and thinking.thinking == "Hm."
    assert text.type == "text" and text.text == "I look."
    assert weather.type == "tool_use" and (weather.name, weather.input) == ("weather", {"city": "Oslo"})
    assert now.type == "tool_use" and (now.name, now.input) == ("now", {})
    assert first.stop_reason == "tool_use" and weather.id != now.id
    results = [
        {"type": "tool_result", "tool_use_id": weather.id, "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": now.id, "content": "late", "is_error": True},
        {"type": "text", "text": "So it rains."},
    ]
    conversation = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": results},
    ]
    second = client.messages.create(model="tiny", max_tokens=50, messages=conversation, tools=[WEATHER, NOW])  # type: ignore[arg-type, list-item]
    assert second.content[0].text == "So it rains."  # type: ignore[union-attr]
    assert chat_messages(conversation, [{"type": "text", "text": "Be brief."}]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": weather.id, "type": "function",
                 "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
                {"id": now.id, "type": "function", "function": {"name": "now", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": weather.id, "content": "rain"},
        {"role": "tool", "tool_call_id": now.id, "content": "Error: late"},
        {"role": "user", "content": [{"type": "text", "text": "So it rains."}]},
    ]  # fmt: skip


def test_thinking_is_returned_on_request(client: anthropic.Anthropic) -> None:
    plain = client.messages.create(**said(THOUGHT))
    assert [block.type for block in plain.content] == ["text"]
    asked = client.messages.create(**said("<think>Hm.</think>Yes.", thinking={"type": "adaptive"}))
    assert [block.type for block in asked.content] == ["thinking", "text"]


def test_one_call_at_most(client: anthropic.Anthropic) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    answer = client.messages.create(**said(CALLS, tools=[WEATHER, NOW], tool_choice=choice))
    assert [block.type for block in answer.content] == ["tool_use"]
    none = client.messages.create(**said(CALLS, tools=[WEATHER, NOW], tool_choice={"type": "none"}))
    assert [block.type for block in none.content] == ["text"]


def test_a_last_message_of_the_assistant_is_continued(client: anthropic.Anthropic) -> None:
    turns = [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "zero"}]
    asked: dict[str, Any] = {"model": "tiny", "messages": turns}
    counted = client.messages.count_tokens(**asked).input_tokens
    assert client.messages.create(**asked, max_tokens=2).usage.input_tokens == counted
    whole = client.messages.count_tokens(model="tiny", messages=turns[:1])  # type: ignore[arg-type]
    zero = client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": "zero"}])
    empty = client.messages.count_tokens(model="tiny", messages=[{"role": "user", "content": ""}])
    # The turn is open: nothing follows its text.
    assert counted == whole.input_tokens + zero.input_tokens - empty.input_tokens


# ---- Streams ----


SEQUENCE = [
    "message_start", "ping",
    "content_block_start", "content_block_delta", "content_block_stop",
    "content_block_start", "content_block_delta", "content_block_stop",
    "content_block_start", "content_block_delta", "content_block_stop",
    "content_block_start", "content_block_delta", "content_block_stop",
    "message_delta", "message_stop",
]  # fmt: skip


def test_the_wire(echo: TinyServer) -> None:
    body = said(THOUGHT, tools=[WEATHER, NOW], thinking=THINKING, stream=True)
    with echo.http.stream(
        "POST", "/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = [block for block in answer.read().decode().split("\n\n") if block]
    kinds = []
    index = -1
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        index += event["type"] == "content_block_start"
        assert event.get("index", index) == index
        kinds.append(event["type"])
    assert [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before] == SEQUENCE


def without_ids(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [{key: it for key, it in block.to_dict().items() if key != "id"} for block in message.content]


@pytest.mark.parametrize(
    "options",
    [{}, {"tools": [WEATHER, NOW], "thinking": THINKING}, {"max_tokens": 8}, {"stop_sequences": ["look"]}],
    ids=range(4),
)
def test_streams_equal_whole_answers(client: anthropic.Anthropic, options: dict[str, Any]) -> None:
    whole = client.messages.create(**said(THOUGHT, **options))
    with client.messages.stream(**said(THOUGHT, **options)) as stream:
        texts = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert without_ids(final) == without_ids(whole)
    assert texts == "".join(block.text for block in whole.content if block.type == "text")
    assert (final.stop_reason, final.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert final.usage.output_tokens == whole.usage.output_tokens


async def _asynchronously(server: TinyServer) -> tuple[Any, Any, int]:
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        whole = await client.messages.create(**said(CALLS, tools=[WEATHER, NOW]))
        async with client.messages.stream(**said(CALLS, tools=[WEATHER, NOW])) as stream:
            final = await stream.get_final_message()
        counted = await client.messages.count_tokens(model="tiny", messages=said(CALLS)["messages"])
        return whole, final, counted.input_tokens


def test_the_asynchronous_client(echo: TinyServer) -> None:
    whole, final, counted = asyncio.run(_asynchronously(echo))
    assert without_ids(whole) == without_ids(final) and whole.stop_reason == "tool_use" and counted > 20


def test_an_engine_that_dies_is_an_error_event(doomed: TinyServer) -> None:
    with (
        client_of(doomed) as client,
        pytest.raises(anthropic.APIStatusError) as failed,
        client.messages.stream(**said("Hello", max_tokens=400)) as stream,
    ):
        next(iter(stream))
        doomed.call(doomed.client.aclose())
        for _ in stream:
            pass
    assert failed.value.body["type"] == "error"  # type: ignore[index, call-overload]
    assert failed.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index, call-overload]


# ---- Counting ----


def test_counted_tokens_equal_charged_tokens(client: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {"system": "Be brief.", "tools": [WEATHER], "messages": said("Hi")["messages"]}
    counted = client.messages.count_tokens(model="tiny", **options).input_tokens
    usage = client.messages.create(model="tiny", max_tokens=4, **options).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    fewer = client.messages.count_tokens(model="tiny", messages=options["messages"]).input_tokens
    assert 0 < fewer < counted


def total_of(usage: anthropic.types.Usage) -> int:
    """Input tokens of each kind."""
    return (
        usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    )


BLOCK = 8  # tokens
LONG = "one two three four five six seven eight nine ten. " * 12


def test_cached_tokens_are_reported(client: anthropic.Anthropic) -> None:
    asked = said("Hi", system=f"read {LONG}")
    first, second = (client.messages.create(**asked).usage for _ in range(2))
    assert first.cache_read_input_tokens == 0 and first.cache_creation_input_tokens == 0
    assert second.cache_read_input_tokens and second.cache_read_input_tokens > 50
    assert first.input_tokens == second.input_tokens + second.cache_read_input_tokens
    with client.messages.stream(**asked) as stream:
        start = next(iter(stream))
    assert start.type == "message_start"
    assert start.message.usage.cache_read_input_tokens == second.cache_read_input_tokens


@pytest.mark.parametrize("where", ["tools", "system", "message", "request"])
def test_marks_of_the_cache_are_counted(client: anthropic.Anthropic, where: str) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    text = {"type": "text", "text": f"{where} {LONG}"}
    asked: dict[str, Any] = said("Hi", tools=[WEATHER | {"description": f"{where} {LONG}"}])
    if where == "tools":
        asked["tools"] = [asked["tools"][0] | mark]
    elif where == "system":
        asked["system"] = [text | mark]
    elif where == "message":
        asked["messages"] = [{"role": "user", "content": [text | mark, {"type": "text", "text": "Hi"}]}]
    else:
        asked |= mark
    counted = client.messages.count_tokens(
        **{k: v for k, v in asked.items() if k != "max_tokens"}
    ).input_tokens
    first = client.messages.create(**asked).usage
    assert first.cache_creation_input_tokens and first.cache_creation_input_tokens > 50
    assert total_of(first) == counted
    assert first.input_tokens < 2 * BLOCK if where == "request" else first.input_tokens > 0
    assert first.cache_creation_input_tokens % BLOCK == 0  # whole blocks
    again = client.messages.create(**asked).usage
    assert again.cache_read_input_tokens and again.cache_read_input_tokens > 50
    assert again.cache_read_input_tokens > (first.cache_read_input_tokens or 0)
    assert total_of(again) == counted


@pytest.mark.parametrize("marked", [True, False])
def test_a_marked_prefix_survives_other_requests(tmp_path: Path, marked: bool) -> None:
    server = echo_server(tmp_path / "model", num_blocks=80, block_size=BLOCK)
    text = {"type": "text", "text": LONG}
    system = [text | {"cache_control": {"type": "ephemeral"}}] if marked else [text]
    try:
        with client_of(server) as client:
            first = client.messages.create(**said("Hi", system=system)).usage
            assert bool(first.cache_creation_input_tokens) == marked
            for number in range(6):
                client.messages.create(**said(f"{number} {LONG} {number}", max_tokens=1))
            assert server.stats().cache.evictions > 20
            again = client.messages.create(**said("Ho", system=system)).usage
        assert (again.cache_read_input_tokens > 50) == marked
        assert again.cache_creation_input_tokens == 0
        assert server.stats().cache.pins_broken == 0
    finally:
        server.close()


def test_without_a_prefix_cache_nothing_is_created(tmp_path: Path) -> None:
    server = echo_server(tmp_path / "model", prefix_caching=False)
    try:
        with client_of(server) as client:
            usage = client.messages.create(**said(LONG, cache_control={"type": "ephemeral"})).usage
        assert usage.cache_creation_input_tokens == 0 and usage.input_tokens > 50
    finally:
        server.close()


# ---- Errors and keys ----


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": None}, "max_tokens"), ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, r"messages\[0\].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}]}, "input"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tools": [{"name": "f"}]}, "input_schema"), ({"tool_choice": {"type": "any"}}, "no function in tools"),
        ({"tool_choice": "auto"}, "tool_choice"), ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temprature": 1}, "did you mean temperature"), ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"system": 7}, "system"), ({"thinking": {"type": "some"}}, "thinking"),
        ({"cache_control": {"type": "for ever"}}, "cache_control"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1y"}}, "ttl"),
        ({"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}] * 5}, "at most 4"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "context"),
    ],
    ids=range(21),
)  # fmt: skip
def test_what_is_refused(echo: TinyServer, fields: dict[str, Any], says: str) -> None:
    answer = echo.http.post("/v1/messages", json=said("Hi") | fields)
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(body["error"]["message"])
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_every_error_has_the_apis_form(echo: TinyServer, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as lost:
        client.messages.create(**said("Hi", model="claude"))
    assert lost.value.body["error"]["type"] == "not_found_error"  # type: ignore[index, call-overload]
    for answer, status, kind in (
        (echo.http.get("/v1/messages"), 405, "invalid_request_error"),
        (echo.http.post("/v1/messages", content=b"{"), 400, "invalid_request_error"),
        (echo.http.post("/v1/messages", content=b"x" * 200_000), 413, "request_too_large"),
        (echo.http.post("/v1/messages/count_tokens", json={}), 400, "invalid_request_error"),
    ):
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind), answer.text
        assert int(answer.headers["content-length"]) == len(answer.content)
    service = echo.app.state.service
    taken, calls = service.tokenizer, service.replies
    object.__setattr__(service, "replies", None)  # a fault of the server
    try:
        broken = echo.http.post("/v1/messages", json=said("Hi"))
    finally:
        object.__setattr__(service, "replies", calls)
    assert service.tokenizer is taken
    assert (broken.status_code, broken.json()["error"]["type"]) == (500, "api_error")


def test_an_error_in_a_stream_names_the_request(doomed: TinyServer) -> None:
    body = said("Hi", stream=True)
    with doomed.http.stream("POST", "/v1/messages", json=body) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: message_start"
        os.kill(doomed.client.pid, signal.SIGKILL)
        *_, last = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
    assert last["type"] == "error" and "SIGKILL" in last["error"]["message"]
    assert last["request_id"] and last["request_id"] == answer.headers["request-id"]


def test_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    traffic = keyed(Caller("ann"), Caller("bob"))
    server = echo_server(tmp_path_factory.mktemp("keys") / "model", "hermes", traffic=traffic)
    try:
        with client_of(server, secret("ann")) as client:
            assert client.messages.create(**said("Hi")).stop_reason == "end_turn"
        with (
            client_of(server, "wrong-key") as client,
            pytest.raises(anthropic.AuthenticationError) as refused,
        ):
            client.messages.create(**said("Hi"))
        assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index, call-overload]
        ann, bob = secret("ann"), secret("bob")
        for headers, status in (
            ({"x-api-key": ann, "authorization": f"Bearer {ann}"}, 200),
            ({"x-api-key": ann, "authorization": f"Bearer {bob}"}, 401),
            ({"x-api-key": ann, "authorization": "Bearer wrong-key"}, 401),
            ({"authorization": f"Bearer {bob}"}, 200),
            ({}, 401),
        ):
            answer = server.http.post("/v1/messages", json=said("Hi"), headers=headers)
            assert answer.status_code == status, headers
        twice = [("x-api-key", ann), ("x-api-key", bob)]
        assert server.http.post("/v1/messages", json=said("Hi"), headers=twice).status_code == 401
        assert server.traffic.usage.of("ann").requests == 2
    finally:
        server.close()


# ---- The bundled model ----


def test_forced_calls_and_formats_of_the_bundled_model(tale: ServeProcess) -> None:
    with client_of(tale) as client:
        asked = said("Weather?", model="tale", max_tokens=200)
        closed = SCHEMA | {"properties": {"city": {"enum": ["Oslo", "Rome"]}}, "additionalProperties": False}
        tool = WEATHER | {"input_schema": closed}
        for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
            answer = client.messages.create(**asked, tools=[tool], tool_choice=choice)
            assert answer.content and all(
                block.type == "tool_use" and block.input["city"] in ("Oslo", "Rome")  # type: ignore[index]
                for block in answer.content
            )
        shaped = client.messages.create(
            **asked, extra_body={"output_config": {"format": {"type": "json_schema", "schema": closed}}}
        )
        assert jsonschema_rs.is_valid(closed, json.loads(shaped.content[0].text))  # type: ignore[union-attr]


def test_shapes_of_conversations() -> None:
    for wrong in (None, "Hi", [], [7], [{"role": "user"}], [{"role": "user", "content": [7]}]):
        with pytest.raises(InvalidParams):
            chat_messages(wrong)
    assert chat_messages([{"role": "user", "content": []}]) == [{"role": "user", "content": ""}]
