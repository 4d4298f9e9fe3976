"""Bad words as token ids, and a model that must do without them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace import LLM, SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import InvalidParams
from headrace.text.bad_words import with_bad_word_ids
from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TALE, ServeProcess, TinyServer

PROMPT = "Once upon a time there was a fox"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


def test_words_at_the_beginning_and_after_a_space(tokenizer: Tokenizer) -> None:
    params = with_bad_word_ids(SamplingParams(bad_words=("fox", " the", (7, 8), "fox")), tokenizer)
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in ("fox", " fox", "the", " the")]
    assert list(params.bad_words) == [*map(tuple, expected), (7, 8)]
    assert with_bad_word_ids(params, None) is params
    with pytest.raises(InvalidParams, match="need a tokenizer"):
        with_bad_word_ids(SamplingParams(bad_words=("fox",)), None)
    with pytest.raises(InvalidParams, match="token ids"):
        NewRequest("a", (1,), SamplingParams(bad_words=("fox",)))


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.long), 1.0])
def test_a_model_avoids_them(tale: ServeProcess, temperature: float) -> None:
    """Offline, alone and among others, and served."""
    llm = LLM("tale", num_threads=1, show_progress=False)
    options: dict[str, Any] = {
        "temperature": temperature, "top_p": 1.0, "seed": 3, "max_tokens": 60,
    }  # fmt: skip
    (free,) = llm.generate([PROMPT], SamplingParams(**options), use_tqdm=False)
    said = free.outputs[0].text
    words = [word.strip(".,!\"'") for word in said.split()[1:9]]
    words = list(dict.fromkeys(word for word in words if word))
    assert len(words) >= 4
    held = SamplingParams(**options, bad_words=words)
    (alone,) = llm.generate([PROMPT], held, use_tqdm=False)
    assert not any(f" {word} " in f" {alone.outputs[0].text} " for word in words)
    among = llm.generate(
        [PROMPT] * 3, [SamplingParams(**options), held, SamplingParams(**options)], use_tqdm=False
    )
    assert [one.outputs[0].text for one in among] == [said, alone.outputs[0].text, said]
    served = tale.openai().completions.create(
        model="tale", prompt=PROMPT, **options, extra_body={"bad_words": words}
    )
    assert served.choices[0].text == alone.outputs[0].text


def test_refusals(tiny: TinyServer) -> None:
    for words in ("a", [1], ["a"] * 513, ["\ud800"], [" "], ["x" * 1024] * 9):
        body = json.dumps({"prompt": [1], "bad_words": words})  # httpx writes no half pairs
        answer = tiny.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400 and "bad_words" in answer.json()["error"]["message"], answer.text
    blank = tiny.http.post("/v1/completions", json={"prompt": [1], "bad_words": ["\n"]})
    assert "bad_words holds '\\n': white space alone" in blank.json()["error"]["message"]
    accepted = {"input": "a", "max_output_tokens": 2, "bad_words": ["fox"]}
    assert tiny.http.post("/v1/responses", json=accepted).status_code == 200
