"""Chats of every family through /v1/chat/completions, streamed and not: its template, its calls, its reasoning.

One server for all: a test gives it another tokenizer, and the model says what the test has it say.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.text.tokenizer import Tokenizer
from headrace.text.tools.formats import ReplyFormats
from tests.places import TALE
from tests.server.conftest import TinyServer, served
from tests.server.echo import model_folder
from tests.serving.say_engine import COMMAND, STOP
from tests.text.families import FAMILIES, Family
from tests.text.tools.test_families import TOOLS, by_name, messages_of, written

Serve = Callable[[Family], TinyServer]
USUAL = ("gpt-oss", "qwen3-coder", "gemma4", "deepseek-v3.1")
EVERY = pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=() if one.name in USUAL else pytest.mark.long) for one in FAMILIES],
    ids=lambda one: one.name,
)


def family_folder(one: Family, folder: Path) -> Path:
    """Tale's tokenizer with the family's template and marks. The user's mark and the end's are single tokens."""
    names = dict(
        zip(("begin", "system", "assistant"), ("<|return|>" if one.calls == "openai" else "<|stop|>", *one.special),
            strict=True)
    ) | {"user": one.user, "end": one.end or "<|observation|>", "pad": "<|instead|>"}  # fmt: skip
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (TALE / name).read_text()
        for old, new in names.items():
            text = text.replace(json.dumps(f"<|{old}|>"), json.dumps(new, ensure_ascii=False))
        (folder / name).write_text(text)
    template = one.template
    if not one.end:  # the engine needs to see where the user's message ends
        template = template.replace(
            "{{ m.content }}{% endif %}{% endfor %}", "{{ m.content }}<|observation|>{% endif %}{% endfor %}"
        )
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    made = TinyServer(command=COMMAND, eos_ids=[STOP], step_s=0.0005, max_model_len=2048, num_blocks=2048)
    yield made
    made.close()


@pytest.fixture
def serve(server: TinyServer, tmp_path: Path) -> Iterator[Serve]:
    service = server.app.state.service
    inputs = service.engine.inputs
    before = inputs.tokenizer
    tokenizers: list[Tokenizer] = []

    def make(one: Family) -> TinyServer:
        tokenizer = Tokenizer.from_folder(family_folder(one, tmp_path / one.name))
        tokenizers.append(tokenizer)
        inputs.tokenizer = tokenizer
        server.app.state.service = replace(service, replies=ReplyFormats.of(tokenizer))
        return server

    yield make
    inputs.tokenizer = before
    server.app.state.service = service
    for tokenizer in tokenizers:
        tokenizer.close()


def ask(server: TinyServer, one: Family, reply: str, **more: Any) -> dict[str, Any]:
    """The message of a whole answer, which a streamed one must equal."""
    if one.end:
        reply = reply.replace(one.end, "<|instead|>")
    body = {"model": "tiny", "messages": [{"role": "user", "content": reply}], **more}
    choice = server.openai.chat.completions.create(**body).choices[0]
    whole = {
        "content": choice.message.content or "",
        "reasoning": getattr(choice.message, "reasoning_content", None) or "",
        "calls": [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []],
        "finish": choice.finish_reason,
    }
    streamed: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for chunk in server.openai.chat.completions.create(**body, stream=True):
        for part in chunk.choices:
            streamed["content"] += part.delta.content or ""
            streamed["reasoning"] += getattr(part.delta, "reasoning_content", None) or ""
            for call in part.delta.tool_calls or []:
                if call.index == len(streamed["calls"]):
                    streamed["calls"].append([call.function.name, ""])
                streamed["calls"][call.index][1] += call.function.arguments
            streamed["finish"] = part.finish_reason or streamed["finish"]
    assert streamed == whole
    return whole


@EVERY
def test_what_a_family_writes_is_the_message_that_it_means(serve: Serve, one: Family) -> None:
    server = serve(one)
    for content, reasoning, calls in messages_of(one):
        if (one.opens or one.reasoning == "deepseek_r1") and not reasoning:
            continue  # the prompt opens the reasoning
        answer = ask(
            server, one, written(one, content, reasoning, calls), tools=TOOLS,
            extra_body={"chat_template_kwargs": one.thinks},
        )  # fmt: skip
        assert (answer["content"].strip(), answer["reasoning"].strip()) == (content, reasoning), answer
        assert answer["finish"] == ("tool_calls" if calls else "stop")
        assert [name for name, _ in answer["calls"]] == [call["function"]["name"] for call in calls]
        for (_, arguments), call in zip(answer["calls"], calls, strict=True):
            assert json.loads(arguments) == json.loads(call["function"]["arguments"])


@pytest.mark.parametrize(
    ("name", "variables", "reasoning"),
    [
        ("deepseek-v3.1", {"chat_template_kwargs": {"thinking": True}}, True),
        ("deepseek-v3.1", {"chat_template_kwargs": {"thinking": False}}, False),
        ("deepseek-v3.1", {"reasoning_effort": "high"}, True),
        ("deepseek-v3.1", {"reasoning_effort": "none"}, False),
        ("qwen3", {"chat_template_kwargs": {"enable_thinking": False}}, False),
        ("gemma4", {"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_reasoning_is_switched_by_the_request(
    serve: Serve, name: str, variables: dict[str, Any], reasoning: bool
) -> None:
    one = by_name(name)
    answer = ask(serve(one), one, "Hm.</think>Yes.", extra_body=variables)
    assert (answer["reasoning"], answer["content"]) == (
        ("Hm.", "Yes.") if reasoning else ("", "Hm.</think>Yes.")
    )


def test_special_marks_are_not_shown(serve: Serve) -> None:
    one = by_name("gpt-oss")
    server = serve(one)
    answer = ask(server, one, "<|channel|>final<|message|>a <|channel|> b")
    assert answer["content"] == "a  b"
    assert ask(server, one, "<|channel|>analysis<|message|>Hm.", tools=TOOLS)["reasoning"] == "Hm."


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def said(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": said(IMAGE)}),
        ("/v1/chat/completions", {"messages": said({"type": "input_audio", "input_audio": {}})}),
        ("/v1/responses", {"input": said({"type": "input_image", "image_url": "x"})}),
        ("/v1/messages", {"max_tokens": 5, "messages": said({"type": "image", "source": {}})}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}),
    ],
)
def test_media_in_a_request_are_refused(server: TinyServer, path: str, body: dict[str, Any]) -> None:
    answer = server.http.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 400
    assert (
        "only its text part runs here" in answer.text and "messages" in answer.text
    ) or "input" in answer.text


FORCED = {
    "openai": ("<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"),
    "qwen3_coder": ("<eos>", "<tool_call>", "</tool_call>", "<a>", "<b>", "<c>"),
    "deepseek_v3": (
        "<eos>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<a>",
        "<b>",
    ),
    "gemma4": ("<eos>", "<|tool_call>", "<tool_call|>", '<|"|>', "<a>", "<b>"),
    "lfm2": ("<eos>", "<|tool_call_start|>", "<|tool_call_end|>", "<a>", "<b>", "<c>"),
    "cohere_command3": ("<eos>", "<|START_ACTION|>", "<|END_ACTION|>", "<a>", "<b>", "<c>"),
}
"""What ends a text, and marks, in place of the bundled model's special tokens."""


