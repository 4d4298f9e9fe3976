"""/tokenize and /detokenize: what the tokenizer itself says, over HTTP."""

from __future__ import annotations

import pytest

from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TALE, TinyServer

TEXT = "Once upon a time — 你好."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


def test_tokenize_and_detokenize(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    answer = tiny.http.post("/tokenize", json={"model": "tiny", "prompt": TEXT}).json()
    ids = tokenizer.encode(TEXT)
    assert answer == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}
    back = tiny.http.post("/detokenize", json={"tokens": ids}).json()
    assert back == {"prompt": tokenizer.decode(ids, skip_special_tokens=False)}
    assert back["prompt"].endswith(TEXT)


def test_options(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    bare = tiny.http.post(
        "/tokenize", json={"prompt": TEXT, "add_special_tokens": False, "return_token_strs": True}
    )
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    assert bare.json()["tokens"] == ids != tokenizer.encode(TEXT)
    assert bare.json()["token_strs"] == [tokenizer.token(token) for token in ids]


def test_a_conversation(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    answer = tiny.http.post("/tokenize", json={"messages": messages}).json()
    assert answer["tokens"] == tokenizer.encode_chat(messages)
    without = tiny.http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert without["tokens"] == tokenizer.encode_chat(messages, add_generation_prompt=False)
    usage = tiny.openai.chat.completions.create(model="tiny", messages=messages, max_tokens=1).usage  # type: ignore[arg-type]
    assert usage is not None and usage.prompt_tokens == answer["count"]


def test_many_tokens(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False) * 300
    answer = tiny.http.post("/detokenize", json={"tokens": ids})
    assert answer.json() == {"prompt": tokenizer.decode(ids, skip_special_tokens=False)}
    assert tiny.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {}, 400),
        ("/tokenize", {"prompt": "a", "messages": []}, 400),
        ("/tokenize", {"prompt": 5}, 400),
        ("/tokenize", {"prompt": ["a"]}, 400),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404),
        ("/tokenize", {"messages": "hello"}, 400),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, 400),
        ("/detokenize", {}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": [2048]}, 400),
        ("/detokenize", {"tokens": ["1"]}, 400),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404),
    ],
)
def test_refusals(tiny: TinyServer, path: str, body: dict[str, object], status: int) -> None:
    answer = tiny.http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_more_tokens_than_allowed(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # Over the server's own limit of bytes, this one is about the schema's limit.
    from headrace.server.openai.models import MAX_TOKENS, DetokenizeRequest

    assert len(DetokenizeRequest(tokens=[1] * MAX_TOKENS).tokens) == MAX_TOKENS
    with pytest.raises(ValueError, match="tokens"):
        DetokenizeRequest(tokens=[1] * (MAX_TOKENS + 1))
