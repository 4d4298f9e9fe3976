"""What a model's generation_config.json recommends holds where a request says nothing, as in vLLM."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.core.params import SamplingParams
from headrace.models.source import BUNDLED_FOLDER
from headrace.server.requests.job import with_model_defaults
from tests.server.conftest import ServeProcess, serve

CHAT = [{"role": "user", "content": "Tell me a story about a duck."}]
ENGINE = ("--port", "0", "--kv-cache-memory", "4MiB", "--num-threads", "1", "--served-model-name", "shy")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled draft model whose authors recommend greedy answers of at most five tokens."""
    folder = tmp_path_factory.mktemp("models") / "shy"
    shutil.copytree(BUNDLED_FOLDER / "tale-draft", folder)
    recommended = {"eos_token_id": 1, "temperature": 0.0, "max_new_tokens": 5}
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    return folder


@pytest.fixture(scope="module")
def shy(folder: Path) -> Iterator[ServeProcess]:
    served = serve(str(folder), *ENGINE)
    yield served
    served.process.terminate()
    served.process.wait(30)


def answer_of(process: ServeProcess, **options: Any) -> tuple[str, int]:
    answer = process.openai().chat.completions.create(model="shy", messages=CHAT, **options)
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.usage.completion_tokens


def test_requests_without_options_get_the_defaults(shy: ServeProcess) -> None:
    answers = {answer_of(shy) for _ in range(4)}
    assert len(answers) == 1  # greedy
    ((text, tokens),) = answers
    assert tokens == 5 and answer_of(shy, temperature=0) == (text, 5)
    assert answer_of(shy, max_tokens=2)[1] == 2
    assert answer_of(shy, max_tokens=50)[1] == 5  # a bound for all of a server's answers
    assert (
        len({answer_of(shy, temperature=2.0, seed=seed)[0] for seed in range(6)}) > 1
    )  # what a request says holds


@pytest.mark.long
def test_they_are_switched_off(folder: Path) -> None:
    served = serve(str(folder), *ENGINE, "--generation-config", "vllm")
    try:
        assert answer_of(served, max_tokens=9, temperature=0)[1] == 9
        assert len({answer_of(served, max_tokens=8)[0] for _ in range(6)}) > 1  # temperature 1
    finally:
        served.process.terminate()
        served.process.wait(30)


class Body:
    temperature = None
    top_p = 0.4


def test_open_options_are_filled() -> None:
    params = SamplingParams(top_p=0.4, max_tokens=None)
    defaults = {"temperature": 0.2, "top_p": 0.9, "max_tokens": 30}
    filled = with_model_defaults(params, Body(), defaults, [10], 100)
    assert filled == SamplingParams(temperature=0.2, top_p=0.4, max_tokens=30)
    assert with_model_defaults(params, Body(), defaults, [10, 80], 100).max_tokens == 20  # what is left
    assert with_model_defaults(params, Body(), defaults, [80], None).max_tokens == 30
    assert with_model_defaults(params, Body(), {}, [10], 100) is params
    least = SamplingParams(min_tokens=40, max_tokens=60)
    assert with_model_defaults(least, Body(), defaults, [10], 100).max_tokens == 40
