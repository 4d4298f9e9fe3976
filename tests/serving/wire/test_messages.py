"""Messages and their translation: everything that may be sent arrives unchanged, everything else is refused."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import fields

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.core.engine import EngineStats
from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.prefix_cache import CacheStats
from headrace.core.scheduler import STEP_SIZES, SchedulerStats
from headrace.core.types import (
    CacheMiss,
    FinishReason,
    NewRequest,
    Output,
    Pooling,
    RequestStats,
    TokenLogprobs,
)
from headrace.serving.engine.state import ModelFacts
from headrace.serving.wire import messages as wire
from headrace.serving.wire import translate
from headrace.serving.wire.frames import WireError

texts = st.text(st.characters(codec="utf-8"), max_size=12)
tokens = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
times = st.floats(allow_nan=False)
counts = st.integers(0, 2**40)

params = st.builds(
    SamplingParams,
    n=st.integers(1, 128),
    temperature=st.floats(0, 100),
    top_k=st.integers(-1, 1000),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 100),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 5000), st.floats(-100, 100), max_size=4),
    allowed_token_ids=st.none() | tokens.filter(bool).map(lambda ids: tuple(i % 2**31 for i in ids)),
    bad_words=st.lists(
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4).map(tuple), max_size=4
    ).map(tuple),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    max_tokens=st.none() | st.integers(100, 2**31 - 1),
    min_tokens=st.integers(0, 100),
    stop=st.lists(texts.filter(bool), max_size=4).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 64),
    prompt_logprobs=st.none() | st.integers(0, 64),
    skip_special_tokens=st.booleans(),
    grammar=st.none() | st.sampled_from([Grammar("json_object"), Grammar("regex", "é+")]),
)
requests = st.builds(
    NewRequest, texts, tokens, params, st.integers(-(2**31) + 1, 2**31 - 1), user=texts, cache_salt=texts,
    weight=st.floats(1e-3, 1e3), queue_timeout_s=st.none() | st.floats(0, 1e5), timeout_s=st.none() | st.floats(0, 1e5),
) | st.builds(
    NewRequest, texts, tokens, st.just(SamplingParams(max_tokens=0)), pooling=st.sampled_from(Pooling),
    cache_pin_tokens=st.integers(1, 2**31 - 1), cache_pin_ttl_s=st.floats(0.1, 3600),
)  # fmt: skip
logprobs = st.lists(
    st.builds(
        TokenLogprobs, st.integers(0, 2**31), st.floats(max_value=0, allow_nan=False), st.integers(1, 2**31),
        st.lists(st.tuples(st.integers(0, 2**31), times, st.integers(1, 2**31)), max_size=3).map(tuple),
    ),
    max_size=3,
).map(tuple)  # fmt: skip
stats = st.builds(
    RequestStats, times, st.none() | times, st.none() | times, st.none() | times, st.none() | times,
    counts, counts, counts, counts, counts, counts, counts, counts,
    st.none() | st.builds(CacheMiss, texts, counts, texts),
)  # fmt: skip
outputs = st.builds(
    Output, texts, st.integers(0, 127), tokens, logprobs, logprobs, st.none() | st.sampled_from(FinishReason),
    st.none() | texts, st.none() | st.integers(0, 2**31), st.none() | stats,
    pooled=st.none() | st.binary(max_size=12),
)  # fmt: skip


@given(requests)
def test_requests_arrive_unchanged(new: NewRequest) -> None:
    message = wire.decode_to_engine(wire.encode(translate.request_to_wire(new)))
    assert isinstance(message, wire.Add)
    assert translate.request_from_wire(message) == new


@given(st.lists(outputs, min_size=1, max_size=5))
def test_outputs_arrive_unchanged(news: list[Output]) -> None:
    (sent,) = translate.outputs_to_wire(news)
    message = wire.decode_from_engine(wire.encode(sent))
    assert isinstance(message, wire.Outputs)
    assert translate.outputs_from_wire(message) == news


@pytest.mark.parametrize("cache", [None, CacheStats(5, 3, 1, Counter({"diverged": 2}), 7, 8)])
def test_stats_arrive_unchanged(cache: CacheStats | None) -> None:
    held = EngineStats(1, 2, 30, 4, SchedulerStats(5, 6, 7, 8, 9, 10, 11, (3, 0, 2)), cache)
    message = wire.decode_from_engine(wire.encode(translate.stats_to_wire(11, held)))
    assert isinstance(message, wire.Stats) and message.number == 11
    assert translate.stats_from_wire(message) == held


def test_facts_arrive_unchanged() -> None:
    facts = ModelFacts("m", 100, None, "/models/m", "cuda", "bfloat16", 8, 16, 99, 4096)
    message = wire.decode_from_engine(wire.encode(translate.facts_to_wire(facts)))
    assert isinstance(message, wire.Ready)
    assert translate.facts_from_wire(message) == facts


@pytest.mark.parametrize(
    ("kind", "core"),
    [
        (wire.Params, SamplingParams),
        (wire.GrammarSource, Grammar),
        (wire.News, Output),
        (wire.Times, RequestStats),
        (wire.LogprobsAt, TokenLogprobs),
        (wire.Miss, CacheMiss),
        (wire.SchedulerCounts, SchedulerStats),
        (wire.CacheCounts, CacheStats),
        (wire.Add, NewRequest),
        (wire.Ready, ModelFacts),
    ],
)
def test_messages_carry_every_field(kind: type[msgspec.Struct], core: type) -> None:
    assert kind.__struct_fields__ == tuple(field.name for field in fields(core))


@pytest.mark.parametrize("name", [name for name in vars(errors) if name[0].isupper()])
def test_errors_keep_their_class_and_text(name: str) -> None:
    error = getattr(errors, name)("what happened")
    message = wire.decode_from_engine(wire.encode(translate.refusal_to_wire("r", error)))
    assert isinstance(message, wire.Refused)
    again = translate.error_from_wire(message)
    assert type(again) is type(error)
    assert str(again) == "what happened"


def test_errors_from_outside_the_tree_become_engine_dead() -> None:
    again = translate.error_from_wire(translate.failure_to_wire(RuntimeError("boom")))
    assert type(again) is errors.EngineDead
    assert str(again) == "RuntimeError: boom"
    assert type(translate.error_from_wire(wire.Failed("os", "no class"))) is errors.EngineDead


def test_much_news_is_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "MAX_ENTRIES_PER_MESSAGE", 10)
    news = [Output(f"r{i}", 0, tokens=(1, 2, 3)) for i in range(9)]
    parts = list(translate.outputs_to_wire(news))
    assert [len(part.news) for part in parts] == [2, 2, 2, 2, 1]  # an output counts for four entries more
    assert [output for part in parts for output in translate.outputs_from_wire(part)] == news
    assert list(translate.outputs_to_wire([])) == []


@given(st.binary(max_size=60))
def test_noise_is_an_error_of_the_connection(noise: bytes) -> None:
    for decode in (wire.decode_to_engine, wire.decode_from_engine):
        with contextlib.suppress(WireError):
            decode(noise)


@pytest.mark.parametrize(
    "value",
    [
        ["Hello", "1", "{}", "more"][:2],  # a field short
        ["Abort", 7, None, False],  # a wrong type
        ["Abort", "x" * 1025, None, False],  # too long
        ["Abort", "x", -1, False],
        ["Abort", "x", 128, False],
        ["StatsRequest", -1],
        ["Ready", "m"],  # a message for the other side
        ["Nonsense"],
        {"type": "Shutdown"},
    ],
)
def test_messages_out_of_bounds_are_refused(value: object) -> None:
    with pytest.raises(WireError):
        wire.decode_to_engine(msgspec.msgpack.encode(value))


@pytest.mark.parametrize(("length", "fits"), [(STEP_SIZES, True), (STEP_SIZES + 1, False)])
def test_classes_of_step_sizes_are_bounded(length: int, fits: bool) -> None:
    held = EngineStats(1, 2, 30, 4, SchedulerStats(step_sizes=(1,) * length), None)
    sent = wire.encode(translate.stats_to_wire(1, held))
    with contextlib.nullcontext() if fits else pytest.raises(WireError):
        wire.decode_from_engine(sent)


def test_embeddings_out_of_bounds_are_refused() -> None:
    for size in (wire.MAX_VECTOR_BYTES, wire.MAX_VECTOR_BYTES + 1):
        (sent,) = translate.outputs_to_wire([Output("r", 0, pooled=bytes(size))])
        if size == wire.MAX_VECTOR_BYTES:
            wire.decode_from_engine(wire.encode(sent))
        else:
            with pytest.raises(WireError):
                wire.decode_from_engine(wire.encode(sent))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(WireError):
        wire.decode_to_engine(b"\x92\xa5Hello" + b"\x91" * 100_000)


def test_prompts_that_are_too_long_are_refused_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_TOKENS", 10)
    with pytest.raises(errors.InvalidParams, match="at most 10"):
        translate.request_to_wire(NewRequest("r", (1,) * 11))


def test_values_that_cannot_be_written_are_refused() -> None:
    with pytest.raises(WireError):
        wire.encode(wire.Add("r", (2**70,), None, 0, "", "", 1.0, None, None, None, 0, None))  # type: ignore[arg-type]
    with pytest.raises(WireError):
        wire.encode(wire.Abort("\ud800", None, False))
