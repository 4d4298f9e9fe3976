"""vLLM's fields about prompts: how a chat becomes one, truncation, and what an answer reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.server.requests.prompts import LONG_CHARS, encode_chat
from headrace.server.requests.service import Service
from headrace.text.tokenizer import Tokenizer
from tests.running import over
from tests.server.conftest import TALE, TinyServer
from tests.server.echo import echo_server, model_folder

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Once upon a time"}
BEGUN = {"role": "assistant", "content": "There was "}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


@pytest.fixture(scope="module", params=["effort", "trims"])
def templated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TinyServer]:
    server = TinyServer(folder=model_folder(tmp_path_factory.mktemp("model") / "model", request.param))
    server.kind = request.param  # type: ignore[attr-defined]
    yield server
    server.close()


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    server = echo_server(tmp_path_factory.mktemp("echo") / "model", "hermes")
    yield server
    server.close()


def ask(server: TinyServer, path: str, **body: Any) -> dict[str, Any]:
    answer = server.http.post(path, json={"max_tokens": 2, **body})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(server: TinyServer, path: str, **body: Any) -> str:
    answer = server.http.post(path, json={"max_tokens": 2, **body})
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def prompt_of(server: TinyServer, tokenizer: Tokenizer, **body: Any) -> str:
    """What the model sees of a chat."""
    ids = ask(server, CHAT, return_token_ids=True, **body)["prompt_token_ids"]
    assert ids == server.http.post("/tokenize", json={
        name: value for name, value in body.items() if name != "reasoning_effort"
    }).json()["tokens"] or "reasoning_effort" in body  # fmt: skip
    return tokenizer.decode(ids, skip_special_tokens=False)


# ---- Chat templates ----


def test_reasoning_effort_reaches_the_template(templated: TinyServer, tokenizer: Tokenizer) -> None:
    if templated.kind != "effort":  # type: ignore[attr-defined]
        assert "low" not in prompt_of(templated, tokenizer, messages=[USER], reasoning_effort="low")
        return
    for fields, shown in (
        ({}, "/"),
        ({"reasoning_effort": "high"}, "high/True"),
        ({"reasoning_effort": "none"}, "none/False"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "/False"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "low/False"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "x"}}, "low/True"),
    ):
        assert prompt_of(templated, tokenizer, messages=[USER], **fields).startswith(
            f"<|begin|>{shown}<|user|>"
        )
    assert "reasoning_effort" in refused(templated, CHAT, messages=[USER], reasoning_effort="some")
    body = {"input": "a", "reasoning": {"effort": "none"}, "max_output_tokens": 2}
    assert templated.http.post("/v1/responses", json=body).status_code == 200


def test_a_continued_message(templated: TinyServer, tokenizer: Tokenizer) -> None:
    trims = templated.kind == "trims"  # type: ignore[attr-defined]
    for content in (BEGUN["content"], [{"type": "text", "text": BEGUN["content"]}]):
        messages = [USER, {"role": "assistant", "content": content}]
        prompt = prompt_of(templated, tokenizer, messages=messages, continue_final_message=True)
        assert prompt.endswith("<|end|><|assistant|>There was" + ("" if trims else " "))
        assert prompt.count("<|assistant|>") == 1 and prompt.count("<|end|>") == 1
    closed = prompt_of(templated, tokenizer, messages=[USER, BEGUN], add_generation_prompt=False)
    assert closed.endswith("There was<|end|>" if trims else "There was <|end|>")
    assert prompt_of(templated, tokenizer, messages=[USER, BEGUN]).endswith("<|end|><|assistant|>")


def test_what_cannot_be_continued(tiny: TinyServer) -> None:
    both = {"continue_final_message": True, "add_generation_prompt": True}
    for path in (CHAT, "/tokenize"):
        body = {"messages": [USER, BEGUN], **both} | ({"max_tokens": 2} if path == CHAT else {})
        answer = tiny.http.post(path, json=body)
        assert answer.status_code == 400 and "cannot both be true" in answer.text
    called = {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    assert "messages" in refused(tiny, CHAT, messages=[], continue_final_message=True)
    assert refused(tiny, CHAT, messages=[USER, BEGUN], chat_template_kwargs={"continue_final_message": True})
    assert ask(tiny, CHAT, messages=[USER, called], continue_final_message=True)[
        "choices"
    ]  # written out as text


def test_a_continued_thought(echo: TinyServer) -> None:
    """The model of this server repeats what the user said."""
    user = {"role": "user", "content": "so be it</think>Yes."}
    for begun, thought, said in (
        ("<think>I wonder, ", "so be it", "Yes."),
        ("<think>I wonder.</think>Well, ", None, "so be it</think>Yes."),
        ("Well, ", None, "so be it</think>Yes."),
    ):
        messages = [user, {"role": "assistant", "content": begun}]
        message = ask(echo, CHAT, messages=messages, continue_final_message=True, max_tokens=50)["choices"][
            0
        ]["message"]
        assert (message.get("reasoning_content"), message["content"]) == (thought, said)


def test_special_tokens_around_a_chat(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    plain = ask(tiny, CHAT, messages=[USER], return_token_ids=True)["prompt_token_ids"]
    more = ask(tiny, CHAT, messages=[USER], return_token_ids=True, add_special_tokens=True)[
        "prompt_token_ids"
    ]
    text = tokenizer.decode(plain, skip_special_tokens=False)
    assert plain == tokenizer.encode(text, add_special_tokens=False)
    assert more == tokenizer.encode(text, add_special_tokens=True)
    assert more != plain


# ---- What is cut off ----


def test_prompts_are_shortened(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    def kept(**fields: Any) -> list[list[int]]:
        answer = ask(tiny, COMPLETION, prompt=[[1, 2, 3, 4, 5], [6, 7]], return_token_ids=True, **fields)
        rows = [choice["prompt_token_ids"] for choice in answer["choices"]]
        assert answer["usage"]["prompt_tokens"] == sum(map(len, rows))
        return rows

    assert kept() == [[1, 2, 3, 4, 5], [6, 7]]
    assert kept(truncate_prompt_tokens=3) == [[3, 4, 5], [6, 7]]
    assert kept(truncate_prompt_tokens=3, truncation_side="left") == [[3, 4, 5], [6, 7]]
    assert kept(truncate_prompt_tokens=1, truncation_side="right") == [[1], [6]]
    assert kept(truncate_prompt_tokens=-1) == [[1, 2, 3, 4, 5], [6, 7]]
    long = list(range(5, 605))
    for fields, room in (({"max_tokens": 12}, 500), ({"max_tokens": None}, 496)):
        answer = ask(
            tiny, COMPLETION, prompt=long, truncate_prompt_tokens=-1, return_token_ids=True, **fields
        )
        assert answer["choices"][0]["prompt_token_ids"] == long[-room:]
    assert "empty" in refused(tiny, COMPLETION, prompt=[1], truncate_prompt_tokens=0)
    assert "context" in refused(tiny, COMPLETION, prompt=long, truncate_prompt_tokens=550)
    assert "truncate_prompt_tokens" in refused(tiny, COMPLETION, prompt=[1], truncate_prompt_tokens=-2)
    echoed = ask(
        tiny, COMPLETION, prompt="Once upon a time", truncate_prompt_tokens=2, echo=True, max_tokens=0
    )
    assert echoed["choices"][0]["text"] == tokenizer.decode(tokenizer.encode("Once upon a time")[-2:])


def test_text_beyond_the_context_is_shortened(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    text = "Once upon a time " * 4000
    assert "at the very most" in refused(tiny, COMPLETION, prompt=text)
    answer = ask(tiny, COMPLETION, prompt=text, truncate_prompt_tokens=20, return_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == tokenizer.encode(text)[-20:]
    chat = {
        "messages": [{"role": "user", "content": text}],
        "truncate_prompt_tokens": 20,
        "return_token_ids": True,
    }
    ids = ask(tiny, CHAT, **chat)["prompt_token_ids"]
    assert len(ids) == 20 and tokenizer.decode(ids, skip_special_tokens=False).endswith(
        "<|end|><|assistant|>"
    )
    vectors = tiny.http.post("/v1/embeddings", json={"input": text, "truncate_prompt_tokens": 20})
    assert vectors.status_code == 200 and vectors.json()["usage"]["prompt_tokens"] == 20


# ---- What an answer reports ----


def test_token_ids(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    prompts = ["Once", "Once upon a time"]
    body = {"prompt": prompts, "n": 2, "max_tokens": 5, "return_token_ids": True}
    choices = ask(tiny, COMPLETION, **body)["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [
        tokenizer.encode(prompt) for prompt in prompts for _ in range(2)
    ]
    for choice in choices:
        assert len(choice["token_ids"]) == 5 and tokenizer.decode(choice["token_ids"]) == choice["text"]
    firsts: list[Any] = [[] for _ in choices]
    streamed: list[list[int]] = [[] for _ in choices]
    for chunk in tiny.openai.completions.create(
        model="tiny", prompt=prompts, n=2, max_tokens=5, stream=True, extra_body={"return_token_ids": True}
    ):
        for each in chunk.choices:
            streamed[each.index] += each.token_ids  # type: ignore[attr-defined]
            firsts[each.index].append(each.prompt_token_ids)  # type: ignore[attr-defined]
    assert streamed == [choice["token_ids"] for choice in choices]
    assert [each[0] for each in firsts] == [choice["prompt_token_ids"] for choice in choices]
    assert {repr(later) for each in firsts for later in each[1:]} == {"None"}
    assert "token_ids" not in tiny.http.post(COMPLETION, json={"prompt": "Once"}).text


def test_token_ids_of_chats(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    answer = ask(tiny, CHAT, messages=[USER], n=2, max_tokens=5, return_token_ids=True)
    for choice in answer["choices"]:
        assert tokenizer.decode(choice["token_ids"]) == choice["message"]["content"]
    streamed: list[list[int]] = [[], []]
    prompts = []
    for chunk in tiny.openai.chat.completions.create(
        model="tiny", messages=[USER], n=2, max_tokens=5, stream=True, extra_body={"return_token_ids": True}  # type: ignore[list-item]
    ):  # fmt: skip
        prompts.append(getattr(chunk, "prompt_token_ids", None))
        for each in chunk.choices:
            streamed[each.index] += getattr(each, "token_ids", None) or []
    assert streamed == [choice["token_ids"] for choice in answer["choices"]]
    assert prompts[0] == answer["prompt_token_ids"]
    assert sum(one is not None for one in prompts) <= 2


def test_prompt_logprobs(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Once upon a time")
    (choice,) = ask(tiny, COMPLETION, prompt="Once upon a time", prompt_logprobs=2)["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and len(others) == len(ids) - 1 and choice["logprobs"] is None
    for token, entry in zip(ids[1:], others, strict=True):
        assert 1 <= len(entry) <= 3
        assert entry[str(token)]["logprob"] == -0.5
        assert entry[str(token)]["decoded_token"] == tokenizer.token_bytes(token).decode("utf-8", "replace")
        assert all(isinstance(one["rank"], int) for one in entry.values())
    chat = ask(tiny, CHAT, messages=[USER], n=2, prompt_logprobs=0, return_token_ids=True)
    assert chat["prompt_logprobs"][0] is None
    assert [list(entry) for entry in chat["prompt_logprobs"][1:]] == [
        [str(i)] for i in chat["prompt_token_ids"][1:]
    ]
    for path, body in ((COMPLETION, {"prompt": "a"}), (CHAT, {"messages": [USER]})):
        assert "not available in streams" in refused(tiny, path, **body, prompt_logprobs=1, stream=True)
        assert "prompt_logprobs" in refused(tiny, path, **body, prompt_logprobs=-1)


def test_prompt_logprobs_beside_echo(tiny: TinyServer) -> None:
    alone = ask(tiny, COMPLETION, prompt=["Once upon", "a time"], n=2, echo=True, logprobs=1)["choices"]
    both = ask(
        tiny, COMPLETION, prompt=["Once upon", "a time"], n=2, echo=True, logprobs=1, prompt_logprobs=3
    )
    for one, other in zip(alone, both["choices"], strict=True):
        assert one["logprobs"] == other["logprobs"]
        assert len(other["prompt_logprobs"][1]) >= len(one["logprobs"]["top_logprobs"][1])
    few = ask(tiny, COMPLETION, prompt="Once upon", echo=True, logprobs=3, prompt_logprobs=0)["choices"][0]
    assert [len(entry) for entry in few["prompt_logprobs"][1:]] == [1] * (len(few["prompt_logprobs"]) - 1)


# ---- Default lengths, and long conversations ----


def test_a_prompt_just_below_the_context(tiny: TinyServer) -> None:
    answer = tiny.http.post(COMPLETION, json={"prompt": [7] * 500})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    full = tiny.http.post(COMPLETION, json={"prompt": [7] * 512})
    assert full.status_code == 400 and "16" not in full.json()["error"]["message"]
    assert "max_tokens asks for 16" in refused(tiny, COMPLETION, prompt=[7] * 500, max_tokens=16)


class Watched(Tokenizer):
    """A tokenizer that notes when it works, in seconds."""

    def __init__(self, inner: Tokenizer) -> None:
        self.__dict__ = dict(inner.__dict__)
        self.began = self.ended = 0.0

    def encode(self, *arguments: Any, **options: Any) -> list[int]:
        return self._timed(super().encode, *arguments, **options)  # type: ignore[no-any-return]

    def encode_batch(self, *arguments: Any, **options: Any) -> list[list[int]]:
        return self._timed(super().encode_batch, *arguments, **options)  # type: ignore[no-any-return]

    def _timed(self, method: Any, *arguments: Any, **options: Any) -> Any:
        self.began = time.perf_counter()
        found = method(*arguments, **options)
        self.ended = time.perf_counter()
        return found


@pytest.mark.parametrize("repeats", [5_000, 20_000])
def test_long_chats_leave_the_event_loop_to_others(tiny: TinyServer, repeats: int) -> None:
    """The loop turns in the midst of tokenizing: the thread that does it must not hold Python's lock."""
    service: Service = tiny.app.state.service
    assert service.tokenizer is not None and (27 * repeats > LONG_CHARS) == (repeats == 20_000)
    watched = Watched(service.tokenizer)
    client = SimpleNamespace(facts=replace(service.facts, max_model_len=10_000_000))
    roomy = replace(service, engine=over(client, watched))  # type: ignore[arg-type]
    turns: list[float] = []

    async def run() -> None:
        messages = [{"role": "user", "content": "Once upon a time there was " * repeats}]
        encoding = asyncio.ensure_future(encode_chat(roomy, messages, True, {}))
        while not encoding.done():
            turns.append(time.perf_counter())
            await asyncio.sleep(0)
        assert len(encoding.result().ids) > repeats

    asyncio.run(run())
    quarter = (watched.ended - watched.began) / 4
    assert any(watched.began + quarter < turn < watched.ended - quarter for turn in turns)
