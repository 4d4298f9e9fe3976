"""/v1/completions with the official client, over an engine that counts: the token after t is t + 1."""

from __future__ import annotations

import openai
import pytest

from headrace import __version__
from headrace.core.prefix_cache import MissReason
from headrace.text.tokenizer import Tokenizer
from tests.server.conftest import TALE, TinyServer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TALE)


def test_a_text_prompt(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    answer = tiny.openai.completions.create(model="tiny", prompt="Once upon", temperature=0)
    ids = tokenizer.encode("Once upon")
    expected = [ids[-1] + 1 + i for i in range(16)]  # 16 tokens, as with OpenAI
    (choice,) = answer.choices
    assert choice.text == tokenizer.decode(expected)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == "tiny"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (16, len(ids) + 16)


@pytest.mark.parametrize(
    ("prompt", "last"),
    [
        ([100, 101], [101]),
        ([[100, 101], [300]], [101, 300]),
        (["a", "b"], None),
    ],
)
def test_every_form_of_prompt(
    tiny: TinyServer, tokenizer: Tokenizer, prompt: list[object], last: list[int] | None
) -> None:
    answer = tiny.openai.completions.create(model="tiny", prompt=prompt, max_tokens=3, n=2)  # type: ignore[arg-type]
    last = last or [tokenizer.encode(text)[-1] for text in prompt]  # type: ignore[arg-type]
    texts = [tokenizer.decode([token + 1, token + 2, token + 3]) for token in last]
    assert [choice.index for choice in answer.choices] == list(range(2 * len(last)))
    assert [choice.text for choice in answer.choices] == [text for text in texts for _ in range(2)]


def test_a_stream_adds_up(tiny: TinyServer) -> None:
    options = {"model": "tiny", "prompt": ["Once", "Twice"], "max_tokens": 40, "n": 2, "logprobs": 2}
    whole = tiny.openai.completions.create(**options)  # type: ignore[call-overload]
    texts, ends, offsets = [""] * 4, {}, [[], [], [], []]
    usage = None
    for chunk in tiny.openai.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):  # type: ignore[call-overload]
        assert usage is None  # it comes last
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            offsets[choice.index] += choice.logprobs.text_offset
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert ends == dict.fromkeys(range(4), "length")
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]
    assert usage is not None and usage.completion_tokens == 160 == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_stream_without_usage(tiny: TinyServer) -> None:
    for chunk in tiny.openai.completions.create(model="tiny", prompt=[5], stream=True):
        assert chunk.usage is None and len(chunk.choices) == 1


def test_stop_strings(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    words = tokenizer.decode(range(500, 540))
    stop = words[len(words) // 2 :][:6]
    for stream in (False, True):
        answer = tiny.openai.completions.create(
            model="tiny", prompt=[499], max_tokens=400, stop=[stop, "never"], stream=stream
        )
        choices = [choice for part in (answer if stream else [answer]) for choice in part.choices]
        assert "".join(choice.text for choice in choices) == words[: words.index(stop)]
        assert choices[-1].finish_reason == "stop"
        assert choices[-1].stop_reason == stop  # type: ignore[attr-defined]
    assert tiny.idle


def test_stop_tokens(tiny: TinyServer) -> None:
    answer = tiny.openai.completions.create(
        model="tiny", prompt=[499], max_tokens=400, extra_body={"stop_token_ids": [505]}
    )
    assert answer.choices[0].stop_reason == 505  # type: ignore[attr-defined]
    assert answer.usage is not None and answer.usage.completion_tokens == 6


def test_logprobs(tiny: TinyServer, tokenizer: Tokenizer) -> None:
    answer = tiny.openai.completions.create(model="tiny", prompt=[499], max_tokens=3, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    texts = [tokenizer.decode([token]) for token in (500, 501, 502)]
    assert logprobs.tokens == texts
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs is not None and len(logprobs.top_logprobs[0]) == 2
    assert logprobs.text_offset == [0, len(texts[0]), len(texts[0] + texts[1])]


def test_cached_tokens_are_counted(tiny: TinyServer) -> None:
    prompt = list(range(1200, 1300))
    salted = {"cache_salt": "a"}
    details = []
    for extra in (salted, salted, {"cache_salt": "b"}):
        usage = tiny.openai.completions.create(
            model="tiny", prompt=prompt, max_tokens=1, extra_body=extra
        ).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        details.append(usage.prompt_tokens_details.cached_tokens)
    assert details == [0, 96, 0]
    stats = tiny.stats()
    assert stats.cache is not None and stats.cache.misses[MissReason.OTHER_SALT.value] >= 1


def test_every_option_is_taken(tiny: TinyServer) -> None:
    answer = tiny.openai.completions.create(
        model="alias", prompt=[1], max_tokens=4, temperature=0.5, top_p=0.9, seed=-5, presence_penalty=-2,
        frequency_penalty=2, logit_bias={"5": 1}, user="someone", best_of=1, echo=False, suffix=None,
        extra_body={
            "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True,
            "include_stop_str_in_output": True, "skip_special_tokens": False, "priority": -3,
            "allowed_token_ids": [1, 2],
        },
    )  # fmt: skip
    assert answer.model == "alias"
    assert answer.usage is not None and answer.usage.completion_tokens == 4


def test_models(tiny: TinyServer) -> None:
    assert [model.id for model in tiny.openai.models.list()] == ["tiny", "alias"]
    assert tiny.openai.models.retrieve("alias").max_model_len == 512  # type: ignore[attr-defined]
    with pytest.raises(openai.NotFoundError):
        tiny.openai.models.retrieve("other")


def test_health_and_schema(tiny: TinyServer) -> None:
    assert tiny.http.get("/health").json() == {"status": "ok"}
    assert tiny.http.get("/ready").json() == {"status": "ready"}
    assert tiny.http.get("/version").json() == {"version": __version__}
    assert "/v1/completions" in tiny.http.get("/openapi.json").json()["paths"]
