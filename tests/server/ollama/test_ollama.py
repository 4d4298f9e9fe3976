"""Ollama's API with its official client; the model says what the test has it say."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from typing import Any

import httpx
import ollama
import pytest

from headrace.errors import InvalidParams
from headrace.server.access.keys import Caller
from headrace.server.ollama import route
from headrace.server.ollama.conversation import chat_messages
from tests.server.conftest import ServeProcess, TinyServer
from tests.server.echo import echo, echo_server
from tests.server.keyring import keyed, secret
from tests.server.openai.test_refusals import until

__all__ = ["echo"]  # a fixture

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather", "parameters": SCHEMA},
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
THOUGHT = f"<think>Hm.</think>I look. {CALLS}"


def client_of(server: TinyServer | ServeProcess, key: str | None = None) -> ollama.Client:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return ollama.Client(host=server.url, headers=headers, timeout=30)


@pytest.fixture
def client(echo: TinyServer) -> ollama.Client:
    return client_of(echo)


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]} | more


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": text} | more


def lines(server: TinyServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in answer.iter_lines()]


# ---- Chats ----


def test_a_chat(client: ollama.Client) -> None:
    answer = client.chat(**said("Hello ü"))
    assert (answer.model, answer.message.role, answer.message.content) == ("tiny", "assistant", "Hello ü")
    assert answer.done and answer.done_reason == "stop" and answer.message.tool_calls is None
    assert answer.prompt_eval_count and answer.prompt_eval_count > 3
    assert answer.eval_count and answer.eval_count > 2
    assert answer.prompt_eval_duration and answer.eval_duration and answer.total_duration
    assert answer.total_duration > answer.eval_duration > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", answer.created_at or "")


def test_a_streamed_chat_equals_the_whole_one(client: ollama.Client) -> None:
    *parts, last = client.chat(**said("one two three"), stream=True)
    assert "".join(part.message.content or "" for part in parts) == "one two three"
    assert not any(part.done for part in parts) and len(parts) > 1
    assert last.done and last.done_reason == "stop" and last.message.content == ""
    whole = client.chat(**said("one two three"))
    assert (last.eval_count, last.prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)


def test_answers_are_streamed_by_default(echo: TinyServer) -> None:
    assert len(lines(echo, "/api/chat", said("word " * 50))) > 3
    whole = echo.http.post("/api/chat", json=said("a b c", stream=False))
    assert (
        whole.headers["content-type"] == "application/json" and whole.json()["message"]["content"] == "a b c"
    )


def test_calls_and_their_results(client: ollama.Client) -> None:
    first = client.chat(**said(THOUGHT, tools=[WEATHER, NOW]))
    assert (first.message.thinking, first.message.content) == ("Hm.", "I look.")
    calls = first.message.tool_calls or ()
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("weather", {"city": "Oslo"}),
        ("now", {}),
    ]
    conversation = [
        {"role": "user", "content": "Weather?"},
        first.message,
        {"role": "tool", "content": "rain", "tool_name": "weather"},
        {"role": "tool", "content": "late", "tool_name": "now"},
        {"role": "user", "content": "So it rains."},
    ]
    second = client.chat(model="tiny", messages=conversation, tools=[WEATHER, NOW])
    assert second.message.content == "So it rains."


def test_a_function_of_python_is_a_tool(client: ollama.Client) -> None:
    def weather(city: str) -> str:
        """The weather.

        Args:
            city: where
        """
        return city

    answer = client.chat(**said(CALLS, tools=[weather]))
    (call, _) = answer.message.tool_calls or ()
    assert weather(**call.function.arguments) == "Oslo"


def test_streamed_calls_come_whole(client: ollama.Client) -> None:
    parts = list(client.chat(**said(THOUGHT, tools=[WEATHER, NOW]), stream=True))
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [call.function.name for call in calls] == ["weather", "now"]
    assert calls[0].function.arguments == {"city": "Oslo"}
    assert "".join(part.message.thinking or "" for part in parts) == "Hm."
    assert "".join(part.message.content or "" for part in parts) == "I look."


@pytest.mark.parametrize("think", [True, "high"])
def test_thoughts_are_separate(client: ollama.Client, think: Any) -> None:
    message = client.chat(**said("<think>Hm.</think>So."), think=think).message
    assert (message.thinking, message.content) == ("Hm.", "So.")


def test_thoughts_are_left_out_when_disabled(client: ollama.Client) -> None:
    message = client.chat(**said("<think>Hm.</think>So."), think=False).message
    assert (message.thinking, message.content) == (None, "So.")


def test_results_belong_to_calls() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    other = {"id": "x", "function": {"name": "now", "arguments": {}}}
    chat = chat_messages(
        [
            {"role": "assistant", "content": "", "tool_calls": [call, other, call], "thinking": "Hm."},
            {"role": "tool", "content": "late", "tool_name": "now"},
            {"role": "tool", "content": "rain", "name": "weather"},
            {"role": "tool", "content": "sun"},
            {"role": "user", "content": None},
        ]
    )
    assert [each["id"] for each in chat[0]["tool_calls"]] == ["call00000", "x", "call00001"]
    assert chat[0]["reasoning_content"] == "Hm."
    assert [(each["tool_call_id"], each["name"]) for each in chat[1:4]] == [
        ("x", "now"),
        ("call00000", "weather"),
        ("call00001", "weather"),
    ]
    assert chat[4] == {"role": "user", "content": ""}


def test_an_unfinished_answer_is_continued(client: ollama.Client) -> None:
    conversation = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Once"}]
    continued = client.chat(model="tiny", messages=conversation)
    asked_anew = client.chat(model="tiny", messages=[*conversation, {"role": "user", "content": "Hello"}])
    assert continued.prompt_eval_count and asked_anew.prompt_eval_count
    assert continued.prompt_eval_count < asked_anew.prompt_eval_count


# ---- Completions ----


def test_a_completion_of_a_prompt(client: ollama.Client) -> None:
    answer = client.generate(**asked("Hello", system="Be brief."))
    assert answer.response == "Hello" and answer.done and answer.done_reason == "stop"
    *parts, last = client.generate(**asked("one two three"), stream=True)
    assert "".join(part.response or "" for part in parts) == "one two three"
    assert last.done and last.eval_count


def test_a_raw_prompt_has_no_template(client: ollama.Client) -> None:
    raw = client.generate(**asked("Once upon", raw=True, options={"num_predict": 4}))
    templated = client.generate(**asked("Once upon", options={"num_predict": 4}))
    assert raw.prompt_eval_count and templated.prompt_eval_count
    assert raw.prompt_eval_count < templated.prompt_eval_count


@pytest.mark.parametrize(
    ("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (-1, "load"), (0, "unload"), ("0m", "unload")]
)
def test_without_a_prompt_the_model_is_loaded(client: ollama.Client, keep_alive: Any, reason: str) -> None:
    for answer in (
        client.generate(model="tiny", keep_alive=keep_alive),
        client.chat(model="tiny", messages=[], keep_alive=keep_alive),
    ):
        assert (answer.done, answer.done_reason, answer.eval_count) == (True, reason, None)


# ---- Options ----


def test_lengths_and_stop_sequences(client: ollama.Client) -> None:
    short = client.chat(**said("one two three four five", options={"num_predict": 2}))
    assert (short.done_reason, short.eval_count) == ("length", 2)
    for stop in (["three", "nine"], "three"):
        stopped = client.chat(**said("one two three four", options={"stop": stop}))
        assert (stopped.done_reason, stopped.message.content) == ("stop", "one two ")
    endless = client.chat(
        **said("a b", options={"num_predict": -1.0, "num_ctx": 10**6, "top_k": 0, "seed": -3})
    )
    assert endless.message.content == "a b"


def test_num_ctx_bounds_prompt_and_answer(client: ollama.Client) -> None:
    text = "word " * 100
    free = client.chat(**said(text))
    assert free.prompt_eval_count and free.prompt_eval_count > 100 and free.eval_count
    room = 20
    bounded = client.chat(**said(text, options={"num_ctx": free.prompt_eval_count + room}))
    assert (bounded.done_reason, bounded.eval_count) == ("length", room)


def test_excess_turns_are_left_out(echo: TinyServer) -> None:
    turns = [{"role": "user", "content": f"{number} {'word ' * 50}"} for number in range(20)]
    body = {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, *turns],
        "stream": False,
    }
    short = body | {"options": {"num_ctx": 400, "num_predict": 20}}
    answer = echo.http.post("/api/chat", json=short)
    assert answer.status_code == 200 and answer.json()["prompt_eval_count"] <= 380
    assert answer.json()["message"]["content"].startswith("19 word")
    refused = echo.http.post("/api/chat", json=short | {"truncate": False})
    assert refused.status_code == 400 and "the context holds 400 tokens" in refused.json()["error"]


def test_the_beginning_of_a_long_prompt_is_left_out(tale: ServeProcess) -> None:
    client = client_of(tale)
    prompt = "long " * 20_000 + "and the end"
    whole = client.generate(model="tale", prompt=prompt, system="Be brief.", options={"num_predict": 3})
    assert whole.prompt_eval_count and 900 < whole.prompt_eval_count <= 1024 - 3 and whole.eval_count == 3
    with pytest.raises(ollama.ResponseError, match="context"):
        client._request(
            ollama.GenerateResponse, "POST", "/api/generate",
            json={"model": "tale", "prompt": prompt, "truncate": False, "stream": False},
        )  # fmt: skip


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_bodies_are_json_whatever_their_type_says(echo: TinyServer, kind: str | None) -> None:
    """As `curl -d` sends them; pages of other origins are refused by their Origin."""
    headers = {} if kind is None else {"Content-Type": kind}
    answer = echo.http.post("/api/chat", content=json.dumps(said("Hi", stream=False)), headers=headers)
    assert answer.status_code == 200 and answer.json()["message"]["content"] == "Hi"
    foreign = echo.http.post(
        "/api/chat", content=json.dumps(said("Hi")), headers=headers | {"Origin": "http://evil.example"}
    )
    assert foreign.status_code == 403 and "error" in foreign.json()


def test_results_find_their_calls_in_linear_time(echo: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many calls and results are read off the event loop; the first open call is found at once."""
    call = {"function": {"name": "f", "arguments": {}}}
    body = {
        "messages": [
            {"role": "assistant", "tool_calls": [call] * 1000},
            *({"role": "tool", "content": "", "tool_name": "g"} for _ in range(400)),
            {"role": "user", "content": "Hi"},
        ],
        "stream": False,
        "options": {"num_ctx": 64},
    }
    threads: list[str] = []
    real = route.chat_messages

    def noted(messages: Any) -> list[dict[str, Any]]:
        threads.append(threading.current_thread().name)
        return real(messages)

    monkeypatch.setattr(route, "chat_messages", noted)
    assert echo.http.post("/api/chat", json=body).status_code in (200, 400)
    assert len(threads) == 1 and threads[0].startswith("long-texts")


