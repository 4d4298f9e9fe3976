"""The offline API on the bundled model: prompts in every form, results, and bad input that affects no other request."""

from __future__ import annotations

import json
import math
import operator
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from headrace import LLM, SamplingParams
from headrace.errors import (
    CheckpointError,
    ConfigError,
    EngineDead,
    HeadraceError,
    InvalidParams,
    ModelNotFound,
    PromptTooLong,
    RequestError,
    TokenizerError,
    UnsupportedModel,
)
from tests import needs
from tests.places import BUNDLED

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tale", dtype="float32", num_threads=1, show_progress=False)


def generate(llm: LLM, prompts: object, params: SamplingParams = GREEDY) -> list[tuple[int, ...]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)  # type: ignore[arg-type]
    return [output.outputs[0].token_ids for output in outputs]


def test_prompts_in_every_form_give_the_same_tokens_in_order(llm: LLM) -> None:
    texts = ["Once upon a time", "One rainy morning"]
    ids = [llm.tokenizer.encode(text) for text in texts]
    expected = generate(llm, texts)
    assert expected[0] != expected[1]
    assert generate(llm, ids) == expected
    assert generate(llm, [{"prompt": texts[0]}, {"prompt_token_ids": ids[1]}]) == expected
    assert generate(llm, texts[0]) == expected[:1]
    assert generate(llm, ids[0]) == expected[:1]
    assert generate(llm, texts[::-1]) == expected[::-1]
    assert generate(llm, []) == []


def test_arrays_and_whole_numbers_of_numpy_are_token_ids(llm: LLM) -> None:
    expected = generate(llm, [[5, 6], [7, 8]])
    assert generate(llm, np.array([[5, 6], [7, 8]])) == expected
    assert generate(llm, list(np.array([[5, 6], [7, 8]], np.uint16))) == expected
    assert generate(llm, np.array([5, 6])) == expected[:1]
    assert generate(llm, [np.int64(5), 6]) == expected[:1]
    assert generate(llm, {"prompt_token_ids": np.array([7, 8]), "priority": np.int8(1)}) == expected[1:]
    (output,) = llm.generate([np.array([5], np.int32)], GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == (5,) and type(output.prompt_token_ids[0]) is int
    *_, streamed = llm.stream(np.array([5, 6]), GREEDY)  # type: ignore[arg-type]
    assert streamed.outputs[0].token_ids == expected[0]


def test_sampling_params_by_the_name_that_vllm_gives_them(llm: LLM) -> None:
    expected = generate(llm, "Once upon a time")
    outputs = llm.generate("Once upon a time", sampling_params=GREEDY, use_tqdm=False)
    assert outputs[0].outputs[0].token_ids == expected[0]
    chat = [{"role": "user", "content": "Tell me a story."}]
    (answered,) = llm.chat(chat, sampling_params=GREEDY, use_tqdm=False)
    *_, streamed = llm.stream_chat(chat, sampling_params=GREEDY)
    assert answered.outputs[0].token_ids == streamed.outputs[0].token_ids
    *_, streamed = llm.stream("Once upon a time", sampling_params=GREEDY)
    assert streamed.outputs[0].token_ids == expected[0]


def test_a_result_is_complete(llm: LLM) -> None:
    (output,) = llm.generate(
        "Once upon a time", SamplingParams(temperature=0.0, max_tokens=9), use_tqdm=False
    )
    completion, metrics = output.outputs[0], output.metrics
    assert output.finished and output.prompt == "Once upon a time"
    assert list(output.prompt_token_ids) == llm.tokenizer.encode("Once upon a time")
    assert len(completion.token_ids) == 9 and completion.finish_reason == "length"
    assert completion.text == llm.tokenizer.decode([*output.prompt_token_ids, *completion.token_ids])[16:]
    assert metrics.num_output_tokens == 9
    assert metrics.queue_s is not None and metrics.ttft_s is not None and metrics.tpot_s is not None
    assert metrics.e2e_s is not None
    assert 0 <= metrics.queue_s <= metrics.ttft_s <= metrics.e2e_s
    assert metrics.e2e_s >= 8 * metrics.tpot_s


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=count) for count in (3, 7)]
    outputs = llm.generate(["Once upon a time"] * 2, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 7]
    with pytest.raises(InvalidParams, match="3 prompts need"):
        llm.generate(["a", "b", "c"], params)


