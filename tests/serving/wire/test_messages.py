"""Messages: everything that may be sent arrives unchanged, everything else is refused."""

from __future__ import annotations

import contextlib
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.core.engine import EngineStats
from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.prefix_cache import CacheStats
from headrace.core.scheduler_counts import SchedulerStats
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
from headrace.serving.wire.messages import WireError

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


def sent(message: wire.Message) -> object:
    """What arrives at the engine process."""
    return wire.decode_to_engine(wire.encode(message))


def answered(message: wire.Message) -> object:
    """What arrives at the server process."""
    return wire.decode_from_engine(wire.encode(message))


@given(requests)
def test_requests_arrive_unchanged(new: NewRequest) -> None:
    message = sent(wire.add(new))
    assert isinstance(message, wire.Add)
    assert (message.key, wire.request_of(message)) == (new.key, new)


@given(st.lists(outputs, min_size=1, max_size=5).map(tuple))
def test_outputs_arrive_unchanged(outputs: tuple[Output, ...]) -> None:
    assert answered(wire.Outputs(outputs)) == wire.Outputs(outputs)


@pytest.mark.parametrize("cache", [None, CacheStats(5, 3, 1, Counter({"diverged": 2}), 7, 8)])
def test_stats_arrive_unchanged(cache: CacheStats | None) -> None:
    stats = EngineStats(1, 2, 30, 4, SchedulerStats(5, 6, 7, 8, 9, 10, 11, (3, 0, 2)), cache)
    message = answered(wire.Stats(11, stats))
    assert message == wire.Stats(11, stats)
    assert isinstance(message, wire.Stats)
    assert message.stats.cache is None or type(message.stats.cache.misses) is Counter


def test_a_step_is_sent_without_field_names() -> None:
    token = TokenLogprobs(7, -0.5, 1, ((7, -0.5, 1),))
    step = wire.Outputs(tuple(Output(f"r{i}", 0, (7,), (token,)) for i in range(64)))
    payload = wire.encode(step)
    assert not any(name.encode() in payload for name in (*Output._fields, *TokenLogprobs._fields))
    assert len(payload) < 64 * 50
    (output, *_) = answered(step).outputs
    assert type(output) is Output and type(output.logprobs[0]) is TokenLogprobs


def test_facts_arrive_unchanged() -> None:
    facts = ModelFacts(
        "m", 100, None, "/models/m", "cuda", "bfloat16", 8, 16, 99, 4096, {"top_k": 5, "top_p": 0.5}
    )
    assert answered(wire.Ready(facts)) == wire.Ready(facts)


@pytest.mark.parametrize("name", [name for name in vars(errors) if name[0].isupper()])
def test_errors_keep_their_class_and_text(name: str) -> None:
    error = getattr(errors, name)("what happened")
    message = answered(wire.refused("r", error))
    assert isinstance(message, wire.Refused)
    again = wire.error_of(message)
    assert type(again) is type(error)
    assert str(again) == "what happened"


def test_errors_from_outside_the_tree_become_engine_dead() -> None:
    again = wire.error_of(wire.failed(RuntimeError("boom")))
    assert type(again) is errors.EngineDead
    assert str(again) == "RuntimeError: boom"
    assert type(wire.error_of(wire.Failed("os", "no class"))) is errors.EngineDead


@given(st.binary(max_size=60))
def test_invalid_bytes_are_a_connection_error(noise: bytes) -> None:
    for decode in (wire.decode_to_engine, wire.decode_from_engine):
        with contextlib.suppress(WireError):
            decode(noise)


@pytest.mark.parametrize(
    "value",
    [
        ["Hello", "1", "{}", "more"][:2],  # a field short
        ["Abort", 7, None, False],  # a wrong type
        ["StatsRequest", "1"],
        ["Add", "r"],
        ["Add", 7, {"request_id": "r", "prompt": [1]}],
        ["Pong"],  # a message for the other side
        ["Nonsense"],
        {"type": "Shutdown"},
    ],
)
def test_anything_but_a_message_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        wire.decode_to_engine(msgspec.msgpack.encode(value))


@pytest.mark.parametrize(
    "value",
    [
        {"request_id": "r"},
        {"request_id": "r", "prompt": [1, 2.5]},
        {"request_id": "r", "prompt": [1], "params": {"temperature": "hot"}},
        {"request_id": "r", "prompt": [1], "params": {"temperature": -1.0}},  # out of its range
        {"request_id": "x" * 1025, "prompt": [1]},
        {"request_id": "r", "prompt": [1], "cache_pin_tokens": 4},
        [1],
    ],
)
def test_anything_but_a_request_is_refused_by_its_key(value: object) -> None:
    message = wire.decode_to_engine(msgspec.msgpack.encode(["Add", "r@1", value]))
    assert isinstance(message, wire.Add) and message.key == "r@1"
    with pytest.raises(errors.InvalidParams):
        wire.request_of(message)


@pytest.mark.parametrize(
    "value",
    [
        ["Outputs", [{"request_id": "r", "index": "0"}]],
        ["Outputs", [{"request_id": "r", "index": 0, "finish_reason": "bored"}]],
        ["Stats", 1, {"running": 1, "waiting": 1, "total_blocks": 1, "free_blocks": 1, "scheduler": {}, "cache": 1}],
        ["Stats", 1, {"running": 1, "waiting": 1, "total_blocks": 1, "free_blocks": 1, "scheduler": {},
                      "cache": {"misses": {"a": "b"}}}],
        ["Shutdown"],
    ],
)  # fmt: skip
def test_anything_but_an_answer_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        wire.decode_from_engine(msgspec.msgpack.encode(value))


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(WireError):
        wire.decode_to_engine(b"\x92\xa5Hello" + b"\x91" * 100_000)


def test_values_that_cannot_be_encoded_are_refused() -> None:
    with pytest.raises(WireError):
        wire.add(NewRequest("r", (2**70,)))
    with pytest.raises(WireError):
        wire.encode(wire.Abort("\ud800", None, False))
