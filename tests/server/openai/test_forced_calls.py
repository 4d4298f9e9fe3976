"""Calls that must be made, by the bundled model, which was not trained to make any: grammars force them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.server.conftest import ServeProcess, TinyServer, serve, served
from tests.server.echo import function, model_folder

COLOUR = function(
    "paint", colour={"enum": ["red", "blue"]}, coats={"type": "integer", "minimum": 1, "maximum": 3}
)
BELL = function("ring", loud={"type": "boolean"})


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"paint", "ring"}), ({"type": "function", "function": {"name": "paint"}}, {"paint"})],
    ids=["required", "named"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_the_bundled_model_calls_a_required_tool(
    tale: ServeProcess, choice: Any, names: set[str], n: int
) -> None:
    """The model was never taught to call anything: the grammar sees to it."""
    options: dict[str, Any] = {
        "model": "tale", "messages": [{"role": "user", "content": "Paint the door and ring the bell."}],
        "tools": [COLOUR, BELL], "tool_choice": choice, "parallel_tool_calls": False, "seed": 5, "n": n,
        "max_tokens": 200,
    }  # fmt: skip
    client = tale.openai()
    whole = client.chat.completions.create(**options)
    assert len(whole.choices) == n
    for choice_ in whole.choices:
        (call,) = choice_.message.tool_calls or []
        arguments = json.loads(call.function.arguments)
        assert choice_.finish_reason == "tool_calls" and call.function.name in names
        if call.function.name == "paint":
            assert arguments["colour"] in ("red", "blue") and arguments["coats"] in (1, 2, 3)
        else:
            assert arguments["loud"] in (True, False)
    written = [""] * n
    for chunk in client.chat.completions.create(**options, stream=True):
        for part in chunk.choices:
            for piece in part.delta.tool_calls or []:
                written[part.index] += piece.function.arguments
    assert written == [part.message.tool_calls[0].function.arguments for part in whole.choices]


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "x+"}},
        {"guided_choice": ["yes", "no"]}, {"guided_grammar": 'start: "a"'}, {"guided_json": {"type": "object"}},
    ],
    ids=lambda form: next(iter(form)),
)  # fmt: skip
def test_a_form_is_that_of_content_and_a_forced_call_has_none(
    tale: ServeProcess, form: dict[str, Any]
) -> None:
    """One rule for every field that asks for a form."""
    asked: dict[str, Any] = {
        "model": "tale", "messages": [{"role": "user", "content": "Paint!"}], "tools": [COLOUR], "seed": 5,
        "max_tokens": 200, "parallel_tool_calls": False, "extra_body": form,
    }  # fmt: skip
    (choice,) = tale.openai().chat.completions.create(**asked, tool_choice="required").choices
    (call,) = choice.message.tool_calls or []
    assert choice.message.content is None and json.loads(call.function.arguments)["coats"] in (1, 2, 3)
    wrong = {"guided_regex": "("} if "structured_outputs" in form else {"structured_outputs": {"regex": "x"}}
    with pytest.raises(openai.BadRequestError):  # a form that is none is refused all the same
        tale.openai().chat.completions.create(**asked | {"extra_body": form | wrong}, tool_choice="required")


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyServer]:
    """The bundled model with Mistral's way of calling, whose marker is a special token."""
    folder = model_folder(tmp_path_factory.mktemp("mistral") / "model", "mistral", "[TOOL_CALLS]")
    server = served(folder, reasoning_parser="none")
    yield server
    server.close()


def test_a_forced_call_after_a_special_token(mistral: TinyServer) -> None:
    answer = mistral.openai.chat.completions.create(
        model="tale", messages=[{"role": "user", "content": "Paint!"}], tools=[COLOUR], tool_choice="required",  # type: ignore[list-item]
        max_tokens=200, parallel_tool_calls=False,
    )  # fmt: skip
    message = answer.choices[0].message
    (call,) = message.tool_calls or []
    assert message.content is None and call.function.name == "paint" and len(call.id) == 9  # type: ignore[union-attr]
    assert json.loads(call.function.arguments)["colour"] in ("red", "blue")  # type: ignore[union-attr]


@pytest.mark.parametrize("reasoning", [pytest.param("none", marks=pytest.mark.long), "deepseek_r1"])
def test_the_parsers_that_options_name(reasoning: str) -> None:
    process = serve(
        "tale", "--port", "0", "--num-threads", "1", "--tool-call-parser", "mistral",
        "--reasoning-parser", reasoning, "--enable-auto-tool-choice",
    )  # fmt: skip
    try:
        answer = process.openai().chat.completions.create(
            model="tale", messages=[{"role": "user", "content": "Paint!"}], tools=[COLOUR],  # type: ignore[list-item]
            tool_choice="required", max_tokens=200,
        )  # fmt: skip
        message = answer.choices[0].message
        if reasoning == "none":
            assert message.tool_calls and all(len(call.id) == 9 for call in message.tool_calls)
        else:  # it never says that it has thought enough
            assert not message.content and not message.tool_calls
            assert message.reasoning_content  # type: ignore[attr-defined]
    finally:
        process.process.terminate()
        process.process.wait(30)


def test_an_explosive_tool_is_refused(tale: ServeProcess) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(70):
        deep = {"type": "object", "properties": {"x": deep}}
    long = {"type": "object", "description": "x" * 70_000}
    for parameters in (deep, long):
        tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
        with pytest.raises(openai.BadRequestError):
            tale.openai().chat.completions.create(
                model="tale", messages=[{"role": "user", "content": "x"}], tools=tools, tool_choice="required"  # type: ignore[arg-type]
            )  # fmt: skip