def test_stop_strings_cut_the_text_wherever_tokens_end(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    (whole,) = llm.generate("Once upon a time", params, use_tqdm=False)
    text = whole.outputs[0].text
    for start in (5, 11, 40):
        stop = text[start : start + 7]  # most of these begin and end in the middle of a token
        at = text.index(stop)
        cut = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, stop=(stop,))
        (output,) = llm.generate("Once upon a time", cut, use_tqdm=False)
        completion = output.outputs[0]
        assert completion.text == text[:at]
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
        assert len(completion.token_ids) < 60
    assert llm.stats().free_blocks == llm.stats().total_blocks


def test_logprobs_of_tokens_and_prompt(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=3, prompt_logprobs=2)
    (output,) = llm.generate("Once upon a time", params, use_tqdm=False)
    completion = output.outputs[0]
    assert completion.logprobs is not None and completion.cumulative_logprob is not None
    for token, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert entry[token].rank == 1 and len(entry) == 3  # greedy: the chosen one is among the three
        assert max(one.logprob for one in entry.values()) == entry[token].logprob <= 0
    assert math.isclose(
        completion.cumulative_logprob,
        sum(
            entry[token].logprob
            for token, entry in zip(completion.token_ids, completion.logprobs, strict=True)
        ),
    )
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token, scored in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert scored is not None and token in scored