@pytest.mark.parametrize(
    "name", [name if name == "openai" else pytest.param(name, marks=pytest.mark.long) for name in FORCED]
)
def test_the_bundled_model_is_forced_to_call_in_each_format(tmp_path: Path, name: str) -> None:
    folder = model_folder(tmp_path / "model", "hermes")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / file).read_text()
        for old, new in zip(
            ("end", "begin", "system", "user", "assistant", "pad"), FORCED[name], strict=True
        ):
            text = text.replace(f"<|{old}|>", json.dumps(new, ensure_ascii=False)[1:-1])
        (folder / file).write_text(text)
    server = served(folder, tool_call_parser=name, reasoning_parser="none")
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}, "coats": {"enum": [1, 2]}},
              "required": ["colour", "coats"], "additionalProperties": False}  # fmt: skip
    tools: Any = [{"type": "function", "function": {"name": "paint", "parameters": schema, "strict": True}}]
    body: dict[str, Any] = {
        "model": "tale", "messages": [{"role": "user", "content": "Paint!"}], "tools": tools, "max_tokens": 200,
        "tool_choice": {"type": "function", "function": {"name": "paint"}}, "temperature": 0.0,
    }  # fmt: skip
    try:
        (choice,) = server.openai.chat.completions.create(**body).choices
        (call,) = choice.message.tool_calls
        assert not choice.message.content and choice.finish_reason == "tool_calls"
        arguments = json.loads(call.function.arguments)
        assert (
            call.function.name == "paint"
            and arguments["colour"] in ("red", "blue")
            and arguments["coats"] in (1, 2)
        )
        parts = [
            each.function.arguments
            for chunk in server.openai.chat.completions.create(**body, stream=True)
            for part in chunk.choices
            for each in part.delta.tool_calls or []
        ]
        assert "".join(parts) == call.function.arguments
    finally:
        server.close()
