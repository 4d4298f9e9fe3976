"""Calls of strict tools where the model may call or not, by the bundled model at random: it knows of no calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel

from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TinyServer, served
from tests.server.echo import function, model_folder

MARKERS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3_json": "<|python_tag|>"}
PAINT = function(
    "paint", colour={"enum": ["red", "blue"]}, coats={"type": "integer", "minimum": 1, "maximum": 3}
)
RING = function("ring", loud={"type": "boolean"})
PUSH = 21.0
"""Added to the logit of a marker, which the model never says by itself: it comes about as often as not."""
SCHEMAS = {one["function"]["name"]: one["function"]["parameters"] for one in (PAINT, RING)}


def tools(**strict: bool) -> list[dict[str, Any]]:
    """The tools with these names, strict or not."""
    known = {"paint": PAINT, "ring": RING}
    return [
        {"type": "function", "function": {**known[name]["function"], "strict": value}}
        for name, value in strict.items()
    ]


@dataclass(frozen=True)
class Model:
    """A server of the bundled model with a format of calls whose marker is a special token, as `</think>` is."""

    server: TinyServer
    tokenizer: Tokenizer
    marker: str

    def options(self, push: float = PUSH, **more: Any) -> dict[str, Any]:
        """A chat in which the model, at a temperature at which it says anything, is pushed to the marker."""
        number = self.tokenizer.special_id(self.marker)
        return {
            "model": "tale", "messages": [{"role": "user", "content": "Paint the door and ring the bell."}],
            "temperature": 1.5, "logit_bias": {str(number): push}, "max_tokens": 150,
            "tools": tools(paint=True, ring=True),
        } | more  # fmt: skip

    def chat(self, push: float = PUSH, **more: Any) -> Any:
        return self.server.openai.chat.completions.create(**self.options(push, **more))


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=() if kind == "hermes" else pytest.mark.long) for kind in MARKERS],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    kind = request.param
    folder = model_folder(tmp_path_factory.mktemp(kind) / "model", kind, MARKERS[kind])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / name
        path.write_text(path.read_text().replace("<|system|>", "</think>"))
    server = served(folder, tool_call_parser=kind, reasoning_parser="qwen3")
    yield Model(server, Tokenizer.from_folder(folder), MARKERS[kind])
    server.close()


def calls_of(choice: Any) -> list[tuple[str, str]]:
    """The calls of a choice that were written to their end."""
    made = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    return made[:-1] if choice.finish_reason == "length" else made


def valid(name: str, arguments: str) -> bool:
    return jsonschema_rs.is_valid(SCHEMAS[name], json.loads(arguments))


@pytest.mark.parametrize(
    "parallel", [True, pytest.param(False, marks=pytest.mark.long)], ids=["parallel", "single"]
)
def test_every_call_follows_its_schema(model: Model, parallel: bool) -> None:
    made = said = 0
    for seed in range(4):
        answer = model.chat(seed=seed, n=8, parallel_tool_calls=parallel)
        for choice in answer.choices:
            calls = calls_of(choice)
            assert all(valid(*call) for call in calls)
            assert parallel or len(calls) <= 1
            assert choice.finish_reason != "stop" or not calls
            made += len(calls)
            said += bool(choice.message.content) and bool(calls)
    assert made > 8 and said > 0


@pytest.mark.long
def test_without_strict_the_same_model_breaks_the_schema(model: Model) -> None:
    """The grammar of the other tool sees to it that there are calls at all."""
    broken = 0
    for seed in range(16):
        answer = model.chat(seed=seed, n=8, tools=tools(paint=False, ring=True))
        for choice in answer.choices:
            for name, arguments in calls_of(choice):
                assert isinstance(json.loads(arguments), dict)
                assert name == "paint" or valid(name, arguments)
                broken += not valid(name, arguments)
    assert broken > 0
    answer = model.chat(seed=0, n=8, tools=tools(paint=False, ring=False))
    assert not any(choice.message.tool_calls for choice in answer.choices)


def test_a_stream_equals_the_whole_answer(model: Model) -> None:
    options = model.options(seed=3, n=3)
    client = model.server.openai
    whole = client.chat.completions.create(**options)
    content, names, arguments = [""] * 3, [""] * 3, [""] * 3
    for chunk in client.chat.completions.create(**options, stream=True):
        for part in chunk.choices:
            content[part.index] += part.delta.content or ""
            for piece in part.delta.tool_calls or []:
                names[part.index] += piece.function.name or ""
                arguments[part.index] += piece.function.arguments or ""
    for choice in whole.choices:
        functions = [call.function for call in choice.message.tool_calls or []]
        assert content[choice.index] == (choice.message.content or "")
        assert names[choice.index] == "".join(one.name for one in functions)
        assert arguments[choice.index] == "".join(one.arguments for one in functions)
    assert any(names)


@pytest.mark.long
def test_the_client_s_own_stream_helper(model: Model) -> None:
    made = 0
    for seed in range(6):
        options = model.options(seed=seed, parallel_tool_calls=False)
        try:
            with model.server.openai.chat.completions.stream(**options) as stream:
                kinds = {event.type for event in stream}
                message = stream.get_final_completion().choices[0].message
        except openai.LengthFinishReasonError:
            continue
        for call in message.tool_calls or []:
            assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
            assert valid(call.function.name, json.dumps(call.function.parsed_arguments))
            made += 1
    assert made > 0


class Paint(BaseModel):
    colour: Literal["red", "blue"]
    wet: bool


@pytest.mark.long
def test_calls_parsed_by_the_client(model: Model) -> None:
    """It asks for strict tools alone, and raises an error for arguments that do not fit."""
    made = 0
    for seed in range(6):
        options = model.options(
            seed=seed, tools=[openai.pydantic_function_tool(Paint)], parallel_tool_calls=False
        )
        try:
            answer = model.server.openai.chat.completions.parse(**options)
        except openai.LengthFinishReasonError:
            continue
        for call in answer.choices[0].message.tool_calls or []:
            assert isinstance(call.function.parsed_arguments, Paint)
            made += 1
    assert made > 0


def test_responses(model: Model) -> None:
    number = str(model.tokenizer.special_id(model.marker))
    flat = [{"type": "function", **one["function"]} for one in tools(paint=True, ring=False)]
    made = 0
    for seed in range(6):
        answer = model.server.openai.responses.create(
            model="tale", input="Paint the door!", tools=flat, temperature=1.5, max_output_tokens=150,  # type: ignore[arg-type]
            parallel_tool_calls=False, extra_body={"seed": seed, "logit_bias": {number: PUSH}},
        )  # fmt: skip
        assert [one.strict for one in answer.tools] == [True, False]  # type: ignore[union-attr]
        for item in answer.output:
            if item.type == "function_call" and item.name == "paint" and answer.status == "completed":
                assert valid(item.name, item.arguments)
                made += 1
    assert made > 0


def test_free_text_stays_free(model: Model) -> None:
    """Greedy, and not pushed: token by token what is said without strict."""
    options = {"temperature": 0.0, "logprobs": True, "max_tokens": 60}
    held, free = (
        model.chat(0.0, tools=tools(paint=strict, ring=strict), **options).choices[0]
        for strict in (True, False)
    )
    assert held.message.content and held.message.content == free.message.content
    assert [one.token for one in held.logprobs.content] == [one.token for one in free.logprobs.content]
    assert [one.logprob for one in held.logprobs.content] == [one.logprob for one in free.logprobs.content]


def test_a_marker_in_the_reasoning_begins_no_call(model: Model) -> None:
    """Pushed so hard that it says nothing else: free in its thoughts, held to a call in its answer."""
    options = {"temperature": 0.0, "max_tokens": 30, "n": 1, "parallel_tool_calls": False}
    thinking = {"extra_body": {"chat_template_kwargs": {"thinking": True}}}
    held, free = (
        model.chat(100.0, tools=tools(paint=strict, ring=strict), **options, **thinking)
        for strict in (True, False)
    )
    assert held.choices[0].message == free.choices[0].message and held.choices[0].finish_reason == "length"
    assert held.usage.completion_tokens_details.reasoning_tokens == 30
    (call,) = model.chat(100.0, **options | {"max_tokens": 150}).choices[0].message.tool_calls or []
    assert valid(call.function.name, call.function.arguments)


@pytest.mark.long
def test_a_call_after_thoughts(model: Model) -> None:
    """Pushed to close what the prompt has opened."""
    made = thought = 0
    pushes = {model.marker: PUSH, "</think>": 12.0}
    pushed = {str(model.tokenizer.special_id(mark)): push for mark, push in pushes.items()}
    for seed in range(4):
        answer = model.chat(
            seed=seed, n=8, logit_bias=pushed,
            extra_body={"chat_template_kwargs": {"thinking": True}},
        )  # fmt: skip
        for choice in answer.choices:
            calls = calls_of(choice)
            assert all(valid(*call) for call in calls)
            made += len(calls)
            thought += bool(getattr(choice.message, "reasoning_content", None))
    assert thought > 0 and made > 0


def test_unsupported_schemas_are_refused(model: Model) -> None:
    impossible = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": impossible}}
    body = {"model": "tale", "messages": [{"role": "user", "content": "x"}], "tools": [tool], "max_tokens": 3}
    url = f"{model.server.url}/v1/chat/completions"
    assert httpx.post(url, json=body).status_code == 200
    tool["function"]["strict"] = True
    answer = httpx.post(url, json=body)
    assert answer.status_code == 400 and "grammar cannot be used" in answer.text
    tool["function"]["strict"] = "yes"
    answer = httpx.post(url, json=body)
    assert answer.status_code == 400 and "strict must be true or false" in answer.text
