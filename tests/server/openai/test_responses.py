"""/v1/responses with the official client; the model says what the test has it say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, Field

from headrace.server.openai.responses.conversation import chat_messages
from tests.server.conftest import ServeProcess, TinyServer
from tests.server.echo import echo
from tests.waiting import LONG_S, until

__all__ = ["echo"]  # a fixture

WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
NOW = {"type": "function", "name": "now", "parameters": None, "strict": False}
ARGUMENTS = '{"city": "Oslo"}'
CALLS = (
    f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


def test_text(echo: TinyServer) -> None:
    answer = echo.openai.responses.create(model="tiny", input="Hello ü", metadata={"a": "b"}, top_p=0.5)
    assert answer.status == "completed" and answer.object == "response" and answer.id.startswith("resp_")
    assert answer.output_text == "Hello ü"
    (item,) = answer.output
    assert item.type == "message" and item.status == "completed" and item.role == "assistant"
    assert answer.metadata == {"a": "b"} and answer.top_p == 0.5 and answer.model == "tiny"
    usage = answer.usage
    assert usage is not None and usage.total_tokens == usage.input_tokens + usage.output_tokens
    again = echo.openai.responses.create(model="tiny", input="Hello ü" + " again" * 30)
    once_more = echo.openai.responses.create(model="tiny", input="Hello ü" + " again" * 30)
    assert again.usage is not None and once_more.usage is not None
    assert once_more.usage.input_tokens_details.cached_tokens > 0


def test_a_length(echo: TinyServer) -> None:
    answer = echo.openai.responses.create(model="tiny", input="one two three four five", max_output_tokens=2)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert answer.usage is not None and answer.usage.output_tokens == 2


def test_an_empty_answer_is_a_message(echo: TinyServer) -> None:
    answer = echo.openai.responses.create(model="tiny", input="")
    assert answer.output_text == "" and [item.type for item in answer.output] == ["message"]


def test_calls_and_their_results(echo: TinyServer) -> None:
    first = echo.openai.responses.create(
        model="tiny", input=f"<think>Hm.</think>I look. {CALLS}", tools=[WEATHER, NOW]  # type: ignore[list-item]
    )  # fmt: skip
    reasoning, message, weather, now = first.output
    assert (
        reasoning.type == "reasoning" and reasoning.content is not None and reasoning.content[0].text == "Hm."
    )
    assert message.type == "message" and first.output_text == "I look."
    assert weather.type == "function_call" and (weather.name, weather.arguments) == ("weather", ARGUMENTS)
    assert now.type == "function_call" and (now.name, now.arguments) == ("now", "{}")
    assert weather.call_id != now.call_id
    assert first.usage is not None and first.usage.output_tokens_details.reasoning_tokens > 0
    conversation: list[Any] = [
        {"role": "user", "content": "Weather?"},
        *(item.to_dict() for item in first.output),
    ]
    conversation += [
        {"type": "function_call_output", "call_id": weather.call_id, "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": now.call_id,
            "output": [{"type": "input_text", "text": "12"}],
        },
        {"role": "user", "content": [{"type": "input_text", "text": "So it rains."}]},
    ]
    second = echo.openai.responses.create(model="tiny", input=conversation, tools=[WEATHER, NOW])  # type: ignore[list-item]
    assert second.output_text == "So it rains."


SEQUENCE = [
    "response.created", "response.in_progress",
    "response.output_item.added", "response.content_part.added", "response.reasoning_text.delta",
    "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
    "response.output_item.added", "response.content_part.added", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done",
    "response.output_item.added", "response.function_call_arguments.delta",
    "response.function_call_arguments.done", "response.output_item.done",
    "response.output_item.added", "response.function_call_arguments.delta",
    "response.function_call_arguments.done", "response.output_item.done",
    "response.completed",
]  # fmt: skip


def check_stream(events: list[Any]) -> None:
    """What OpenAI's documentation promises of a stream's events."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    texts: dict[tuple[int, str], str] = {}
    items: list[Any] = []
    for event in events:
        if event.type.endswith(".delta"):
            key = (event.output_index, event.item_id)
            texts[key] = texts.get(key, "") + event.delta
        elif event.type == "response.output_item.added":
            assert event.output_index == len(items) and event.item.status == "in_progress"
            items.append(event.item)
        elif event.type in ("response.output_text.done", "response.reasoning_text.done"):
            assert event.text == texts.get((event.output_index, event.item_id), "")
        elif event.type == "response.function_call_arguments.done":
            assert event.arguments == texts[event.output_index, event.item_id]
            assert event.name == items[event.output_index].name
        elif event.type == "response.output_item.done":
            assert event.item.id == items[event.output_index].id
            items[event.output_index] = event.item
    if kinds[-1] in ("response.completed", "response.incomplete"):
        assert [item.to_dict() for item in events[-1].response.output] == [item.to_dict() for item in items]


def plain(response: Any) -> list[Any]:
    """The output without its random ids."""
    items = [item.to_dict() for item in response.output]
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


@pytest.mark.parametrize(
    "options",
    [{}, {"tools": [WEATHER, NOW]}, {"tools": [WEATHER], "max_output_tokens": 45},
     {"tools": [WEATHER, NOW], "parallel_tool_calls": False}, {"include": ["message.output_text.logprobs"]}],
    ids=range(5),
)  # fmt: skip
def test_streams_equal_whole_answers(echo: TinyServer, options: dict[str, Any]) -> None:
    said = {"model": "tiny", "input": f"<think>Hm.</think>I look, ü. {CALLS}"} | options
    whole = echo.openai.responses.create(**said)
    events = list(echo.openai.responses.create(**said, stream=True))
    check_stream(events)
    assert plain(events[-1].response) == plain(whole)
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens
    assert events[-1].response.status == whole.status