def test_chat_uses_the_template_and_the_prefix_cache(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Tell me a story about a fox who wants a boat."}]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    (first,) = llm.chat(messages, params, use_tqdm=False)
    assert list(first.prompt_token_ids) == llm.tokenizer.encode_chat(messages)
    turns = [
        *messages,
        {"role": "assistant", "content": first.outputs[0].text},
        {"role": "user", "content": "Why?"},
    ]
    first_two = llm.chat([turns, messages], params, use_tqdm=False)
    assert first_two[1].outputs[0].token_ids == first.outputs[0].token_ids
    assert first_two[0].num_cached_tokens >= 16
    with pytest.raises(RequestError, match="empty"):
        llm.chat([], params)


def test_streams_grow_and_interleave_and_can_be_closed(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    expected = generate(llm, ["Once upon a time", "One rainy morning"], params)
    streams = [llm.stream("Once upon a time", params), llm.stream("One rainy morning", params)]
    seen: list[list[tuple[int, ...]]] = [[], []]
    for outputs in zip(*streams, strict=False):
        for index, output in enumerate(outputs):
            seen[index].append(output.outputs[0].token_ids)
    for growing, final in zip(seen, expected, strict=True):
        assert all(final[: len(part)] == part for part in growing)
    for stream in streams:
        stream.close()
    half = llm.stream("Once upon a time", params)
    next(half)
    half.close()
    assert llm.stats().running == 0 and llm.stats().free_blocks == llm.stats().total_blocks
    assert generate(llm, "Once upon a time", params) == expected[:1]


BAD_REQUESTS: dict[str, tuple[Callable[[LLM], object], type[HeadraceError]]] = {
    "empty prompt": (lambda llm: llm.generate([[]]), RequestError),
    "prompt longer than the context": (lambda llm: llm.generate([[7] * 1024]), PromptTooLong),
    "token id past the vocabulary": (lambda llm: llm.generate([[7, 2048]]), InvalidParams),
    "negative token id": (lambda llm: llm.generate([[7, -1]]), InvalidParams),
    "token id that is not a number": (lambda llm: llm.generate([[7, "x"]]), InvalidParams),  # type: ignore[list-item]
    "token id that is true": (lambda llm: llm.generate([[7, True]]), InvalidParams),
    "token id that is numpy's true": (lambda llm: llm.generate(np.array([True, True])), InvalidParams),
    "array of floats": (lambda llm: llm.generate(np.array([5.0, 6.0])), InvalidParams),
    "bytes": (lambda llm: llm.generate(b"abc"), InvalidParams),  # type: ignore[arg-type]
    "bytes among prompts": (lambda llm: llm.generate([b"abc"]), InvalidParams),
    "bytes as token ids": (lambda llm: llm.generate({"prompt_token_ids": b"abc"}), InvalidParams),
    "bytes as text": (lambda llm: llm.generate({"prompt": b"abc"}), InvalidParams),
    "bytearray": (lambda llm: llm.generate(bytearray(b"abc")), InvalidParams),  # type: ignore[arg-type]
    "bytearray among prompts": (lambda llm: llm.generate([bytearray(b"abc")]), InvalidParams),  # type: ignore[list-item]
    "memoryview": (lambda llm: llm.embed(memoryview(b"abc")), InvalidParams),
    "bytes as a stream's prompt": (lambda llm: next(llm.stream(b"abc")), InvalidParams),
    "prompt of no kind": (lambda llm: llm.generate([3.5]), InvalidParams),  # type: ignore[list-item]
    "unknown prompt field": (lambda llm: llm.generate([{"prompt": "a", "image": "b"}]), InvalidParams),
    "priority that is not a number": (
        lambda llm: llm.generate([{"prompt": "a", "priority": "x"}]),
        InvalidParams,
    ),
    "salt that is not text": (lambda llm: llm.generate([{"prompt": "a", "cache_salt": 5}]), InvalidParams),
    "salt with half of a surrogate pair": (
        lambda llm: llm.generate([{"prompt": "a", "cache_salt": "\ud800"}]),
        InvalidParams,
    ),
    "no prompts at all": (lambda llm: llm.generate(None), InvalidParams),  # type: ignore[arg-type]
    "a prompt that is none": (lambda llm: llm.generate([None]), InvalidParams),  # type: ignore[list-item]
    "text and ids": (lambda llm: llm.generate({"prompt": "a", "prompt_token_ids": [5]}), InvalidParams),
    "neither text nor ids": (lambda llm: llm.generate({"priority": 1}), InvalidParams),
    "parameters of no kind": (lambda llm: llm.generate("a", {"top_p": 1}), InvalidParams),  # type: ignore[arg-type]
    "tiny penalty": (
        lambda llm: llm.generate("a", SamplingParams(repetition_penalty=1e-38)),
        InvalidParams,
    ),
    "NaN temperature": (lambda llm: llm.generate("a", SamplingParams(temperature=math.nan)), InvalidParams),
    "infinite penalty": (
        lambda llm: llm.generate("a", SamplingParams(presence_penalty=math.inf)),
        InvalidParams,
    ),
    "negative top_p": (lambda llm: llm.generate("a", SamplingParams(top_p=-0.5)), InvalidParams),
    "no tokens": (lambda llm: llm.generate("a", SamplingParams(max_tokens=-1)), InvalidParams),
    "bias outside": (lambda llm: llm.generate("a", SamplingParams(logit_bias={9999: 1.0})), InvalidParams),
    "stop id outside": (lambda llm: llm.generate("a", SamplingParams(stop_token_ids=(9999,))), InvalidParams),
    "message without role": (lambda llm: llm.chat([{"content": "hello"}]), RequestError),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_fails_alone_and_at_once(llm: LLM, name: str) -> None:
    call, kind = BAD_REQUESTS[name]
    before = generate(llm, "Once upon a time")
    steps = llm.stats().scheduler.steps
    with pytest.raises(kind) as caught:
        call(llm)
    assert llm.stats().scheduler.steps == steps
    assert_one_sentence(caught.value)
    assert generate(llm, "Once upon a time") == before


def test_metrics_hold_what_stats_counts_under_the_names_of_the_server(llm: LLM) -> None:
    generate(llm, "Once upon a time")
    stats, samples = llm.stats(), {sample.name: sample for sample in llm.get_metrics() if not sample.labels}
    assert samples["headrace:generation_tokens_total"].value == stats.scheduler.output_tokens > 0
    assert samples["headrace:iteration_tokens_total"].buckets[-1] == ("+Inf", stats.scheduler.steps)
    assert samples["headrace:num_requests_running"].value == 0


def test_one_bad_prompt_among_many_runs_none_of_them(llm: LLM) -> None:
    before = llm.stats().scheduler.steps
    with pytest.raises(PromptTooLong):
        llm.generate([[7, 8], [7] * 5000], GREEDY)
    assert llm.stats().scheduler.steps == before and llm.stats().waiting == 0


def test_a_prompt_longer_than_the_whole_pool_is_refused() -> None:
    small = LLM("tale", num_threads=1, show_progress=False, num_kv_blocks=4, block_size=8, max_model_len=32)
    with pytest.raises(PromptTooLong, match="32"):
        small.generate([[7] * 32], GREEDY)
    assert len(generate(small, [[7] * 30])[0]) == 2  # as much as there is room for


def assert_one_sentence(error: HeadraceError) -> None:
    text = str(error)
    assert text and "\n" not in text and len(text) < 400
    assert "Traceback" not in text and "object at 0x" not in text


def rewrite(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


def lie(folder: Path) -> None:
    """A header that promises 10^12 elements."""
    header = json.dumps(
        {"lm_head.weight": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}}
    )
    (folder / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header.encode() + b"\0" * 64
    )


def truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


BAD_FOLDERS: dict[str, tuple[Callable[[Path], object], type[HeadraceError]]] = {
    "no config": (lambda folder: (folder / "config.json").unlink(), CheckpointError),
    "damaged config": (lambda folder: (folder / "config.json").write_text('{"a": '), CheckpointError),
    "unknown family": (
        lambda folder: rewrite(folder, architectures=["Zeppelin"], model_type="zeppelin"), UnsupportedModel
    ),
    "absurd size": (lambda folder: rewrite(folder, hidden_size=10**12), HeadraceError),
    "negative layers": (lambda folder: rewrite(folder, num_hidden_layers=-3), HeadraceError),
    "another shape": (lambda folder: rewrite(folder, intermediate_size=512), CheckpointError),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), CheckpointError),
    "truncated weights": (truncate, CheckpointError),
    "lying header": (lie, CheckpointError),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), TokenizerError),
    "damaged tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), TokenizerError),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    target = tmp_path / "model"
    shutil.copytree(BUNDLED / "tale", target)
    yield target


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_a_bad_folder_is_refused(folder: Path, name: str) -> None:
    spoil, kind = BAD_FOLDERS[name]
    spoil(folder)
    with pytest.raises(kind) as caught:
        LLM(str(folder), show_progress=False)
    assert_one_sentence(caught.value)


