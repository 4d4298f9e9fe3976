"""Response formats where the continued message has closed its reasoning: grammar and parser agree that it is over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.server.conftest import TinyServer, served

PET = {
    "type": "object", "properties": {"animal": {"enum": ["fox", "cat"]}}, "required": ["animal"],
    "additionalProperties": False,
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": PET}}


@pytest.fixture(scope="module", params=[pytest.param("deepseek_r1", marks=pytest.mark.long), "qwen3"])
def reasons(request: pytest.FixtureRequest) -> Iterator[TinyServer]:
    """The bundled model, which is said to reason."""
    server = served(reasoning_parser=request.param)
    yield server
    server.close()


def continued(server: TinyServer, begun: str, **more: Any) -> Any:
    body = {
        "model": "tale", "max_tokens": 40, "continue_final_message": True, "response_format": FORMAT,
        "messages": [{"role": "user", "content": "An animal?"}, {"role": "assistant", "content": begun}],
    }  # fmt: skip
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body | more, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("begun", ["<think>x</think>", "<think>x</think>\n\n", "Here it is: "])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_form_holds_from_the_first_token(reasons: TinyServer, begun: str, seed: int) -> None:
    answer = continued(reasons, begun, seed=seed)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop" and "reasoning_content" not in choice["message"], choice
    assert jsonschema_rs.is_valid(PET, json.loads(choice["message"]["content"]))
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_the_messages_api_does_the_same(reasons: TinyServer) -> None:
    body = {
        "model": "tale", "max_tokens": 40, "output_config": {"format": {"type": "json_schema", "schema": PET}},
        "messages": [
            {"role": "user", "content": "An animal?"}, {"role": "assistant", "content": "<think>x</think>"},
        ],
    }  # fmt: skip
    answer = httpx.post(f"{reasons.url}/v1/messages", json=body, timeout=60).json()
    assert answer["stop_reason"] == "end_turn", answer
    (block,) = answer["content"]
    assert jsonschema_rs.is_valid(PET, json.loads(block["text"]))


def test_open_reasoning_continues(reasons: TinyServer) -> None:
    (choice,) = continued(reasons, "<think>x")["choices"]
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]
    assert choice["message"]["reasoning_content"]
