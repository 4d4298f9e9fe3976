"""A GGUF file alone, without a folder of the original model, as a chat and as an OpenAI service."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headrace import LLM, SamplingParams
from headrace.cli import main
from tests.gguf_files import write_gguf
from tests.places import TALE
from tests.server.conftest import serve

CHAT = [{"role": "user", "content": "Tell me about a dog"}]
GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
OPTIONS = ("--dtype", "float32", "--num-threads", "1")


def chatted(name: str) -> str:
    llm = LLM(name, dtype="float32", num_threads=1, show_progress=False)
    return llm.chat([CHAT], GREEDY)[0].outputs[0].text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(TALE, tmp_path_factory.mktemp("gguf") / "tale.gguf", "F32")


@pytest.fixture(scope="module")
def expected() -> str:
    return chatted("tale")


def test_chats_are_those_of_the_folder(model: Path, expected: str) -> None:
    assert chatted(str(model)) == expected


def test_the_service_answers_chats_with_and_without_a_grammar(model: Path, expected: str) -> None:
    server = serve(str(model), "--port", "0", *OPTIONS)
    try:
        client = server.openai()
        name = client.models.list().data[0].id
        assert httpx.get(f"{server.url}/api/tags").json()["models"][0]["details"]["format"] == "gguf"
        answer = client.chat.completions.create(model=name, messages=CHAT, max_tokens=12, temperature=0.0)
        assert answer.choices[0].message.content == expected
        chosen = client.chat.completions.create(
            model=name, messages=CHAT, extra_body={"guided_choice": ["a mill", "a dog"]}
        )
        assert chosen.choices[0].message.content in ("a mill", "a dog")
    finally:
        server.process.terminate()
        server.process.wait(30)


def test_inspect_shows_the_tokenizer(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(model), *OPTIONS]) == 0
    shown = capsys.readouterr().out
    assert "GGUF metadata: 'gpt2', pre-tokenizer 'gpt-2'" in shown
    assert "2,048 tokens" in shown and "eos '<|end|>' (1)" in shown and "chat template   default" in shown
