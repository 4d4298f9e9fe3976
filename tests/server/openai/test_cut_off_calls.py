"""Answers that end inside of a call: no marker is shown, complete arguments are, and the reason is true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests import needs
from tests.server.conftest import TALE, TinyServer, served
from tests.server.echo import echo, function, model_folder

__all__ = ["echo"]  # a fixture

anthropic = needs.lazily("anthropic")

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PAINT = function(
    "paint", colour={"enum": ["red", "blue"]}, coats={"type": "integer", "minimum": 1, "maximum": 3}
)
CUTS: list[dict[str, Any]] = [*({"max_tokens": size} for size in (1, 3, 5, 10, 16)), {"stop": ["call"]}]


def body_of(path: str, choice: str, cut: dict[str, Any]) -> dict[str, Any]:
    """A request that forces a call of `paint`, in the words of a route."""
    spec = PAINT["function"]
    length, stop = cut.get("max_tokens", 60), cut.get("stop")
    body: dict[str, Any] = {"model": "tale", "seed": 3}
    if path == MESSAGES:
        body |= {
            "messages": [{"role": "user", "content": "Paint!"}], "max_tokens": length,
            "tools": [{"name": "paint", "input_schema": spec["parameters"]}],
            "tool_choice": {"type": "any"} if choice == "required" else {"type": "tool", "name": "paint"},
        }  # fmt: skip
        return body | ({"stop_sequences": stop} if stop else {})
    if path == RESPONSES:
        named = {"type": "function", "name": "paint"}
        body |= {"input": "Paint!", "max_output_tokens": length, "tools": [{"type": "function", **spec}]}
    else:
        named = {"type": "function", "function": {"name": "paint"}}  # type: ignore[dict-item]
        body |= {"messages": [{"role": "user", "content": "Paint!"}], "max_tokens": length, "tools": [PAINT]}
    body["tool_choice"] = choice if choice == "required" else named
    return body | ({"stop": stop} if stop else {})


def whole_text(path: str, answer: dict[str, Any]) -> str:
    if path == CHAT:
        return answer["choices"][0]["message"]["content"] or ""
    if path == RESPONSES:
        return "".join(part["text"] for item in answer["output"] for part in item.get("content", ()))
    return "".join(block.get("text", "") for block in answer["content"])


def streamed_text(path: str, lines: Iterator[str]) -> str:
    said = ""
    for line in lines:
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        if path == CHAT:
            said += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        elif event["type"] == "response.output_text.delta":
            said += event["delta"]
        elif event["type"] == "content_block_delta":
            said += event["delta"].get("text", "")
    return said


@pytest.fixture(
    scope="module",
    params=[
        "special",
        *(
            pytest.param(kind, marks=pytest.mark.long)
            for kind in ("hermes", "pythonic", "mistral", "llama3_json")
        ),
    ],
)
def caller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """The bundled model; `special` has Mistral's way of calling, with a marker that is a special token."""
    kind, folder = request.param, TALE
    if kind == "special":
        kind = "mistral"
        folder = model_folder(tmp_path_factory.mktemp(kind) / "model", kind, "[TOOL_CALLS]")
    server = served(folder, tool_call_parser=kind, reasoning_parser="qwen3")
    yield server
    server.close()


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_the_beginning_of_a_forced_call_is_no_content(caller: TinyServer, path: str, step: int) -> None:
    with httpx.Client(base_url=caller.url, timeout=60) as http:
        for choice in ("required", "named"):
            for cut in CUTS[::-step]:
                if path == RESPONSES and "stop" in cut:
                    continue  # it has no such field
                body = body_of(path, choice, cut)
                answer = http.post(path, json=body)
                assert answer.status_code == 200, answer.text
                assert whole_text(path, answer.json()) == "", (choice, cut)
                with http.stream("POST", path, json=body | {"stream": True}) as streamed:
                    assert streamed_text(path, streamed.iter_lines()) == "", (choice, cut)


