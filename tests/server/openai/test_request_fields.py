"""Every field that OpenAI's and vLLM's documentation names is obeyed, refused by name, or known to change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from headrace.server.http.strict import EMPTY, NoEffect, Refused, Strict
from headrace.server.openai.embeddings import EmbeddingRequest
from headrace.server.openai.models import DetokenizeRequest, TokenizeRequest
from headrace.server.openai.responses.schemas import ResponsesRequest
from headrace.server.openai.schemas import ChatRequest, CompletionRequest
from tests.places import ROOT
from tests.server.conftest import TinyServer
from tests.server.test_bounds import BASE

ROUTES: dict[str, type[Strict]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/embeddings": EmbeddingRequest,
}
"""In the order of the table's columns."""

BODIES = ROUTES | {"/tokenize": TokenizeRequest, "/detokenize": DetokenizeRequest}

OPENAI: dict[str, tuple[Any, ...]] = {
    "/v1/chat/completions": (
        chat_create_params.CompletionCreateParamsNonStreaming,
        chat_create_params.CompletionCreateParamsStreaming,
    ),
    "/v1/completions": (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
    "/v1/responses": (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ),
    "/v1/embeddings": (embedding_create_params.EmbeddingCreateParams,),
}

_VLLM_BOTH = """
    frequency_penalty logit_bias logprobs max_tokens model n presence_penalty response_format seed stop stream
    stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty watermarking length_penalty
    stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    truncate_prompt_tokens truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
    add_special_tokens structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
    routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params ec_transfer_params
    vllm_xargs repetition_detection thinking_token_budget stream_interval
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern best_of
    early_stopping logits_processors mm_processor_kwargs
"""
VLLM: dict[str, str] = {
    "/v1/chat/completions": _VLLM_BOTH
    + """messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning
        parallel_tool_calls add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
        media_io_kwargs return_prompt_text""",
    "/v1/completions": _VLLM_BOTH + "prompt suffix prompt_embeds",
    "/v1/responses": """background include input instructions max_output_tokens max_tool_calls metadata model logit_bias
        parallel_tool_calls previous_response_id prompt reasoning service_tier store stream temperature text tool_choice
        tools top_logprobs top_p top_k truncation user skip_special_tokens include_stop_str_in_output prompt_cache_key
        request_id mm_processor_kwargs priority cache_salt enable_response_messages previous_input_messages
        previous_response structured_outputs repetition_penalty seed stop ignore_eos vllm_xargs media_io_kwargs
        kv_transfer_params chat_template chat_template_kwargs presence_penalty frequency_penalty""",
    "/v1/embeddings": """model user truncate_prompt_tokens truncation_side padding request_id priority
        mm_processor_kwargs cache_salt input add_special_tokens encoding_format embed_dtype endianness dimensions
        use_activation normalize messages""",
}
"""vLLM's requests at commit 002032e (2026), and the older names that clients still send."""

DOCS = ROOT / "docs" / "serving.md"


def post(server: TinyServer, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    return answer.status_code, answer.json()


def openai_fields(path: str) -> set[str]:
    return {name for params in OPENAI[path] for name in get_type_hints(params)}


def what_happens(model: type[Strict], name: str) -> str:
    """As the table calls it."""
    if name in model.model_fields:
        return "obeyed"
    kind = type(model.others.get(name))
    return {Refused: "refused", NoEffect: "no effect"}.get(kind, "–")


def table() -> dict[str, list[str]]:
    """The columns of each field in docs/serving.md."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\| ([^|]+) \|$", DOCS.read_text(), re.MULTILINE)
    return {
        name: columns
        for name, middle, text in rows
        if len(columns := [cell.strip() for cell in middle.split("|")]) == len(ROUTES) and text.strip()
    }


@pytest.mark.parametrize("path", ROUTES)
def test_every_known_field_is_decided(path: str) -> None:
    required = openai_fields(path) | set(VLLM[path].split())
    assert len(openai_fields(path)) >= 5
    assert {name for name in required if what_happens(ROUTES[path], name) == "–"} == set()


def test_the_table_in_the_docs_equals_the_schemas() -> None:
    names = {name for model in ROUTES.values() for name in (*model.model_fields, *model.others)}
    expected = {name: [what_happens(model, name) for model in ROUTES.values()] for name in sorted(names)}
    assert table() == expected


def unsupported(kind: type) -> list[tuple[str, str]]:
    return [
        (path, name)
        for path, model in BODIES.items()
        for name, other in model.others.items()
        if isinstance(other, kind) and name not in model.model_fields
    ]


SHARES = [4, pytest.param(1, marks=pytest.mark.long)]
"""One value of so many is tried in each field."""


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("path", "name"), unsupported(Refused))
def test_fields_that_would_change_the_answer_are_refused(
    tiny: TinyServer, path: str, name: str, share: int
) -> None:
    other = BODIES[path].others[name]
    assert isinstance(other, Refused)
    for value in (True, 7, "x", ["x"], {"a": 1})[len(name) % share :: share]:
        if value in other.neutral:
            continue
        status, answer = post(tiny, path, BASE[path] | {name: value})
        assert status == 400 and answer["error"]["param"] == name, (value, answer)
        assert answer["error"]["message"] == f"{name} is not supported by this server: {other.why}"
    for value in other.neutral:
        status, answer = post(tiny, path, BASE[path] | {name: value})
        assert status == 200, (value, answer)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("path", "name"), unsupported(NoEffect))
def test_harmless_fields_are_accepted(tiny: TinyServer, path: str, name: str, share: int) -> None:
    for value in (None, True, 7, "x", ["x"], {"a": 1})[len(name) % share :: share]:
        status, answer = post(tiny, path, BASE[path] | {name: value})
        assert status == 200, (value, answer)


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_refused(tiny: TinyServer, path: str) -> None:
    for name in ("temprature", "a-b", "a[0]", "", "x" * 5000):
        status, answer = post(tiny, path, BASE[path] | {name: 1})
        assert status == 400 and "is not a field of this request" in answer["error"]["message"], answer
        assert answer["error"]["param"] == name[:60]
        assert len(answer["error"]["message"]) < 200
        assert post(tiny, path, BASE[path] | {name: None})[0] == 200


def test_a_misspelled_field_suggests_its_name(tiny: TinyServer) -> None:
    _, answer = post(tiny, "/v1/completions", BASE["/v1/completions"] | {"temprature": 1})
    assert answer["error"]["message"].endswith("did you mean temperature?")
    body = BASE["/v1/completions"] | {"stream": True, "stream_options": {"include_use": True}}
    _, answer = post(tiny, "/v1/completions", body)
    assert answer["error"]["param"] == "stream_options"
    assert answer["error"]["message"].startswith("stream_options.include_use is not a field")


def test_padding_of_streams(tiny: TinyServer) -> None:
    body = BASE["/v1/completions"] | {"stream": True, "stream_options": {"include_obfuscation": False}}
    answer = tiny.http.post("/v1/completions", json=body)
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")


# ---- Text that is not Unicode ----

HALVES: tuple[Any, ...] = (
    "\ud800", "a\udfff", ["a", "\ud800"], {"a": "\udfff"}, {"\ud800": 1}, {"a": [{"b": ["\U0001f600\ud83d"]}]},
    [10**30, "\ud800"],
)  # fmt: skip


@pytest.mark.parametrize("share", [len(HALVES), pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("path", BODIES)
def test_half_of_a_surrogate_pair_in_any_field(tiny: TinyServer, path: str, share: int) -> None:
    """One value of `share` in each field."""
    model = BODIES[path]
    names = [*model.model_fields, *model.others, "unknown"]
    assert len(names) >= 3
    for number, name in enumerate(names):
        for value in HALVES[number % share :: share]:
            status, answer = post(tiny, path, BASE[path] | {name: value})
            assert status == 400, (name, value, answer)
            error = answer["error"]
            assert error["message"] == f"{name} holds half of a surrogate pair, which is not text", (
                name,
                value,
            )
            assert error["param"] == name and error["type"] == "invalid_request_error"
    status, answer = post(tiny, path, BASE[path] | {"\ud800": 1})
    assert status == 400 and "surrogate" in answer["error"]["message"]


def test_half_of_a_surrogate_pair_in_the_names_of_tools(tiny: TinyServer) -> None:
    tool = {"type": "function", "function": {"name": "f\ud800"}}
    status, answer = post(tiny, "/v1/chat/completions", BASE["/v1/chat/completions"] | {"tools": [tool]})
    assert status == 400 and answer["error"]["param"] == "tools"


def test_whole_pairs_are_text(tiny: TinyServer) -> None:
    # Python's json writes characters beyond the first plane as pairs of surrogates.
    body = BASE["/v1/completions"] | {"prompt": "\U0001f600", "user": "\U0001f600", "stop": ["\U0001f600"]}
    assert "\\ud83d\\ude00" in json.dumps(body)
    assert post(tiny, "/v1/completions", body)[0] == 200


def test_the_empty_values_are_empty() -> None:
    assert all(not value for value in EMPTY)
