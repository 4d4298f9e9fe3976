"""`headrace serve` in an installation without llguidance."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.conftest import ServeProcess, serve
from tests.waiting import LONG_S

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """All processes of this server find no llguidance."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['llguidance'] = None\n")
    served = serve("tale", "--port", "0", "--num-threads", "1", env={"PYTHONPATH": str(folder)})
    yield served
    served.process.kill()
    served.process.wait(LONG_S)


def chat(server: ServeProcess, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "a"}]
    return httpx.post(
        f"{server.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 4} | body, timeout=60
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
        {"guided_regex": "a+"},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [STRICT]},
        {"response_format": {"type": "json_object"}, "stream": True},
    ],
    ids=["json_object", "json_schema", "regex", "required", "named", "strict", "stream"],
)
def test_what_needs_a_grammar_is_501(bare: ServeProcess, body: dict[str, Any]) -> None:
    answer = chat(bare, **body)
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error["code"] == "missing_dependency"
    assert error["message"].endswith(
        "need the package llguidance of the extra 'grammar', which is not installed"
    )


@pytest.mark.long
def test_everything_else_works_and_the_start_names_the_missing_package(bare: ServeProcess) -> None:
    assert chat(bare).status_code == 200
    assert chat(bare, tools=[TOOL]).status_code == 200
    bare.process.send_signal(signal.SIGTERM)
    rest, _ = bare.process.communicate(timeout=30)
    said = bare.said + rest
    assert said.count("llguidance") == 1 and "501" in said and "[grammar]'" in said
    assert "Traceback" not in said
