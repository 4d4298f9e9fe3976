"""What chats with tools and responses refuse, whatever is sent to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.server import flags as serve_flags
from headrace.errors import ConfigError
from headrace.text.tokenizer import Tokenizer
from headrace.text.tools import formats
from headrace.text.tools.formats import ReplyFormats
from tests.server.conftest import TALE, TinyServer
from tests.server.echo import echo, function

__all__ = ["echo"]  # a fixture

TOOLS = [function("weather", city={"type": "string"}), function("now")]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(
        ["function", "auto", "required", "assistant", "tool", "user", "f", "{}", "message", "function_call"]
    ),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "function", "name", "parameters", "description", "role", "content", "tool_calls", "arguments",
             "call_id", "output", "text", "format", "schema", "tools", "id", "summary"]
        ),
        inner, max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip
FIELDS = st.dictionaries(
    st.sampled_from(
        ["tools", "tool_choice", "messages", "input", "text", "response_format", "metadata", "reasoning", "include",
         "instructions", "parallel_tool_calls", "include_reasoning", "chat_template_kwargs"]
    ),
    JSON, max_size=4,
)  # fmt: skip


@given(FIELDS, st.sampled_from(["chat/completions", "responses"]))
def test_any_request_is_answered_or_refused(echo: TinyServer, fields: dict[str, Any], route: str) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi", "max_tokens": 5} | fields
    answer = echo.http.post(
        f"/v1/{route}", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == (400 if answer.json().get("error") else 200), answer.text


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": "weather"}, {"tools": [7]}, {"tools": [{"type": "web_search"}]},
        {"tools": [*TOOLS, TOOLS[0]]}, {"tools": TOOLS, "tool_choice": "sometimes"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "unknown"}}},
        {"tool_choice": "required"}, {"tools": [{"type": "function", "name": f"f{number}"} for number in range(1025)]},
        {"functions": [{"name": "f"}]}, {"function_call": "auto"}, {"tools": TOOLS, "parallel_tool_calls": 1},
        {"include_reasoning": "no"},
    ],
    ids=range(12),
)  # fmt: skip
def test_what_is_refused(echo: TinyServer, fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]} | fields
    answer = echo.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert len(answer.json()["error"]["message"]) < 400
    assert echo.http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]}
    ).is_success


def test_parsers_by_name() -> None:
    assert serve_flags.TOOL_CALL_PARSERS == formats.TOOL_CALL_PARSERS
    assert serve_flags.REASONING_PARSERS == formats.REASONING_PARSERS
    tokenizer = Tokenizer.from_folder(TALE)
    calls = ReplyFormats.of(tokenizer, "mistral", "deepseek_r1")
    assert calls.calls is not None and calls.calls.name == "mistral"
    assert calls.reasoning is not None and calls.reasoning.assumed
    assert ReplyFormats.of(tokenizer, "none", "none") == ReplyFormats(None, None)
    for names in (("hermse", "auto"), ("auto", "think")):
        with pytest.raises(ConfigError):
            ReplyFormats.of(tokenizer, *names)
