"""What /v1/responses refuses, the most that it takes, and what it says of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.errors import InvalidParams
from headrace.server.openai.responses.conversation import chat_messages
from headrace.text.templates.messages import MAX_MESSAGES
from tests.server.conftest import TinyServer
from tests.server.echo import echo
from tests.server.openai.test_responses import WEATHER

__all__ = ["echo"]  # a fixture


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


@pytest.mark.parametrize(
    "body",
    [
        {}, {"input": None}, {"input": 7}, {"input": []}, {"input": [7]}, {"input": {}}, {"input": "\ud800"},
        item(role="nobody", content="x"), item(role="user"), item(role="user", content=7),
        item(role="user", content=[7]), item(role="user", content=[{"type": "input_image", "image_url": "x"}]),
        item(role="user", content=[{"type": "input_text"}]), item(type="item_reference", id="x"), item(type=7),
        item(type="function_call", name="f", arguments="{}"), item(type="function_call", call_id="x", name="f"),
        item(type="function_call_output", output="x"), item(type="function_call_output", call_id="x", output=7),
        item(type="reasoning", content=7), item(type="computer_call"),
        {"input": [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)},
        *({"input": "Hi", **more} for more in (
            {"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"background": True},
            {"prompt": {"id": "x"}}, {"truncation": "some"}, {"instructions": 7}, {"n": 2},
            {"max_output_tokens": 0}, {"max_output_tokens": 2**31}, {"metadata": {"a": 1}}, {"metadata": 7},
            {"metadata": {str(number): "" for number in range(17)}}, {"metadata": {"x" * 65: ""}},
            {"metadata": {"x": "x" * 513}}, {"include": ["x"] * 33}, {"include": ["x" * 65]},
            {"top_logprobs": 65}, {"top_logprobs": -1}, {"reasoning": {"effort": "x" * 65}}, {"reasoning": 7},
            {"text": {"format": {"type": "xml"}}}, {"text": {"format": 7}}, {"text": {"verbosity": 7}},
            {"text": {"format": {"type": "json_schema"}}}, {"tools": [{"type": "custom", "name": "x"}]},
            {"tools": [{"type": "web_search"}], "tool_choice": "required"}, {"tools": [{"type": ["web_search"]}]},
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            {"tool_choice": "required"},
            {"metadata": {"a": "\ud800"}}, {"tools": [WEATHER | {"description": "\ud800"}], "tool_choice": "none"},
            {"tools": [WEATHER | {"parameters": {"x": float("nan")}}]}, {"reasoning": {"effort": "\ud800"}},
            {"chat_template_kwargs": {"messages": []}}, {"temperature": 101}, {"store": "yes"},
        )),
    ],
    ids=range(58),
)  # fmt: skip
def test_what_is_refused(echo: TinyServer, body: dict[str, Any]) -> None:
    answer = echo.http.post(
        "/v1/responses", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    if answer.status_code == 413:  # the longest list does not even fit this server's bodies
        with pytest.raises(InvalidParams, match="at most"):
            chat_messages(body["input"], None)
        return
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert echo.http.post("/v1/responses", json={"input": "Hi"}).status_code == 200


def test_all_fields_at_their_bounds(echo: TinyServer) -> None:
    body = {
        "input": "Hi",
        "metadata": {f"{number:064}": "x" * 512 for number in range(16)},
        "include": ["x" * 64] * 32,
        "reasoning": {"effort": "x" * 64},
        "store": True,
    }
    answer = echo.http.post("/v1/responses", json=body)
    assert answer.status_code == 200 and answer.json()["store"] is True


def test_the_answer_repeats_the_parsed_tools(echo: TinyServer) -> None:
    asked = {"input": "Hi", "tools": [WEATHER | {"more": "x" * 1000}]}
    answer = echo.http.post("/v1/responses", json=asked).json()
    assert answer["tools"] == [WEATHER] and answer["tool_choice"] == "auto"
    answer = echo.http.post("/v1/responses", json=asked | {"tool_choice": "none"}).json()
    assert answer["tools"] == [WEATHER] and answer["tool_choice"] == "none"
