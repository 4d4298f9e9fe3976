"""`echo` of /v1/completions, as evaluation harnesses use it: prompts scored, with or without output after them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TALE, ServeProcess, TinyServer

TEXT = "Once upon a time there was a fox"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


def test_echo_starts_with_the_prompt(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    plain = tiny.openai.completions.create(model="tiny", prompt=["Once", TEXT], n=2, max_tokens=5)
    echo = tiny.openai.completions.create(model="tiny", prompt=["Once", TEXT], n=2, max_tokens=5, echo=True)
    fronts = ["Once", "Once", TEXT, TEXT]
    assert [c.text for c in echo.choices] == [
        front + c.text for front, c in zip(fronts, plain.choices, strict=True)
    ]
    ids = tokenizer.encode(TEXT)
    by_ids = tiny.openai.completions.create(model="tiny", prompt=ids, max_tokens=5, echo=True)
    assert by_ids.choices[0].text == echo.choices[2].text
    assert echo.choices[0].logprobs is None


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_log_probabilities_of_both(tiny: TinyServer, tokenizer: Tokenizer, max_tokens: int) -> None:
    answer = tiny.openai.completions.create(
        model="tiny", prompt=TEXT, max_tokens=max_tokens, echo=True, logprobs=2
    )
    (choice,) = answer.choices
    ids = tokenizer.encode(TEXT)
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens is not None and logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(ids) + max_tokens == len(logprobs.text_offset or ())
    assert logprobs.token_logprobs == [None] + [-0.5] * (len(ids) - 1 + max_tokens)
    assert logprobs.top_logprobs[0] is None and len(logprobs.top_logprobs[1]) == 2
    for offset, token, number in zip(
        logprobs.text_offset or (), logprobs.tokens, [*ids, *[-1] * max_tokens], strict=True
    ):
        if number not in tokenizer.special_ids:
            assert choice.text[offset:].startswith(token)
    assert choice.finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == max_tokens
    assert (choice.text == TEXT) == (max_tokens == 0)
    assert tiny.idle


@pytest.mark.parametrize("max_tokens", [0, 6])
def test_a_stream_adds_up(tiny: TinyServer, max_tokens: int) -> None:
    options: dict[str, Any] = {
        "model": "tiny", "prompt": ["Once", TEXT], "n": 2, "max_tokens": max_tokens, "echo": True, "logprobs": 1,
    }  # fmt: skip
    whole = tiny.openai.completions.create(**options)
    texts, parts = (
        [""] * 4,
        [{"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []} for _ in range(4)],
    )
    for chunk in tiny.openai.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            for name, values in parts[choice.index].items():
                values += getattr(choice.logprobs, name)
    assert texts == [choice.text for choice in whole.choices]
    assert parts == [{name: getattr(choice.logprobs, name) for name in parts[0]} for choice in whole.choices]


def test_continuous_usage(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    counts = []
    for chunk in tiny.openai.completions.create(
        model="tiny", prompt=TEXT, max_tokens=5, stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
    ):  # fmt: skip
        assert chunk.usage is not None
        counts.append((chunk.usage.prompt_tokens, chunk.usage.completion_tokens))
    prompt = len(tokenizer.encode(TEXT))
    assert counts[-1] == (prompt, 5) and [count for _, count in counts] == sorted(
        count for _, count in counts
    )
    assert {count for count, _ in counts} == {prompt} and 0 < counts[0][1] < 5
    messages = [{"role": "user", "content": "Hello"}]
    chunks = list(
        tiny.openai.chat.completions.create(
            model="tiny", messages=messages, max_tokens=5, stream=True,  # type: ignore[arg-type]
            stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
        )
    )  # fmt: skip
    assert all(chunk.usage is not None for chunk in chunks)
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 5


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"max_tokens": 0}, "echo"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"echo": 1}, "echo"),
        ({"suffix": "end"}, "suffix is not supported"),
        ({"best_of": 3}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"logprobs": 65, "echo": True}, "logprobs"),
    ],
)
def test_refusals(tiny: TinyServer, extra: dict[str, object], says: str) -> None:
    answer = tiny.http.post("/v1/completions", json={"prompt": "a", **extra})
    assert answer.status_code == 400 and says in answer.json()["error"]["message"], answer.text


def test_the_whole_context_may_be_scored(tiny: TinyServer) -> None:
    body = {"prompt": [7] * 512, "max_tokens": 0, "echo": True, "logprobs": 0}
    answer = tiny.http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 512
    assert tiny.http.post("/v1/completions", json=body | {"max_tokens": 1}).status_code == 400


def test_a_models_scores_are_those_of_the_offline_engine(tale: ServeProcess) -> None:
    """The sum over a continuation is what harnesses compare answers by."""
    client = tale.openai()
    llm = LLM("tale", num_threads=1, show_progress=False)
    (offline,) = llm.generate(TEXT, SamplingParams(max_tokens=0, prompt_logprobs=3), use_tqdm=False)
    assert offline.prompt_logprobs is not None
    required = [next(iter(entry.values())).logprob for entry in offline.prompt_logprobs if entry is not None]
    for max_tokens in (0, 1):
        answer = client.completions.create(
            model="tale", prompt=TEXT, max_tokens=max_tokens, temperature=0, echo=True, logprobs=3
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None and logprobs.token_logprobs is not None
        assert logprobs.token_logprobs[1 : len(required) + 1] == required
        assert all(math.isfinite(value) for value in required)


def test_offsets_follow_characters_of_several_tokens(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    """Each byte of these is a token of its own; some tokens have no text at all."""
    text = "a€b\U0001f600c é"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) > len(text) and tokenizer.decode(ids) == text
    answer = tiny.openai.completions.create(model="tiny", prompt=ids, max_tokens=0, echo=True, logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and answer.choices[0].text == text
    expected, at = [], 0
    for count in range(len(ids)):
        begun = tokenizer.decode(ids[:count])
        expected.append(len(begun.rstrip("\ufffd")))
        at = max(at, expected[-1])
    assert logprobs.text_offset == expected
    assert at < len(text)
    more = tiny.openai.completions.create(model="tiny", prompt=ids, max_tokens=2, echo=True, logprobs=0)
    assert (more.choices[0].logprobs.text_offset or ())[len(ids)] == len(text)  # type: ignore[union-attr]