def test_a_call_that_is_not_cut_off_is_whole(caller: TinyServer) -> None:
    answer = httpx.post(
        f"{caller.url}{CHAT}", json=body_of(CHAT, "named", {"max_tokens": 200}), timeout=60
    ).json()
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["coats"] in (1, 2, 3)


# ---- Arguments that end in the middle; the model says what the test has it say ----

LOOK: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}, "more": {"type": "object"}}}
BEGUN = '<tool_call>\n{"name": "look", "arguments": {"q": "x", "more": {"a": [true, "b"], "c": "unfin'
MEMBERS = {"q": "x", "more": {"a": [True, "b"]}}


def test_messages_hold_the_members_that_are_complete(echo: TinyServer) -> None:
    asked: dict[str, Any] = {
        "model": "tiny", "messages": [{"role": "user", "content": BEGUN + "ished and so on"}],
        "tools": [{"name": "look", "input_schema": LOOK}], "stop_sequences": ["ished"], "max_tokens": 500,
    }  # fmt: skip
    with anthropic.Anthropic(base_url=echo.url, api_key="none", max_retries=0, timeout=30) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    for message in (whole, streamed):
        (block,) = message.content
        assert block.type == "tool_use" and block.input == MEMBERS
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "ished")


@pytest.mark.parametrize(
    ("text", "stop", "reason"),
    [
        (BEGUN + "ished and so on", ["ished"], "stop"),
        (BEGUN, None, "stop"),  # it ends by itself
        ('<tool_call>{"name": "look", "arguments": {"q": "x"}}</tool_call>', ["}"], "stop"),
        ('<tool_call>{"name": "look", "arguments": {"q": "x"}}</tool_call>', ["</tool"], "tool_calls"),
        ('<tool_call>{"name": "look", "arguments": {"q": "x"}}</tool_call>', None, "tool_calls"),
    ],
)
def test_only_a_complete_call_ends_with_tool_calls(
    echo: TinyServer, text: str, stop: list[str] | None, reason: str
) -> None:
    asked: dict[str, Any] = {
        "model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 500, "stop": stop,
        "tools": [{"type": "function", "function": {"name": "look", "parameters": LOOK}}],
    }  # fmt: skip
    whole = echo.openai.chat.completions.create(**asked).choices[0]
    assert whole.message.tool_calls and whole.finish_reason == reason
    *_, last = (chunk.choices[0] for chunk in echo.openai.chat.completions.create(**asked, stream=True))
    assert last.finish_reason == reason
    arguments = whole.message.tool_calls[0].function.arguments  # type: ignore[union-attr]
    if reason == "tool_calls":
        assert json.loads(arguments) == {"q": "x"}


@pytest.mark.parametrize("value", ["NaN", "1e999", r'"\ud800"'])
def test_arguments_that_are_not_json_fail_no_message(echo: TinyServer, value: str) -> None:
    text = f'<tool_call>{{"name": "look", "arguments": {{"q": {value}}}}}</tool_call>'
    answer = echo.http.post(
        MESSAGES,
        json={
            "model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 500,
            "tools": [{"name": "look", "input_schema": LOOK}],
        },
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    assert answer.json()["content"][0]["input"] == {}


def test_responses_mark_the_incomplete_call(echo: TinyServer) -> None:
    tools: Any = [{"type": "function", "name": "look", "parameters": LOOK, "strict": False}]
    done = echo.openai.responses.create(
        model="tiny", tools=tools, input='<tool_call>{"name": "look", "arguments": {"q": "x"}}</tool_call>'
    )
    begun = echo.openai.responses.create(model="tiny", tools=tools, input=BEGUN)
    assert isinstance(done, openai.types.responses.Response) and isinstance(
        begun, openai.types.responses.Response
    )
    assert [done.output[0].status, begun.output[0].status] == ["completed", "incomplete"]  # type: ignore[union-attr]
