"""Fields of /v1/responses that OpenAI's clients send by default: the effect of each."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import openai
import pytest

from headrace.server.openai.responses.schemas import HOSTED_TOOLS
from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TinyServer, served
from tests.server.echo import echo, model_folder
from tests.server.openai.test_responses import WEATHER

__all__ = ["echo"]  # a fixture

# ---- Truncation ----

TURN = "one two three four five six seven eight nine ten " * 12
CONVERSATION = [
    {"role": role, "content": f"{n}. {TURN}"} for n in range(12) for role in ("user", "assistant")
]
LAST = {"role": "user", "content": "What did I say?"}


def tokens(answer: Any) -> int:
    count: int = answer.usage.input_tokens
    return count


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(echo: TinyServer) -> None:
    asked: dict[str, Any] = {"model": "tiny", "instructions": "Be brief.", "max_output_tokens": 50}
    long = [*CONVERSATION, LAST]
    with pytest.raises(openai.BadRequestError) as refused:
        echo.openai.responses.create(**asked, input=long)
    assert refused.value.code == "context_length_exceeded"
    answer = echo.openai.responses.create(**asked, input=long, truncation="auto")
    assert answer.output_text == LAST["content"] and answer.truncation == "auto"
    fitting = []
    for turns in range(12):
        try:
            some = CONVERSATION[len(CONVERSATION) - 2 * turns :]
            fitting.append(tokens(echo.openai.responses.create(**asked, input=[*some, LAST])))
        except openai.BadRequestError:
            break
    assert 1 < len(fitting) < 12
    assert tokens(answer) == fitting[-1]  # with the instructions, and no more is left out than must be


def test_a_conversation_that_fits_is_left_alone(echo: TinyServer) -> None:
    some = [*CONVERSATION[:4], LAST]
    whole = echo.openai.responses.create(model="tiny", input=some)  # type: ignore[arg-type]
    auto = echo.openai.responses.create(model="tiny", input=some, truncation="auto")  # type: ignore[arg-type]
    assert tokens(whole) == tokens(auto)


@pytest.mark.parametrize("text", [TURN * 20, TURN * 150], ids=["tokens", "characters"])
def test_a_last_turn_that_is_too_long_is_refused(echo: TinyServer, text: str) -> None:
    long = [*CONVERSATION[:2], {"role": "user", "content": text}]
    with pytest.raises(openai.BadRequestError) as refused:
        echo.openai.responses.create(model="tiny", input=long, truncation="auto")  # type: ignore[arg-type]
    assert refused.value.code == "context_length_exceeded"


# ---- Hosted tools ----


def test_hosted_tools_are_ignored_with_a_warning(echo: TinyServer, caplog: pytest.LogCaptureFixture) -> None:
    hosted = [{"type": kind} for kind in sorted(HOSTED_TOOLS)]
    with caplog.at_level(logging.WARNING, "headrace.server.openai.responses.route"):
        answer = echo.openai.responses.create(model="tiny", input="Hi", tools=[*hosted, WEATHER])  # type: ignore[list-item]
    fields = answer.to_dict()
    assert answer.output_text == "Hi" and fields["tools"] == [WEATHER]
    assert len(fields["warnings"]) == len(HOSTED_TOOLS)  # type: ignore[arg-type]
    assert "web_search" in str(fields["warnings"])
    alone = echo.openai.responses.create(model="tiny", input="Hi", tools=hosted, stream=True)  # type: ignore[call-overload]
    assert list(alone)[-1].response.tools == []
    assert "warnings" not in echo.openai.responses.create(model="tiny", input="Hi", tools=[WEATHER]).to_dict()  # type: ignore[list-item]


# ---- Strict functions ----

PAINT = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "coats": {"enum": [1, 2]}},
    "required": ["colour", "coats"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {
    "type": "function",
    "name": "paint",
    "description": "Paints.",
    "parameters": PAINT,
}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TinyServer, int]]:
    """A server of the bundled model with a mark of calls that it can be pushed to."""
    folder = model_folder(tmp_path_factory.mktemp("strict") / "model", "hermes", "<tool_call>")
    server = served(folder)
    marker = Tokenizer.from_folder(folder).special_id("<tool_call>")
    assert marker is not None
    yield server, marker
    server.close()


def calls_of(caller: tuple[TinyServer, int], tool: dict[str, Any]) -> list[str]:
    """Arguments of complete calls that the model makes by itself."""
    server, marker = caller
    found: list[str] = []
    for seed in range(8):
        answer = server.openai.responses.create(
            model="tale", input="Paint!", tools=[tool], max_output_tokens=120, parallel_tool_calls=False,  # type: ignore[list-item]
            extra_body={"seed": seed, "temperature": 1.5, "logit_bias": {str(marker): 24}},
        )  # fmt: skip
        found += [
            item.arguments
            for item in answer.output
            if item.type == "function_call" and item.status == "completed"
        ]
    return found


def test_functions_are_strict_by_default(caller: tuple[TinyServer, int]) -> None:
    made = calls_of(caller, FUNCTION)
    assert len(made) > 2
    assert all(jsonschema_rs.is_valid(PAINT, json.loads(arguments)) for arguments in made)
    server, _ = caller
    answer = server.openai.responses.create(model="tale", input="Hi", tools=[FUNCTION], max_output_tokens=2)  # type: ignore[list-item]
    assert answer.to_dict()["tools"][0]["strict"] is True  # type: ignore[index]


def test_an_unsupported_schema_is_an_error_only_with_strict(
    caller: tuple[TinyServer, int],
) -> None:
    server, _ = caller
    tool = FUNCTION | {"parameters": {"type": "object", "properties": {"x": {"not": {"type": "null"}}}}}
    create = server.openai.responses.create
    answer = create(model="tale", input="Hi", tools=[tool], max_output_tokens=2)  # type: ignore[list-item]
    assert answer.to_dict()["tools"][0]["strict"] is False  # type: ignore[index]
    with pytest.raises(openai.BadRequestError, match="cannot be used"):
        create(model="tale", input="Hi", tools=[tool | {"strict": True}], max_output_tokens=2)  # type: ignore[list-item]


# ---- Errors in a stream ----


def test_an_error_event_has_a_sequence_number(echo: TinyServer) -> None:
    """A fault of the server in the middle of a stream: its tokenizer is taken away."""
    service = echo.app.state.service
    events: list[dict[str, Any]] = []
    begun: list[bool] = []
    body = {"input": "one two three " * 100, "stream": True, "include": ["message.output_text.logprobs"]}
    taken = service.tokenizer

    class Broken:
        """A tokenizer that fails when a stream has begun."""

        def __getattr__(self, name: str) -> Any:
            if name == "token_bytes" and begun:
                raise RuntimeError("planted")
            return getattr(taken, name)

    service.engine.inputs.tokenizer = Broken()
    try:
        with httpx.stream("POST", f"{echo.url}/v1/responses", json=body, timeout=30) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line.removeprefix("data: ")))
                    begun.append(True)
    finally:
        service.engine.inputs.tokenizer = taken
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "error" and "planted" not in str(events[-1])
