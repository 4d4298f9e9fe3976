"""However large an answer is, the event loop makes it in small parts, and serves others between them.

Every request here is one that the server accepts, and one of the costliest of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import TinyServer
from tests.server.turns import counted

MAX_CALLS = 80_000
"""Of functions in a turn: less than ten milliseconds."""
MAX_WRITTEN = 2**19
MAX_READ = 2**16

LONG = 500
PROMPTS = [[7] * LONG] * 12
SCORED = {"prompt": PROMPTS, "max_tokens": 0, "echo": True, "logprobs": 20}
TALK = {"messages": [{"role": "user", "content": "a"}]}


@pytest.fixture(scope="module")
def quick() -> Iterator[TinyServer]:
    """An engine that gives the answers to many prompts in one step."""
    server = TinyServer(
        step_s=0.0,
        max_num_seqs=64,
        max_num_batched_tokens=65_536,
        num_blocks=8192,
        max_body_bytes=2**22,
    )
    yield server
    server.close()


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "scored prompts": ("/v1/completions", SCORED),
    "scored prompts, streamed": ("/v1/completions", SCORED | {"stream": True}),
    "several scored completions": (
        "/v1/completions",
        {"prompt": [7] * 200, "n": 12, "max_tokens": 200, "echo": True, "logprobs": 20},
    ),
    "a chat's alternatives": (
        "/v1/chat/completions",
        TALK | {"n": 12, "max_tokens": 200, "logprobs": True, "top_logprobs": 20},
    ),
    "a chat's alternatives, streamed": (
        "/v1/chat/completions",
        TALK | {"n": 12, "max_tokens": 200, "logprobs": True, "top_logprobs": 20, "stream": True},
    ),
    "a response's alternatives": (
        "/v1/responses",
        {"input": "a", "max_output_tokens": 450, "top_logprobs": 20},
    ),
    "a response's alternatives, streamed": (
        "/v1/responses",
        {"input": "a", "max_output_tokens": 450, "top_logprobs": 20, "stream": True},
    ),
    "stop strings": (
        "/v1/completions",
        {"prompt": [[7]] * 4, "n": 16, "max_tokens": 1, "stop": [f"{i:04}" + "ab" * 400 for i in range(10)]},
    ),
    "echoed ids": ("/v1/completions", {"prompt": [[7] * LONG], "n": 64, "max_tokens": 1, "echo": True}),
    "embeddings": ("/v1/embeddings", {"input": [[7] * 20] * 64}),
    "a tokenized text": ("/tokenize", {"prompt": "a b " * 1600, "return_token_strs": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_turn_of_the_event_loop_is_short(
    case: str, quick: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = CASES[case]
    with counted(quick, monkeypatch) as turns:
        answer = quick.http.post(path, json=body)
    assert answer.status_code == 200, answer.text[:500]
    print(
        f"{case}: {len(answer.content)} bytes in {turns.turns} turns, most {turns.most}, total {turns.total}"
    )
    assert turns.most.calls <= MAX_CALLS
    assert turns.most.written <= MAX_WRITTEN
    assert turns.most.read <= MAX_READ
