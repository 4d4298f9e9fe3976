"""Response formats beside reasoning and tools, by the bundled model at random: what it thinks of, grammars decide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest

from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TinyServer, served
from tests.server.echo import function, model_folder

MARKERS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3_json": "<|python_tag|>"}
PAINT = function("paint", colour={"enum": ["red", "blue"]}, coats={"enum": [1, 2]})
PET = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "cat"]}, "says": {"type": "string", "maxLength": 30}},
    "required": ["animal", "says"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "pet", "schema": PET}}
PUSH = 11.0
"""Added to the logit of `</think>`, which the model never says by itself, so that its reasoning ends."""


@dataclass(frozen=True)
class Model:
    """A server of the bundled model that reasons between `<think>` and `</think>`, the latter a special token."""

    server: TinyServer
    kind: str
    close: int
    marker: int

    def options(self, **more: Any) -> dict[str, Any]:
        """A chat in which the prompt has opened the reasoning."""
        return {
            "model": "tale", "messages": [{"role": "user", "content": "Paint the door."}], "temperature": 1.5,
            "logit_bias": {str(self.close): PUSH}, "max_tokens": 300, "response_format": FORMAT,
            "extra_body": {"chat_template_kwargs": {"thinking": True}},
        } | more  # fmt: skip

    def chat(self, **more: Any) -> Any:
        return self.server.openai.chat.completions.create(**self.options(**more))


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
    tokenizer = Tokenizer.from_folder(folder)
    close, marker = tokenizer.special_id("</think>"), tokenizer.special_id(MARKERS[kind])
    assert close is not None and marker is not None
    yield Model(server, kind, close, marker)
    server.close()


def reasoning(choice: Any) -> str:
    return getattr(choice.message, "reasoning_content", None) or ""


def check_answer(message: Any) -> None:
    assert jsonschema_rs.is_valid(PET, json.loads(message.content))


def check_calls(message: Any) -> None:
    for call in message.tool_calls:
        assert call.function.name == "paint"
        assert jsonschema_rs.is_valid(PAINT["function"]["parameters"], json.loads(call.function.arguments))


def test_the_format_comes_after_the_reasoning(model: Model) -> None:
    thoughts = 0
    answer = model.chat(n=6, seed=1)
    for choice in answer.choices:
        thoughts += bool(reasoning(choice))
        assert choice.finish_reason == "stop"
        check_answer(choice.message)
    assert thoughts > 0 and answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_without_reasoning_the_format_comes_at_once(model: Model) -> None:
    """The prompt has not opened any reasoning, and the model does not think of it."""
    answer = model.chat(seed=1, logit_bias={}, extra_body={})
    check_answer(answer.choices[0].message)
    assert not reasoning(answer.choices[0])


def test_unfinished_reasoning_has_no_content(model: Model) -> None:
    (choice,) = model.chat(seed=1, logit_bias={}, max_tokens=40).choices
    assert choice.finish_reason == "length" and not choice.message.content
    assert reasoning(choice)


@pytest.mark.parametrize("strict", [True, False])
def test_with_tools_an_answer_is_a_call_or_fits_the_format(model: Model, strict: bool) -> None:
    tool = {"type": "function", "function": {**PAINT["function"], "strict": strict}}
    called = answered = thoughts = 0
    for push in (0.0, 14.0):  # the model knows of no calls: it is pushed to the mark of one
        bias = {str(model.close): PUSH, str(model.marker): push}
        answer = model.chat(n=6, seed=2, tools=[tool], logit_bias=bias, parallel_tool_calls=False)
        for choice in answer.choices:
            thoughts += bool(reasoning(choice))
            if choice.finish_reason == "length":
                assert not strict  # without a schema the arguments need not come to an end
                continue
            if choice.message.tool_calls:
                assert choice.finish_reason == "tool_calls" and not choice.message.content
                (call,) = choice.message.tool_calls
                assert isinstance(json.loads(call.function.arguments), dict)
                if strict:
                    check_calls(choice.message)
                called += 1
            else:
                check_answer(choice.message)
                answered += 1
    assert called > 1 and answered > 1 and thoughts > 2


def test_a_stream_equals_the_whole_answer(model: Model) -> None:
    options = model.options(seed=3, n=3)
    whole = model.server.openai.chat.completions.create(**options)
    content, thoughts = [""] * 3, [""] * 3
    for chunk in model.server.openai.chat.completions.create(**options, stream=True):
        for part in chunk.choices:
            content[part.index] += part.delta.content or ""
            thoughts[part.index] += getattr(part.delta, "reasoning_content", None) or ""
    assert content == [choice.message.content for choice in whole.choices]
    assert thoughts == [reasoning(choice) for choice in whole.choices]


def test_a_forced_call_comes_after_the_reasoning(model: Model) -> None:
    """The format is that of content, and a call has none."""
    answer = model.chat(n=3, seed=4, tools=[PAINT], tool_choice="required", parallel_tool_calls=False)
    assert any(reasoning(choice) for choice in answer.choices)
    for choice in answer.choices:
        assert choice.message.tool_calls and choice.finish_reason == "tool_calls"
        check_calls(choice.message)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
        ({"guided_regex": "^a/b{1,3}\\n$"}, lambda text: text.rstrip() in ("a/b", "a/bb", "a/bbb")),
        ({"guided_choice": ['"yes"', "no"]}, lambda text: text in ('"yes"', "no")),
        ({"guided_grammar": 'start: x x\nx: "a" | "b"\n'}, lambda text: text in ("aa", "ab", "ba", "bb")),
    ],
    ids=["json_object", "regex", "choice", "lark"],
)
def test_every_kind_of_grammar_follows_reasoning(model: Model, fields: dict[str, Any], fits: Any) -> None:
    body = {"chat_template_kwargs": {"thinking": True}}
    options = {key: value for key, value in fields.items() if key == "response_format"}
    body |= {key: value for key, value in fields.items() if key != "response_format"}
    reported = model.options(seed=5, n=4, extra_body=body, max_tokens=400)
    del reported["response_format"]
    answer = model.server.openai.chat.completions.create(**reported | options)
    assert any(reasoning(choice) for choice in answer.choices)
    for choice in answer.choices:
        assert choice.finish_reason == "length" or fits(choice.message.content), choice


def test_responses_reason_before_their_format(model: Model) -> None:
    thoughts = 0
    for seed in range(4):
        answer = model.server.openai.responses.create(
            model="tale", input="Paint!", max_output_tokens=300, temperature=1.5,
            text={"format": {"type": "json_schema", "name": "pet", "schema": PET}},
            extra_body={
                "chat_template_kwargs": {"thinking": True}, "logit_bias": {str(model.close): PUSH}, "seed": seed,
            },
        )  # fmt: skip
        thoughts += answer.output[0].type == "reasoning"
        if answer.status == "completed":
            assert jsonschema_rs.is_valid(PET, json.loads(answer.output_text))
    assert thoughts > 1
