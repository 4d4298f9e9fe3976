"""Alternatives a position: 20 unless the operator says otherwise, as in vLLM, whichever field asks for them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.conftest import ServeProcess

CHAT = {"messages": [{"role": "user", "content": "a"}], "logprobs": True}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a"}, "logprobs"),
        ("/v1/completions", {"prompt": "a b", "echo": True, "max_tokens": 0}, "logprobs"),
        ("/v1/chat/completions", CHAT, "top_logprobs"),
        ("/v1/responses", {"input": "a"}, "top_logprobs"),
    ],
)
def test_twenty_by_default(path: str, body: dict[str, Any], field: str, tale: ServeProcess) -> None:
    tokens = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    few = {tokens: 1} | body | {field: 20}
    assert httpx.post(tale.url + path, json=few, timeout=30).status_code == 200
    answer = httpx.post(tale.url + path, json=few | {field: 21}, timeout=30)
    assert answer.status_code == 400
    assert "asks for 21 alternatives; at most 20" in answer.json()["error"]["message"]
