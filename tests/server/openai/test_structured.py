"""Structured output over HTTP: every way to ask for it, the official client's own, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel

from headrace.core.grammar import MAX_CHOICES, MAX_GRAMMAR_CHARS, Grammar
from headrace.errors import InvalidParams
from headrace.server.requests.structured import MAX_SCHEMA_NAME_CHARS, grammar_of, text_grammar
from tests import needs
from tests.server.conftest import ServeProcess, TinyServer

needs.package("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["fox", "cat"]},
        "legs": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
NAMED = {"name": "pet", "strict": True, "schema": SCHEMA}
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me of an animal."}]


class Pet(BaseModel):
    animal: Literal["fox", "cat"]
    tame: bool
    kind: Literal["small", "large"]


# ---- Fields ----

WAYS: dict[str, tuple[dict[str, Any], Grammar | None]] = {
    "none": ({}, None),
    "text": ({"response_format": {"type": "text"}}, None),
    "json_object": ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
    "json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}}, Grammar("json_schema", SCHEMA),  # type: ignore[arg-type]
    ),
    "json_schema without one": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, Grammar("json_object"),
    ),
    "guided_json": ({"guided_json": SCHEMA}, Grammar("json_schema", SCHEMA)),  # type: ignore[arg-type]
    "guided_json as text": ({"guided_json": "{}"}, Grammar("json_schema", "{}")),
    "guided_regex": ({"guided_regex": "a+"}, Grammar("regex", "a+")),
    "guided_choice": ({"guided_choice": ["a", "b"]}, Grammar("choice", ["a", "b"])),  # type: ignore[arg-type]
    "guided_grammar": ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
    "structured json": ({"structured_outputs": {"json": SCHEMA}}, Grammar("json_schema", SCHEMA)),  # type: ignore[arg-type]
    "structured regex": ({"structured_outputs": {"regex": "a", "json": None}}, Grammar("regex", "a")),
    "structured choice": ({"structured_outputs": {"choice": ["a"]}}, Grammar("choice", ["a"])),  # type: ignore[arg-type]
    "structured grammar": ({"structured_outputs": {"grammar": "start: /a/"}}, Grammar("lark", "start: /a/")),
    "structured json_object": ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
}  # fmt: skip

LONG_NAME = "x" * (MAX_SCHEMA_NAME_CHARS + 1)
WRONG: dict[str, dict[str, Any]] = {
    "no object": {"response_format": "json"},
    "no type": {"response_format": {}},
    "another type": {"response_format": {"type": "xml"}},
    "no schema object": {"response_format": {"type": "json_schema"}},
    "no name": {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
    "long name": {"response_format": {"type": "json_schema", "json_schema": {"name": LONG_NAME}}},
    "strict": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": "yes"}}},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": [1]}}},
    "text schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": "{}"}}},
    "guided_json": {"guided_json": 5},
    "guided_json text": {"guided_json": "{"},
    "guided_regex": {"guided_regex": ["a"]},
    "empty regex": {"guided_regex": ""},
    "long regex": {"guided_regex": "a" * (MAX_GRAMMAR_CHARS + 1)},
    "choices": {"guided_choice": "a"},
    "no choices": {"guided_choice": []},
    "many choices": {"guided_choice": ["a"] * (MAX_CHOICES + 1)},
    "numbers": {"guided_choice": [1, 2]},
    "guided_grammar": {"guided_grammar": {"a": 1}},
    "half a pair": {"guided_regex": "\ud800"},
    "structured": {"structured_outputs": "a"},
    "structured nothing": {"structured_outputs": {}},
    "structured two": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "two": {"guided_regex": "a", "guided_choice": ["a"]},
    "two kinds": {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
}  # fmt: skip


def asked(fields: dict[str, Any]) -> Grammar | None:
    guided = {name: fields[name] for name in fields if name.startswith("guided_")}
    return grammar_of(fields.get("response_format"), fields.get("structured_outputs"), guided)


@pytest.mark.parametrize("way", WAYS)
def test_every_form_of_structured_output(way: str) -> None:
    fields, grammar = WAYS[way]
    assert asked(fields) == grammar


@pytest.mark.parametrize("way", WRONG)
def test_invalid_forms_of_structured_output(way: str) -> None:
    with pytest.raises(InvalidParams):
        asked(WRONG[way])


def test_the_format_of_responses() -> None:
    assert text_grammar(None) is text_grammar({}) is text_grammar({"format": {"type": "text"}}) is None
    assert text_grammar({"format": {"type": "json_object"}}) == Grammar("json_object")
    assert text_grammar({"format": {"type": "json_schema", **NAMED}}) == Grammar(
        "json_schema", json.dumps(SCHEMA)
    )
    for wrong in ("text", {"format": 5}, {"format": {"type": "json_schema", "json_schema": NAMED}}):
        with pytest.raises(InvalidParams):
            text_grammar(wrong)


# ---- The served model ----


def post(tale: ServeProcess, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(
        f"{tale.url}{path}",
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
        timeout=60,
    )


MATCHES: dict[str, str] = {
    "guided_regex": "a+",
    "guided_choice": "a|b",
    "structured grammar": "a",
    "structured regex": "a",
}


@pytest.mark.parametrize("way", MATCHES)
def test_texts_match_their_form(tale: ServeProcess, way: str) -> None:
    fields = WAYS[way][0] | {"max_tokens": 20, "seed": 3, "n": 2}
    for path, said in (
        ("/v1/completions", {"prompt": "Once"}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        answer = post(tale, path, fields | said)
        assert answer.status_code == 200, answer.text
        for choice in answer.json()["choices"]:
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert re.fullmatch(MATCHES[way], text)


def test_the_pieces_of_a_stream_add_up(tale: ServeProcess) -> None:
    client = tale.openai()
    options: dict[str, Any] = {
        "model": "tale", "messages": MESSAGES, "temperature": 1.0, "seed": 5, "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": NAMED},
    }  # fmt: skip
    whole = client.chat.completions.create(**options)
    assert whole.choices[0].finish_reason == "stop"
    content = whole.choices[0].message.content or ""
    made = json.loads(content)
    assert made["animal"] in ("fox", "cat") and 1 <= made["legs"] <= 9
    pieces = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**options, stream=True)
    ]
    assert "".join(pieces) == content and len(pieces) > 3


def test_the_official_client_parses_models(tale: ServeProcess) -> None:
    answer = tale.openai().chat.completions.parse(
        model="tale", messages=MESSAGES, response_format=Pet, max_tokens=300, seed=4
    )
    pet = answer.choices[0].message.parsed
    assert isinstance(pet, Pet)
    with tale.openai().chat.completions.stream(
        model="tale", messages=MESSAGES, response_format=Pet, max_tokens=300, seed=4
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == pet


@pytest.mark.parametrize("way", WRONG)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_is_refused(tale: ServeProcess, way: str, path: str) -> None:
    answer = post(tale, path, WRONG[way] | {"prompt": "Once", "messages": MESSAGES, "max_tokens": 5})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_grammar_without_meaning_is_refused_before_a_stream_begins(tale: ServeProcess) -> None:
    body = {"prompt": "Once", "guided_regex": "(?<=a)b", "stream": True}
    answer = post(tale, "/v1/completions", body)
    assert answer.status_code == 400 and "look-behind" in answer.json()["error"]["message"]
    explosive = post(tale, "/v1/completions", body | {"guided_regex": "a{1000000}"})
    assert explosive.status_code == 400 and "cannot be used" in explosive.json()["error"]["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_grammar": 'start: e\ne: e e e | e e | "a" | "a" "a" | ("a" e)+\n', "ignore_eos": True},
        pytest.param({"guided_choice": ["a"], "allowed_token_ids": [500]}, marks=pytest.mark.long),
        {"allowed_token_ids": [500], "logit_bias": {}, "min_tokens": 3, "stop_token_ids": [500]},
    ],
)
def test_an_impossible_grammar_is_a_400(tale: ServeProcess, fields: dict[str, Any]) -> None:
    answer = post(tale, "/v1/completions", {"prompt": "Once", "max_tokens": 400} | fields)
    assert answer.status_code == 400 and "cannot be fulfilled" in answer.json()["error"]["message"]
    streamed = post(tale, "/v1/completions", {"prompt": "Once", "max_tokens": 400, "stream": True} | fields)
    assert streamed.status_code == 200 and '"invalid_params"' in streamed.text


def test_an_engine_without_grammars_refuses_them(tiny: TinyServer) -> None:
    answer = tiny.http.post("/v1/completions", json={"prompt": "Once", "guided_regex": "a"})
    assert answer.status_code == 400 and "grammar" in answer.json()["error"]["message"]
    assert tiny.idle
