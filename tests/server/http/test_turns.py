"""However large a request or its answer is, the event loop works in small parts, and serves others between them.

Every request here is one that the server accepts, and one of the costliest of its kind.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TinyServer
from tests.server.turns import counted

MAX_CALLS = 80_000
"""Of functions in a turn: less than ten milliseconds."""
MAX_SENT = 2**20
MAX_WRITTEN = 2**19
MAX_READ = 2**16
MAX_STREAMED = 2**18

LONG = 500
PROMPTS = [[7] * LONG] * 12
SCORED = {"prompt": PROMPTS, "max_tokens": 0, "echo": True, "logprobs": 20}
TALK = {"messages": [{"role": "user", "content": "a"}]}
LONG_TALK = [{"role": "user", "content": "a"}] * 10_000
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}] * 10_000}]
SHOWN_IDS = {"n": 128, "max_tokens": 1, "return_token_ids": True}
LONG_TEXT = {"messages": [{"role": "user", "content": "a" * 7900}]}
MANY = {"prompt": [[7]] * 1024, "max_tokens": 1}
TOKENS = 65_536


@pytest.fixture(scope="module")
def quick() -> Iterator[TinyServer]:
    """An engine that gives the answers to many prompts in one step."""
    server = TinyServer(
        step_s=0.0,
        max_num_seqs=64,
        max_num_batched_tokens=65_536,
        num_blocks=32_768,
        max_model_len=200_000,
        max_body_bytes=2**22,
        max_in_flight=2048,
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
    "prompt ids of choices": ("/v1/completions", {"prompt": [7] * 8000} | SHOWN_IDS),
    "prompt ids of choices, streamed": (
        "/v1/completions",
        {"prompt": [7] * 8000, "stream": True} | SHOWN_IDS,
    ),
    "prompt ids of a chat": ("/v1/chat/completions", LONG_TEXT | SHOWN_IDS),
    "prompt ids of a chat, streamed": ("/v1/chat/completions", LONG_TEXT | SHOWN_IDS | {"stream": True}),
    "embeddings": ("/v1/embeddings", {"input": [[7] * 20] * 64}),
    "many prompts": ("/v1/completions", MANY),
    "many prompts, streamed": ("/v1/completions", MANY | {"stream": True}),
    "many texts, echoed and scored": (
        "/v1/completions",
        MANY | {"prompt": ["a"] * 1024, "echo": True, "logprobs": 0, "return_token_ids": True},
    ),
    "many embeddings": ("/v1/embeddings", {"input": ["ab"] * 1024}),
    "allowed ids": (
        "/v1/completions",
        {"prompt": [[7]] * 16, "max_tokens": 1, "allowed_token_ids": [2000] * TOKENS},
    ),
    "stop ids": (
        "/v1/completions",
        {"prompt": [7], "n": 8, "max_tokens": 1, "stop_token_ids": [2000] * TOKENS},
    ),
    "biases beyond the vocabulary": (
        "/v1/completions",
        {"prompt": [7], "max_tokens": 1, "logit_bias": {str(token): 1 for token in range(TOKENS)}},
    ),
    "bad words": ("/v1/completions", MANY | {"prompt": [[7]] * 64, "bad_words": ["a b c d"] * 512}),
    "many messages": ("/v1/chat/completions", {"messages": LONG_TALK, "max_tokens": 1}),
    "many parts of a message": ("/v1/chat/completions", {"messages": PARTS, "max_tokens": 1}),
    "many items of a response": ("/v1/responses", {"input": LONG_TALK, "max_output_tokens": 1}),
    "many messages of Anthropic's API": (
        "/v1/messages",
        {"model": "tiny", "messages": LONG_TALK, "max_tokens": 1},
    ),
    "many messages of Ollama's API": (
        "/api/chat",
        {"messages": LONG_TALK, "truncate": False, "options": {"num_predict": 1}},
    ),
    "many vectors of Ollama's API": ("/api/embed", {"input": ["ab"] * 1024}),
    "many tokenized messages": ("/tokenize", {"messages": LONG_TALK, "return_token_strs": True}),
    "many ids": ("/detokenize", {"tokens": [7] * 2**18}),
    "a tokenized text": ("/tokenize", {"prompt": "a b " * 1600, "return_token_strs": True}),
}


REFUSED = {"biases beyond the vocabulary"}


SAMPLED = {
    "a chat's alternatives, streamed", "a response's alternatives", "stop strings", "echoed ids",
    "prompt ids of choices, streamed", "many texts, echoed and scored", "many embeddings",
    "allowed ids", "biases beyond the vocabulary", "bad words", "many messages", "many items of a response",
    "many messages of Anthropic's API", "many messages of Ollama's API", "many ids", "a tokenized text",
}  # fmt: skip
"""One of each kind of work, in the usual run."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SAMPLED else pytest.mark.long) for case in CASES]
)
def test_a_turn_of_the_event_loop_is_short(
    case: str, quick: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, body = CASES[case]
    written = json.dumps(body).encode()  # not counted as the server's
    with counted(quick, monkeypatch) as turns:
        answer = quick.http.post(path, content=written, headers={"Content-Type": "application/json"})
    assert answer.status_code == (400 if case in REFUSED else 200), answer.text[:500]
    print(
        f"{case}: {len(answer.content)} bytes in {turns.turns} turns, most {turns.most}, total {turns.total}"
    )
    assert turns.most.calls <= MAX_CALLS
    assert turns.most.written <= MAX_WRITTEN
    assert turns.most.read <= MAX_READ
    assert turns.most.sent <= MAX_SENT
    assert turns.most.streamed <= MAX_STREAMED


def test_a_stored_conversation_is_bounded_as_a_body_is_and_read_in_short_turns(
    quick: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = {"type": "input_text", "text": "a"}
    turn = {"input": [{"role": "user", "content": [part] * 900}] * 15, "max_output_tokens": 1}

    def respond(**body: Any) -> dict[str, Any]:
        answer = quick.http.post("/v1/responses", json={"truncation": "auto", "max_output_tokens": 1} | body)
        assert answer.status_code == 200, answer.text[:500]
        return dict(answer.json())

    first = respond(**turn)
    with counted(quick, monkeypatch) as turns, ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda _: respond(input="x", previous_response_id=first["id"]), range(8)))
    assert all(answer["usage"]["input_tokens"] > 15 * 900 and answer["store"] for answer in answers)
    print(turns.most)
    assert turns.most.calls <= MAX_CALLS
    assert turns.most.parsed <= 2**16
    second = respond(**turn, previous_response_id=first["id"])
    third = respond(**turn, previous_response_id=second["id"])
    assert (first["store"], second["store"], third["store"]) == (True, True, False)
    lost = quick.http.post("/v1/responses", json={"input": "x", "previous_response_id": third["id"]})
    assert lost.json()["error"]["code"] == "previous_response_not_found"


def test_long_conversations_are_rendered_one_after_the_other(
    quick: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further thread that runs Python would make the event loop wait longer for the interpreter's lock."""
    render, guard = Tokenizer.apply_chat_template, threading.Lock()
    running, rendered, most = 0, 0, 0

    def counted_render(*args: Any, **options: Any) -> str:
        nonlocal running, rendered, most
        with guard:
            running, rendered = running + 1, rendered + 1
            most = max(most, running)
        try:
            return render(*args, **options)
        finally:
            with guard:
                running -= 1

    monkeypatch.setattr(Tokenizer, "apply_chat_template", counted_render)
    with ThreadPoolExecutor(4) as callers:
        answers = list(
            callers.map(lambda _: quick.http.post("/tokenize", json={"messages": LONG_TALK}), range(4))
        )
    assert [answer.status_code for answer in answers] == [200] * 4
    assert (rendered, most) == (4, 1)