def test_unknown_models_and_options() -> None:
    for name in ("no-such-model", "/no/such/folder", "shape:nothing", "model.gguf"):
        with pytest.raises((ModelNotFound, UnsupportedModel)) as caught:
            LLM(name, show_progress=False)
        assert_one_sentence(caught.value)
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        LLM("tale", max_model_length=3)
    with pytest.raises(ConfigError, match="none of the formats here"):
        LLM("tale", quantization="int3")


def test_sinks_and_window_of_a_model_that_has_windows_alone(tiny_models: Mapping[str, str]) -> None:
    with pytest.raises(ConfigError, match="window of its own"):
        LLM(tiny_models["mistral"], show_progress=False, attention_sinks=4, sliding_window=32)


NATIVE = """
import sys
from headrace import LLM, SamplingParams
llm = LLM("tale", quantization=%r, num_threads=1, show_progress=False)
(output,) = llm.generate("Once upon a time", SamplingParams(max_tokens=4, seed=1), use_tqdm=False)
assert len(output.outputs[0].token_ids) == 4 and llm.parts.resolved.kernels is not None
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "transformers", "huggingface_hub", "fastapi", "matplotlib"}, loaded
"""


@pytest.mark.parametrize("quantization", [None, "int4"])
def test_the_native_path_never_loads_torch(quantization: str | None) -> None:
    """Importing it alone takes longer than a whole start without it."""
    needs.native()
    done = subprocess.run(
        [sys.executable, "-c", NATIVE % quantization], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_torch_gives_the_tokens_of_the_native_kernels(llm: LLM, name: str) -> None:
    other = LLM("tale", dtype="float32", num_threads=1, show_progress=False, ops_force=name)
    assert other.parts.resolved.kernels is None
    assert generate(other, ["Once upon a time"]) == generate(llm, ["Once upon a time"])
    with pytest.raises(ConfigError, match="needs the native CPU kernels"):
        LLM("tale", quantization="int4", ops_force=name)


def test_a_shape_runs_on_token_ids_alone() -> None:
    llm = LLM("shape:tiny", num_threads=1, show_progress=False)
    (output,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 4 and output.outputs[0].text == ""
    with pytest.raises(TokenizerError, match="no tokenizer"):
        llm.generate("text")


def test_a_failed_step_ends_the_engine_with_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM("tale", num_threads=1, show_progress=False)

    def fail(plan: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(llm.parts.executor, "execute", fail, raising=True)
    for _ in range(2):
        with pytest.raises(EngineDead, match="planted"):
            llm.generate("Once upon a time", GREEDY, use_tqdm=False)


def test_embeddings(llm: LLM) -> None:
    texts = ["Once upon a time there was a fox.", "Once upon a time there was a wolf.", "1 2 3 4"]
    outputs = llm.embed(texts, pooling="mean", use_tqdm=False)
    assert [output.prompt for output in outputs] == texts
    vectors = [list(output.outputs.embedding) for output in outputs]
    assert all(math.fsum(v * v for v in vector) == pytest.approx(1.0, abs=1e-6) for vector in vectors)
    near, far = (sum(map(operator.mul, vectors[0], vectors[i])) for i in (1, 2))
    assert near > far
    ids = llm.tokenizer.encode(texts[0])
    assert list(llm.embed(ids, pooling="mean", use_tqdm=False)[0].outputs.embedding) == vectors[0]
    raw = list(llm.embed(texts[0], pooling="mean", normalize=False, use_tqdm=False)[0].outputs.embedding)
    assert raw != vectors[0]
    last = llm.embed([texts[0]], dimensions=5, use_tqdm=False)[0]
    assert len(last.outputs.embedding) == 5 and last.prompt_token_ids == tuple(ids)
    assert llm.embed([], use_tqdm=False) == []
    stats = llm.stats()
    assert stats.running == stats.waiting == 0 and stats.free_blocks == stats.total_blocks


def test_embedding_options_out_of_range(llm: LLM) -> None:
    size = llm.parts.spec.hidden_size
    for options in ({"pooling": "cls"}, {"dimensions": 0}, {"dimensions": size + 1}):
        with pytest.raises(InvalidParams, match=next(iter(options))):
            llm.embed("Once", use_tqdm=False, **options)  # type: ignore[arg-type]
    with pytest.raises(PromptTooLong):
        llm.embed([[5] * 1025], use_tqdm=False)


def test_embedding_and_generating_take_turns(llm: LLM) -> None:
    required = generate(llm, "Once upon a time")
    alone = list(llm.embed("A fox", use_tqdm=False)[0].outputs.embedding)
    stream = llm.stream("Once upon a time", GREEDY)
    next(stream)
    beside = list(llm.embed("A fox", use_tqdm=False)[0].outputs.embedding)
    rounding = 0.0 if llm.parts.resolved.kernels else 1e-6  # torch's products round by the size of the batch
    assert beside == pytest.approx(alone, rel=0, abs=rounding)
    assert list(stream)[-1].outputs[0].token_ids == required[0]


def test_a_prompt_alone(llm: LLM) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    (output,) = llm.generate("Once upon a time", params, use_tqdm=False)
    (whole,) = llm.generate(
        "Once upon a time", SamplingParams(max_tokens=1, prompt_logprobs=1), use_tqdm=False
    )
    assert output.prompt_logprobs == whole.prompt_logprobs
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ((), "length")


def test_a_prompt_can_pin_its_beginning() -> None:
    llm = LLM("tale", num_kv_blocks=24, block_size=16, max_model_len=256, show_progress=False)
    params = SamplingParams(temperature=0.0, max_tokens=2)
    story = tuple(range(100, 180))
    pin = {"prompt_token_ids": story, "cache_pin_tokens": 64, "cache_pin_ttl_s": 300.0}
    assert llm.generate(pin, params)[0].metrics.num_pinned_tokens == 64
    for turn in range(4):
        llm.generate([[turn + 200] * 160], params)
    assert llm.generate([story], params)[0].metrics.num_cached_tokens == 64
    cache = llm.stats().cache
    assert cache is not None and (cache.pins, cache.pins_broken) == (4, 0) and cache.evictions > 10
    with pytest.raises(InvalidParams, match="come together"):
        llm.generate({"prompt_token_ids": story, "cache_pin_tokens": 64}, params)