def test_the_sequence_of_events(echo: TinyServer) -> None:
    said = f"<think>Hm.</think>I look. {CALLS}"
    kinds = [
        event.type
        for event in echo.openai.responses.create(model="tiny", input=said, tools=[WEATHER, NOW], stream=True)  # type: ignore[list-item]
    ]
    once = [kind for kind, before in zip(kinds, [None, *kinds], strict=False) if kind != before]
    assert once == SEQUENCE


def test_a_stream_that_skips_an_event_would_be_noticed(echo: TinyServer) -> None:
    events = list(echo.openai.responses.create(model="tiny", input="one two three", stream=True))
    check_stream(events)
    for planted in (
        [*events[:4], *events[5:]],  # lost
        [*events[:5], events[4], *events[5:]],  # twice
        events[1:],
    ):
        with pytest.raises(AssertionError):
            check_stream(planted)


def test_the_wire(echo: TinyServer) -> None:
    with echo.http.stream("POST", "/v1/responses", json={"input": "Hi", "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks = [block for block in answer.read().decode().split("\n\n") if block]
    for block in blocks:
        name, data = block.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]
    assert "[DONE]" not in blocks[-1]


def test_log_probabilities(tiny: TinyServer) -> None:
    answer = tiny.openai.responses.create(
        model="tiny", input="Hello", max_output_tokens=4, top_logprobs=2, include=["message.output_text.logprobs"]
    )  # fmt: skip
    (part,) = answer.output[0].content  # type: ignore[union-attr]
    assert len(part.logprobs) == 4 and [top.logprob for top in part.logprobs[0].top_logprobs] == [-0.5, -1.5]


def test_the_client_s_own_stream_helper(echo: TinyServer) -> None:
    with echo.openai.responses.stream(model="tiny", input=CALLS, tools=[WEATHER, NOW]) as stream:  # type: ignore[list-item]
        snapshots = [
            event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"
        ]
        final = stream.get_final_response()
    assert ARGUMENTS in snapshots and [item.type for item in final.output] == ["function_call"] * 2


async def _asynchronously(server: TinyServer) -> tuple[str, str, list[Any]]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        whole = await client.responses.create(model="tiny", input="Hello")
        events = [
            event async for event in await client.responses.create(model="tiny", input="Hello", stream=True)
        ]
        async with client.responses.stream(model="tiny", input="Hello") as stream:
            final = await stream.get_final_response()
        return whole.output_text, final.output_text, events


def test_the_asynchronous_client(echo: TinyServer) -> None:
    whole, final, events = asyncio.run(_asynchronously(echo))
    assert whole == final == "Hello"
    check_stream(events)


def test_an_engine_that_dies(doomed: TinyServer) -> None:
    events: list[Any] = []
    errors: list[Exception] = []

    def whole() -> None:
        try:
            doomed.openai.responses.create(model="tiny", input="Hello", max_output_tokens=400)
        except openai.APIError as error:
            errors.append(error)

    def stream() -> None:
        events.extend(
            doomed.openai.responses.create(model="tiny", input="Hello", max_output_tokens=400, stream=True)
        )

    callers = [threading.Thread(target=target) for target in (whole, stream)]
    for caller in callers:
        caller.start()
    until(lambda: doomed.stats().running == 2)
    os.kill(doomed.client.pid, signal.SIGKILL)
    for caller in callers:
        caller.join(LONG_S)
    assert len(errors) == 1
    assert events[-1].type == "response.failed" and events[-1].response.status == "failed"
    assert "SIGKILL" in events[-1].response.error.message
    check_stream(events)


def test_a_disconnect_frees_the_cache(tiny: TinyServer) -> None:
    until(lambda: tiny.idle)
    stream = tiny.openai.responses.create(model="tiny", input="Hello", stream=True)
    next(iter(stream))
    stream.close()
    until(lambda: tiny.idle)


def test_input_becomes_a_conversation() -> None:
    messages = chat_messages(
        [
            {"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "a", "name": "now", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "weather", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "a", "output": "12"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "assistant", "content": "Well."},
            {"type": "reasoning", "id": "rs_1", "summary": []},
        ],
        "Be brief.",
    )
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "I look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "12"},
        {"role": "assistant", "content": "No."},
        {"role": "assistant", "content": "Well."},
    ]


class Mill(BaseModel):
    name: str = Field(max_length=20)
    wheels: Literal[1, 2, 3]


def test_structured_answers_of_the_bundled_model(tale: ServeProcess) -> None:
    client = tale.openai()
    answer = client.responses.parse(
        model="tale", input="A mill?", text_format=Mill, max_output_tokens=200, temperature=0
    )
    assert answer.status == "completed" and isinstance(answer.output_parsed, Mill)
    forced = client.responses.create(
        model="tale", input="Weather?", tools=[WEATHER, NOW], tool_choice="required", temperature=0,  # type: ignore[list-item]
        max_output_tokens=200,
    )  # fmt: skip
    assert forced.output and all(item.type == "function_call" for item in forced.output)
    named = client.responses.create(
        model="tale", input="Time?", tools=[WEATHER, NOW], max_output_tokens=100,  # type: ignore[list-item]
        tool_choice={"type": "function", "name": "now", "more": "x"},  # type: ignore[typeddict-unknown-key]
    )  # fmt: skip
    assert [item.type == "function_call" and item.name for item in named.output] == ["now"]
    assert named.to_dict()["tool_choice"] == {"type": "function", "name": "now"}
