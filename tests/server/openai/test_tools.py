"""Tools and reasoning in chats, with the official client; the model says what the test has it say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.server.openai.message import MessageBuilder
from headrace.server.requests.reply import Reply
from headrace.text.tools.hermes import HermesParser
from headrace.text.tools.pieces import Content
from headrace.text.tools.reader import ReplyReader
from headrace.text.tools.reasoning import ReasoningParser
from tests.server.conftest import TinyServer
from tests.server.echo import echo, echo_server, function

__all__ = ["echo"]  # a fixture


TOOLS = [function("weather", city={"type": "string"}), function("now")]
WEATHER = '{"city": "Oslo, \\"the\\" ü"}'
HERMES = f'Let me see.\n<tool_call>\n{{"name": "weather", "arguments": {WEATHER}}}\n</tool_call>'
BOTH = HERMES + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def ask(server: TinyServer, reply: str, **more: Any) -> Any:
    return server.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": reply}], **more
    )


def streamed(server: TinyServer, reply: str, **more: Any) -> list[dict[str, Any]]:
    """The message of each choice, put together from a stream as OpenAI's documentation says."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in ask(server, reply, stream=True, **more):
        for choice in chunk.choices:
            built = choices.setdefault(
                choice.index, {"content": "", "reasoning": "", "calls": [], "finish": None}
            )
            delta = choice.delta
            built["content"] += delta.content or ""
            built["reasoning"] += getattr(delta, "reasoning_content", None) or ""
            assert getattr(delta, "reasoning", None) == getattr(delta, "reasoning_content", None)
            for call in delta.tool_calls or []:
                if call.index == len(built["calls"]):
                    assert call.id and call.type == "function" and call.function.name
                    built["calls"].append([call.function.name, ""])
                else:
                    assert call.id is None and call.function.name is None
                built["calls"][call.index][1] += call.function.arguments
            built["finish"] = choice.finish_reason or built["finish"]
    return [choices[index] for index in sorted(choices)]


def whole(server: TinyServer, reply: str, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "content": choice.message.content or "",
            "reasoning": getattr(choice.message, "reasoning_content", None) or "",
            "calls": [
                [call.function.name, call.function.arguments] for call in choice.message.tool_calls or []
            ],
            "finish": choice.finish_reason,
        }
        for choice in ask(server, reply, **more).choices
    ]


def said(content: str = "", reasoning: str = "", calls: Any = (), finish: str = "stop") -> dict[str, Any]:
    return {
        "content": content,
        "reasoning": reasoning,
        "calls": [list(call) for call in calls],
        "finish": finish,
    }


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a call": (HERMES, {}, said("Let me see.", calls=[("weather", WEATHER)], finish="tool_calls")),
    "two calls": (BOTH, {}, said("Let me see.", calls=[("weather", WEATHER), ("now", "{}")], finish="tool_calls")),
    "one of two": (
        BOTH, {"parallel_tool_calls": False}, said("Let me see.", calls=[("weather", WEATHER)], finish="tool_calls"),
    ),
    "no call": ("Just text.", {}, said("Just text.")),
    "a broken call": ("<tool_call>nothing</tool_call>", {}, said("<tool_call>nothing</tool_call>")),
    "half a marker": ("So <tool_c", {}, said("So <tool_c")),
    "a call with tool_choice none": (HERMES, {"tool_choice": "none"}, said(HERMES)),
    "no tools": (HERMES, {"tools": openai.omit}, said(HERMES)),
    "reasoning": ("<think>\nHm, ü.\n</think>\n\nYes.", {}, said("Yes.", "Hm, ü.")),
    "reasoning and a call": (
        f"<think>I look.</think>\n{HERMES}", {},
        said("Let me see.", "I look.", [("weather", WEATHER)], "tool_calls"),
    ),
    "reasoning that the prompt began": (
        "Hm.</think>Yes.", {"extra_body": {"chat_template_kwargs": {"thinking": True}}}, said("Yes.", "Hm."),
    ),
    "reasoning left out": (
        "<think>Hm.</think>Yes.", {"extra_body": {"include_reasoning": False}}, said("Yes."),
    ),
    "a length": (HERMES, {"max_tokens": 45}, said("Let me see.", calls=[("weather", "")], finish="length")),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("n", [1, 3])
def test_streamed_and_whole_answers(echo: TinyServer, what: str, n: int) -> None:
    check_case(echo, what, n)


def check_case(echo: TinyServer, what: str, n: int = 1) -> None:
    reply, options, expected = CASES[what]
    options = {"tools": TOOLS, "n": n} | options
    answers = whole(echo, reply, **options)
    assert streamed(echo, reply, **options) == answers
    if what == "a length":
        for answer in answers:
            (call,) = answer["calls"]
            assert answer["finish"] == "length" and WEATHER.startswith(call[1]) and call[1]
    else:
        assert answers == [expected] * n


