"""Parameters that the engine holds for every completion are bounded over all completions of a request."""

from __future__ import annotations

import pytest

from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.errors import InvalidParams
from headrace.server.requests import vectors
from headrace.server.requests.bounds import MAX_BYTES, check_parameters
from tests.server.conftest import TinyServer
from tests.serving.tiny_engine import HIDDEN_SIZE

IDS = (5,) * 2**16


@pytest.mark.parametrize(
    ("params", "prompts"),
    [
        (SamplingParams(allowed_token_ids=IDS), 16),
        (SamplingParams(banned_token_ids=IDS, n=4), 4),
        (SamplingParams(stop_token_ids=IDS, n=16), 1),
        (SamplingParams(bad_words=(IDS[24:],)), 16),
        (SamplingParams(logit_bias=dict.fromkeys(range(2**16), 1.0)), 16),
        (SamplingParams(grammar=Grammar("regex", "a" * 2**16)), 128),
        (SamplingParams(stop=("a" * 1024,) * 8), 1024),
    ],
)
def test_at_the_bound_and_beyond(params: SamplingParams, prompts: int) -> None:
    check_parameters(params, prompts)
    with pytest.raises(InvalidParams, match=f"one request may have {MAX_BYTES}"):
        check_parameters(params, prompts + 1)


def test_lists_of_many_completions_are_refused_before_submission() -> None:
    server = TinyServer(max_body_bytes=2**20)
    try:
        body = {"prompt": [[7]] * 16, "max_tokens": 1, "allowed_token_ids": list(IDS)}
        assert server.http.post("/v1/completions", json=body).status_code == 200
        steps = server.stats().scheduler.steps
        answer = server.http.post("/v1/completions", json=body | {"n": 2})
        assert server.stats().scheduler.steps == steps
    finally:
        server.close()
    assert answer.status_code == 400, answer.text[:200]
    assert "lists of token ids" in answer.json()["error"]["message"]


def test_vectors_of_one_request_are_bounded_together(
    tiny: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "MAX_NUMBERS", 4 * HIDDEN_SIZE)
    body = {"input": [[7]] * 4}
    assert tiny.http.post("/v1/embeddings", json=body).status_code == 200
    body["input"].append([7])
    answer = tiny.http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400
    assert f"5 vectors of {HIDDEN_SIZE} numbers" in answer.json()["error"]["message"]
    assert tiny.http.post("/v1/embeddings", json=body | {"dimensions": 2}).status_code == 200
