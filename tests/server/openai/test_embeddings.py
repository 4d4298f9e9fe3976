"""/v1/embeddings with the official client: shapes over the counting engine, and meaning over the bundled model."""

from __future__ import annotations

import asyncio
import base64
import math
import struct

import httpx
import numpy as np
import openai
import pytest

from headrace import LLM
from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TALE, ServeProcess, TinyServer
from tests.serving.tiny_engine import HIDDEN_SIZE, hidden_state
from tests.waiting import until

TEXTS = ["Once upon a time there was a fox.", "Once upon a time there was a wolf.", "1 2 3 4"]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_every_form_of_input(tiny: TinyServer) -> None:
    tokenizer = Tokenizer.from_folder(TALE)
    ids = tokenizer.encode("Once upon")
    expected = unit(np.array(hidden_state(ids[-1])))
    for given in ("Once upon", ["Once upon"], ids, [ids]):
        answer = tiny.openai.embeddings.create(model="tiny", input=given)
        (data,) = answer.data
        assert (data.index, data.object, answer.object, answer.model) == (0, "embedding", "list", "tiny")
        assert np.allclose(data.embedding, expected, atol=1e-6)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (len(ids), len(ids))
    several = tiny.openai.embeddings.create(model="alias", input=[[3], [5], [8]])
    assert [data.index for data in several.data] == [0, 1, 2] and several.model == "alias"
    for data, token in zip(several.data, (3, 5, 8), strict=True):
        assert np.allclose(data.embedding, unit(np.array(hidden_state(token))), atol=1e-6)


def test_pooling_dimensions_and_length(tiny: TinyServer) -> None:
    states = np.array([hidden_state(token) for token in (3, 5, 8)])

    def vector(**extra: object) -> list[float]:
        body = {"input": [3, 5, 8], **extra}
        return tiny.http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]  # type: ignore[no-any-return]

    assert np.allclose(vector(pooling="mean"), unit(states.mean(axis=0)), atol=1e-6)
    assert np.allclose(vector(pooling="last"), unit(states[-1]), atol=1e-6)
    assert vector() == vector(pooling="last")
    assert np.allclose(vector(normalize=False), states[-1], atol=1e-6)
    assert np.allclose(vector(pooling="mean", dimensions=2), unit(states.mean(axis=0)[:2]), atol=1e-6)
    assert len(vector(dimensions=HIDDEN_SIZE)) == HIDDEN_SIZE


def test_base64_holds_the_same_numbers(tiny: TinyServer) -> None:
    forms = {}
    for form in ("float", "base64"):
        body = {"input": "fox", "encoding_format": form}
        forms[form] = tiny.http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    data = base64.b64decode(forms["base64"])
    assert list(struct.unpack(f"<{len(data) // 4}f", data)) == forms["float"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "input is missing"),
        ({"input": []}, 400, "input"),
        ({"input": [""], "model": "other"}, 404, "other"),
        ({"input": [[]]}, 400, "empty"),
        ({"input": [[1], "a"]}, 400, "mix"),
        ({"input": [[5000]]}, 400, "vocabulary"),
        ({"input": [1] * 513}, 400, "512"),
        ({"input": "a", "dimensions": 0}, 400, "dimensions"),
        ({"input": "a", "dimensions": HIDDEN_SIZE + 1}, 400, "dimensions"),
        ({"input": "a", "dimensions": 2**18 + 1}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "pooling": "cls"}, 400, "pooling"),
        ({"input": "a", "normalize": "yes"}, 400, "normalize"),
        ({"input": ["a"] * 1025}, 400, "1024"),
    ],
)
def test_refusals(tiny: TinyServer, body: dict[str, object], status: int, says: str) -> None:
    answer = tiny.http.post("/v1/embeddings", json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]
    assert tiny.idle


def test_the_whole_context_may_be_embedded(tiny: TinyServer) -> None:
    answer = tiny.http.post("/v1/embeddings", json={"input": [1] * 512})
    assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == 512


def test_one_bad_input_aborts_the_others(tiny: TinyServer) -> None:
    many = [[n] * 400 for n in range(1, 20)]
    answer = tiny.http.post("/v1/embeddings", json={"input": [*many, [5000]]})
    assert answer.status_code == 400
    assert tiny.idle


def test_similar_texts_are_near_each_other(tale: ServeProcess) -> None:
    answer = tale.openai().embeddings.create(model="tale", input=TEXTS, extra_body={"pooling": "mean"})
    fox, wolf, numbers = (np.array(data.embedding) for data in answer.data)
    assert all(math.isclose(np.linalg.norm(vector), 1.0, abs_tol=1e-5) for vector in (fox, wolf, numbers))
    assert fox @ wolf > fox @ numbers


def test_served_and_offline_embeddings_are_the_same(tale: ServeProcess) -> None:
    served = tale.openai().embeddings.create(model="tale", input=TEXTS, encoding_format="float")
    llm = LLM("tale", num_threads=1, show_progress=False)
    for data, output in zip(served.data, llm.embed(TEXTS, use_tqdm=False), strict=True):
        assert data.embedding == list(output.outputs.embedding)


def test_among_streams_and_asynchronously(tale: ServeProcess) -> None:
    async def run() -> None:
        async with openai.AsyncOpenAI(base_url=f"{tale.url}/v1", api_key="none", max_retries=0) as client:
            alone = await client.embeddings.create(model="tale", input=TEXTS[0])

            async def story() -> int:
                stream = await client.completions.create(
                    model="tale", prompt="Once", max_tokens=60, stream=True, extra_body={"ignore_eos": True}
                )
                return len([chunk async for chunk in stream])

            async def vector() -> list[float]:
                answer = await client.embeddings.create(model="tale", input=TEXTS[0])
                return answer.data[0].embedding

            results = await asyncio.gather(*(story() for _ in range(4)), *(vector() for _ in range(8)))
            assert all(found == alone.data[0].embedding for found in results[4:])

    asyncio.run(run())


def test_a_disconnect_aborts_the_work(doomed: TinyServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{doomed.url}/v1/embeddings", json={"input": [[n] * 500 for n in range(60)]}, timeout=0.15
        )
    until(lambda: doomed.idle)
    steps = doomed.stats().scheduler.steps
    assert steps < 50  # of the 60 that the work would have taken
    assert doomed.http.post("/v1/embeddings", json={"input": "still here"}).status_code == 200


def test_a_deadline(doomed: TinyServer) -> None:
    body = {"input": [[n] * 500 for n in range(60)], "timeout": 0.1}
    answer = doomed.http.post("/v1/embeddings", json=body)
    assert answer.status_code == 504 and answer.json()["error"]["code"] == "deadline_exceeded"
    assert doomed.idle