def test_names_as_ollama_reads_them(echo: TinyServer) -> None:
    for name, shown in (
        ("TINY", "TINY"),
        ("alias:latest", "alias:latest"),
        ("", "tiny"),
        (":latest", "tiny"),
    ):
        answer = echo.http.post("/api/generate", json={"model": name, "prompt": ""})
        assert (answer.status_code, answer.json().get("model")) == (200, shown)
    assert echo.http.post("/api/embed", json={"input": ""}).json()["embeddings"] == []


def test_log_probabilities(client: ollama.Client) -> None:
    whole = client.chat(**said("one two"), logprobs=True, top_logprobs=2)
    assert whole.logprobs and len(whole.logprobs) == whole.eval_count
    assert all(entry.logprob <= 0 and len(entry.top_logprobs or ()) == 2 for entry in whole.logprobs)
    *parts, _ = client.chat(**said("one two"), logprobs=True, stream=True)
    assert sum(len(part.logprobs or ()) for part in parts) == whole.eval_count


# ---- The bundled model, as users serve it ----


def test_the_bundled_model(tale: ServeProcess) -> None:
    client = client_of(tale)
    steady = {"temperature": 0, "num_predict": 24}
    by_ollama = client.generate(model="tale", prompt="Once upon a time", raw=True, options=steady)
    body = {"model": "tale", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
    by_openai = httpx.post(f"{tale.url}/v1/completions", json=body).json()
    assert by_ollama.response == by_openai["choices"][0]["text"]
    assert by_ollama.eval_count == by_openai["usage"]["completion_tokens"]
    seeded = [
        client.chat(
            **said("A cat.", model="tale:latest", options={"seed": seed, "num_predict": 30})
        ).message.content
        for seed in (7, 7, 8)
    ]
    assert seeded[0] == seeded[1] != seeded[2]


def test_forms(tale: ServeProcess) -> None:
    client = client_of(tale)
    options = {"num_predict": 200, "seed": 3}
    schema = {
        "type": "object", "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["age"], "additionalProperties": False,
    }  # fmt: skip
    answer = client.chat(**said("A cat.", model="tale", format=schema, options=options))
    assert 0 <= json.loads(answer.message.content or "")["age"] <= 99
    form = client.generate(model="tale", prompt="A cat.", format="json", options=options)
    assert form.done_reason == "length" or isinstance(json.loads(form.response), dict)


def test_vectors(tale: ServeProcess) -> None:
    client = client_of(tale)
    found = client.embed(model="tale", input=["A cat.", "A dog."])
    assert len(found.embeddings) == 2 and found.prompt_eval_count and found.prompt_eval_count > 3
    assert sum(x * x for x in found.embeddings[0]) == pytest.approx(1)
    body = {"model": "tale", "input": ["A cat.", "A dog."]}
    by_openai = httpx.post(f"{tale.url}/v1/embeddings", json=body).json()["data"]
    assert [list(one) for one in found.embeddings] == [
        pytest.approx(each["embedding"], abs=1e-6) for each in by_openai
    ]
    shorter = client.embed(model="tale", input="A cat.", dimensions=8)
    assert len(shorter.embeddings) == 1 and len(shorter.embeddings[0]) == 8
    old = client.embeddings(model="tale", prompt="A cat.")
    scale = sum(x * x for x in old.embedding) ** 0.5
    assert scale != pytest.approx(1)
    assert [x / scale for x in old.embedding] == pytest.approx(list(found.embeddings[0]), abs=1e-6)
    assert client.embed(model="tale", input=[]).embeddings == []
    long = client.embed(model="tale", input="A cat. " * 3000)  # Ollama cuts what is too long
    assert long.prompt_eval_count and long.prompt_eval_count > 1000
    with pytest.raises(ollama.ResponseError, match="context"):
        client.embed(model="tale", input="A cat. " * 3000, truncate=False)


def test_what_is_served(tale: ServeProcess) -> None:
    client = client_of(tale)
    model, other = client.list().models
    assert other.model == "storyteller"
    assert model.model == "tale" and model.size and model.size > 10**6 and model.modified_at
    assert model.digest and re.fullmatch("[0-9a-f]{32,}", model.digest)
    assert model.details and model.details.family == "llama" and model.details.format == "safetensors"
    assert model.details.parameter_size and re.fullmatch(r"\d+\.\dM", model.details.parameter_size)
    assert model.details.quantization_level in ("bf16", "bf16-a32")  # as the CPU multiplies bfloat16, or not
    loaded = client.ps().models[0]
    assert loaded.model == "tale" and loaded.context_length and loaded.expires_at
    shown = client.show("tale:latest")
    assert shown.capabilities is not None and "completion" in shown.capabilities
    assert shown.template and shown.modelinfo
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == loaded.context_length
    assert shown.modelinfo["general.parameter_count"] > 10**6
    version = httpx.get(f"{tale.url}/api/version").json()["version"]
    assert [part.isdecimal() for part in version.split(".")] == [True] * 3
    assert httpx.head(f"{tale.url}/").status_code == httpx.get(f"{tale.url}/").status_code == 200


@pytest.mark.parametrize("act", ["pull", "push", "create", "copy", "delete"])
def test_there_is_no_registry(client: ollama.Client, act: str) -> None:
    arguments = {"create": {"model": "x", "from_": "tiny"}, "copy": {"source": "tiny", "destination": "x"}}
    with pytest.raises(ollama.ResponseError, match="the model that it was started with") as refused:
        getattr(client, act)(**arguments.get(act, {"model": "tiny"}))
    assert refused.value.status_code == 501


# ---- Errors and keys ----


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("chat", {"messages": 7}, "messages"), ("chat", {"messages": [7]}, r"messages\[0\]"),
        ("chat", {"messages": [{"role": 7, "content": "x"}]}, r"messages\[0\].role"),
        ("chat", {"messages": [{"role": "user", "content": ["x"]}]}, r"messages\[0\].content"),
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": 7}]}, r"messages\[0\].tool_calls"),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, r"messages\[0\].tool_calls"),
        ("chat", {"tools": [{"name": "f"}]}, r"tools\[0\]"), ("chat", {"temprature": 1}, "temprature"),
        ("chat", {"options": {"temprature": 1}}, "temperature"), ("chat", {"options": {"mirostat": 2}}, "mirostat"),
        ("chat", {"options": {"num_predict": 3.5}}, "num_predict"), ("chat", {"messages": False}, "messages"),
        ("chat", {"messages": [{"role": "user", "content": "x", "thinking": 5}]}, r"messages\[0\].thinking"),
        ("chat", {"messages": [{"role": "tool", "tool_call_id": [1]}]}, r"messages\[0\].tool_call_id"),
        ("chat", {"keep_alive": "forever"}, "keep_alive.*5m"), ("chat", {"think": ""}, "low, medium, high"),
        ("chat", {"options": {"num_ctx": 0}}, "num_ctx"),
        ("chat", {"options": {"num_ctx": 2}}, "options.num_ctx is 2"), ("chat", {"options": {"stop": [""]}}, "stop"),
        ("chat", {"format": "xml"}, "format"), ("chat", {"format": {"a": float("inf")}}, "format"),
        ("chat", {"top_logprobs": 3}, "logprobs"), ("chat", {"think": "hard"}, "think"),
        ("generate", {"suffix": "x"}, "suffix"), ("generate", {"images": ["aGk="]}, "images"),
        ("generate", {"template": "x"}, "template"), ("generate", {"context": [1]}, "context"),
        ("generate", {"raw": True, "system": "x"}, "raw"), ("generate", {"prompt": 7}, "prompt"),
        ("embed", {"input": 7}, "input"), ("embed", {"input": ["a"] * 2000}, "at most"),
        ("embed", {"dimensions": 10**5}, "dimensions"), ("embed", {"input": [[1]]}, "input"),
        ("show", {"verbose": 7}, "verbose"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_refused(echo: TinyServer, path: str, fields: dict[str, Any], says: str) -> None:
    base = {"chat": said("Hi"), "generate": asked("Hi"), "embed": {"input": "a"}, "show": {"model": "tiny"}}
    answer = echo.http.post(
        f"/api/{path}",
        content=json.dumps(base[path] | {"model": "tiny"} | fields),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert list(answer.json()) == ["error"] and re.search(says, answer.json()["error"]), answer.text


def test_options_without_effect_are_accepted(client: ollama.Client) -> None:
    options = {"num_thread": 2, "num_gpu": 99, "num_keep": 4, "use_mmap": True, "tfs_z": 1.0, "typical_p": 1.0,
               "repeat_last_n": 64, "mirostat": 0, "low_vram": False, "num_batch": 512}  # fmt: skip
    assert client.chat(**said("Hi", options=options)).message.content == "Hi"


def test_every_error_has_the_apis_form(echo: TinyServer, client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="is not served here") as lost:
        client.chat(**said("Hi", model="llama3.2"))
    assert lost.value.status_code == 404
    for answer, status in (
        (echo.http.get("/api/chat"), 405),
        (echo.http.post("/api/chat", content=b"{"), 400),
        (echo.http.post("/api/generate", content=b"x" * 200_000), 413),
        (echo.http.post("/api/show", json={"model": "x"}), 404),
        (echo.http.get("/api/nothing"), 404),
    ):
        assert answer.status_code == status and isinstance(answer.json()["error"], str), answer.text
        assert int(answer.headers["content-length"]) == len(answer.content)


def test_an_error_in_a_stream_is_a_line(doomed: TinyServer) -> None:
    with doomed.http.stream("POST", "/api/generate", json=asked("Hi", raw=True)) as answer:
        parts = answer.iter_lines()
        assert not json.loads(next(parts))["done"]
        os.kill(doomed.client.pid, signal.SIGKILL)
        *_, last = map(json.loads, parts)
    assert list(last) == ["error"] and "SIGKILL" in last["error"]


def test_a_disconnect_frees_blocks(doomed: TinyServer) -> None:
    with doomed.http.stream("POST", "/api/generate", json=asked("Hi", raw=True)) as answer:
        next(answer.iter_lines())
        assert doomed.stats().running == 1
    until(lambda: doomed.idle)


def test_keys_and_records(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = echo_server(
        tmp_path_factory.mktemp("keys") / "model",
        "hermes",
        traffic=keyed(Caller("ann", admin=True), Caller("bob")),
    )
    try:
        assert client_of(server, secret("ann")).chat(**said("Hi")).message.content == "Hi"
        with pytest.raises(ollama.ResponseError, match="key") as refused:
            client_of(server).chat(**said("Hi"))
        assert refused.value.status_code == 401
        headers = {"Authorization": f"Bearer {secret('ann')}"}
        usage = server.http.get("/usage", headers=headers).json()
        assert "ann" in json.dumps(usage)
        assert re.search(
            r'http_requests_total{[^}]*route="/api/chat"[^}]*status="200"[^}]*} 1',
            server.http.get("/metrics", headers=headers).text,
        )
    finally:
        server.close()


def test_the_asynchronous_client(echo: TinyServer) -> None:
    async def both() -> tuple[str, str]:
        client = ollama.AsyncClient(host=echo.url)
        whole = await client.chat(**said("one two"))
        parts = [
            part.message.content or "" async for part in await client.chat(**said("one two"), stream=True)
        ]
        return whole.message.content or "", "".join(parts)

    assert asyncio.run(both()) == ("one two", "one two")


@pytest.mark.parametrize("shape", [7, [], [7], [{"role": "user", "content": 7}]])
def test_conversations_of_another_shape(shape: Any) -> None:
    with pytest.raises(InvalidParams, match="messages"):
        chat_messages(shape)
