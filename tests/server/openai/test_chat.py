"""/v1/chat/completions with the official client."""

from __future__ import annotations

import json

import pytest

from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TALE, TinyServer

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


def test_an_answer(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    answer = tiny.openai.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=5)  # type: ignore[arg-type]
    ids = tokenizer.encode_chat(MESSAGES)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == tokenizer.decode([ids[-1] + 1 + i for i in range(5)])
    assert choice.finish_reason == "length"
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)


def test_an_answer_may_fill_the_context(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    answer = tiny.openai.chat.completions.create(model="tiny", messages=MESSAGES)  # type: ignore[arg-type]
    assert answer.usage is not None and answer.usage.total_tokens == 512
    assert answer.choices[0].finish_reason == "length"


def test_a_stream_adds_up(tiny: TinyServer) -> None:
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "n": 2}
    whole = tiny.openai.chat.completions.create(**options)  # type: ignore[call-overload]
    texts, roles, ends, usage = ["", ""], [[], []], {}, None
    for chunk in tiny.openai.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):  # type: ignore[call-overload]
        usage = chunk.usage
        for choice in chunk.choices:
            roles[choice.index].append(choice.delta.role)
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == [choice.message.content for choice in whole.choices]
    assert all(first == "assistant" and not any(rest) for first, *rest in roles)
    assert ends == {0: "length", 1: "length"}
    assert usage is not None and usage.completion_tokens == 60
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_logprobs(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    answer = tiny.openai.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=3  # type: ignore[arg-type]
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    token = tokenizer.encode_chat(MESSAGES)[-1] + 1
    assert len(logprobs.content) == 2
    assert bytes(logprobs.content[0].bytes or []) == tokenizer.token_bytes(token)
    assert [top.logprob for top in logprobs.content[0].top_logprobs] == [-0.5, -1.5, -2.5]
    plain = tiny.openai.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=1, logprobs=True  # type: ignore[arg-type]
    )  # fmt: skip
    assert plain.choices[0].logprobs is not None and plain.choices[0].logprobs.content is not None
    assert plain.choices[0].logprobs.content[0].top_logprobs == []


def test_content_parts_are_joined(tiny: TinyServer) -> None:
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "you"}]}
    ]
    joined = [{"role": "user", "content": "Hello\nyou"}]
    first, second = (
        tiny.openai.chat.completions.create(model="tiny", messages=messages, max_tokens=1).usage  # type: ignore[arg-type]
        for messages in (parts, joined)
    )
    assert first is not None and second is not None and first.prompt_tokens == second.prompt_tokens


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": "hello"},
        {"messages": [{"role": "user"}]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"messages": [7]},
        {"messages": None},
        {},
        {"messages": MESSAGES, "top_logprobs": 2},
        {"messages": MESSAGES, "logprobs": 2},
        {"messages": MESSAGES, "tools": [{"type": "web_search"}]},
        {"messages": MESSAGES, "response_format": {"type": "json_object"}},
        {"messages": MESSAGES, "chat_template_kwargs": {"messages": []}},
        {"messages": MESSAGES, "chat_template_kwargs": 5},
        {"messages": MESSAGES, "max_tokens": 0},
        {"messages": MESSAGES, "max_completion_tokens": 513},
        {"messages": [{"role": "user", "content": "word " * 1000}]},
    ],
)
def test_chats_that_cannot_be_answered(tiny: TinyServer, body: dict[str, object]) -> None:
    answer = tiny.http.post(
        "/v1/chat/completions", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert tiny.openai.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1).choices  # type: ignore[arg-type]