FAULTS: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "what was kept back is lost": (HermesParser, "finish", lambda self: [], "half a marker"),
    "calls are lost": (MessageBuilder, "message", lambda self: {"role": "assistant", "content": ""}, "a call"),
    "reasoning is content": (ReasoningParser, "push", lambda self, text: [Content(text)], "reasoning"),
    "every call counts": (ReplyReader, "_selected", lambda self, pieces: pieces, "one of two"),
    "the finish reason of calls is lost": (Reply, "finish_reason", lambda self, reason: reason, "two calls"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(echo: TinyServer, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    kind, name, wrong, what = FAULTS[fault]
    check_case(echo, what)
    monkeypatch.setattr(kind, name, wrong)
    with pytest.raises(AssertionError):
        check_case(echo, what)


def test_the_form_of_the_message(echo: TinyServer) -> None:
    body = {"messages": [{"role": "user", "content": HERMES.partition("\n")[2]}], "tools": TOOLS, "n": 2}
    answer = echo.http.post("/v1/chat/completions", json=body).json()
    messages = [choice["message"] for choice in answer["choices"]]
    assert all(
        message["content"] is None and set(message) == {"role", "content", "tool_calls"}
        for message in messages
    )
    ids = {message["tool_calls"][0]["id"] for message in messages}
    assert len(ids) == 2
    plain = echo.http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]}
    ).json()
    assert plain["choices"][0]["message"] == {"role": "assistant", "content": "Hi"}


def test_reasoning_is_counted(echo: TinyServer) -> None:
    usage = ask(echo, "<think>Hm, well.</think>Yes.").usage
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    assert ask(echo, "Yes.").usage.completion_tokens_details.reasoning_tokens <= 1


def test_no_half_marker_is_streamed(echo: TinyServer) -> None:
    for chunk in ask(echo, BOTH, stream=True, tools=TOOLS):
        for choice in chunk.choices:
            assert "<" not in (choice.delta.content or "")


def test_a_conversation_with_tools(echo: TinyServer) -> None:
    messages: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": HERMES}]
    first = echo.openai.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)  # type: ignore[arg-type]
    (call,) = first.choices[0].message.tool_calls or []
    messages += [
        first.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
        {"role": "user", "content": "So it rains."},
    ]
    second = echo.openai.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)  # type: ignore[arg-type]
    assert second.choices[0].message.content == "So it rains."
    assert second.usage is not None and first.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + 20


async def _asynchronously(server: TinyServer) -> Any:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": HERMES}], tools=TOOLS, stream=True  # type: ignore[arg-type]
        )  # fmt: skip
        pieces = [
            call.function.arguments or ""
            async for chunk in stream
            for choice in chunk.choices
            for call in choice.delta.tool_calls or []
            if call.function
        ]
        return "".join(pieces)


def test_the_asynchronous_client(echo: TinyServer) -> None:
    assert asyncio.run(_asynchronously(echo)) == WEATHER


@pytest.mark.parametrize(
    ("kind", "special", "reply", "id_chars"),
    [
        (None, None, HERMES, None),
        ("hermes", "<tool_call>", HERMES, None),
        pytest.param(
            "mistral", "[TOOL_CALLS]", f'Let me see.[TOOL_CALLS] [{{"name": "weather", "arguments": {WEATHER}}}]', 9,
            marks=pytest.mark.long,
        ),
        ("mistral", "[ARGS]", f"Let me see.[TOOL_CALLS]weather[ARGS]{WEATHER}", 9),
        pytest.param(
            "llama3_json", "<|python_tag|>",
            f'Let me see.<|python_tag|>{{"name": "weather", "parameters": {WEATHER}}}', None, marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_each_format_is_found_in_its_template(
    tmp_path: Path, kind: str | None, special: str | None, reply: str, id_chars: int | None
) -> None:
    server = echo_server(tmp_path / "model", kind, special)
    try:
        expected = said("Let me see.", calls=[("weather", WEATHER)], finish="tool_calls")
        assert whole(server, reply, tools=TOOLS) == streamed(server, reply, tools=TOOLS) == [expected]
        call = ask(server, reply, tools=TOOLS).choices[0].message.tool_calls[0]
        assert id_chars is None or len(call.id) == id_chars
        if special is not None:
            # Only the parser sees a special token.
            assert special not in whole(server, f"a {special} b", tools=TOOLS)[0]["content"]
            assert special not in whole(server, f"a {special} b")[0]["content"]
            shown = whole(server, f"a {special} b", extra_body={"skip_special_tokens": False})
            assert special in shown[0]["content"]
    finally:
        server.close()
