"""Requests without output tokens: log-probabilities of the prompt, or one vector of its hidden states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest, Pooling, SliceResult, StepResult
from headrace.errors import InvalidParams, PromptTooLong
from tests.core.build import driver, full, granted, new
from tests.core.driver import Broken, Driver

KINDS = list(Pooling)


def embedding(name: str, prompt: list[int] | int, kind: Pooling = Pooling.MEAN, salt: str = "") -> NewRequest:
    return replace(new(name, prompt, max_tokens=0, salt=salt), pooling=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_and_no_token(kind: Pooling) -> None:
    engine = driver()
    (track,) = engine.add(embedding("a", 9, kind))
    plan = engine.step()
    assert [part.sample for part in plan.slices] == [False]
    assert len(track.pooled) == 1 and not track.tokens and track.reason is FinishReason.LENGTH
    engine.drain()


def test_prompt_logprobs_alone() -> None:
    engine = driver(max_num_batched_tokens=4)
    (track,) = engine.add(new("a", 11, max_tokens=0, prompt_logprobs=0))
    engine.drain()
    assert len(track.prompt_logprobs) == 10 and not track.tokens and track.reason is FinishReason.LENGTH


def test_several_completions_without_output() -> None:
    engine = driver()
    tracks = engine.add(new("a", 9, max_tokens=0, n=3))
    engine.drain()
    assert [track.reason for track in tracks] == [FinishReason.LENGTH] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_in_pieces_among_others(kind: Pooling) -> None:
    engine = driver(max_num_batched_tokens=5)
    engine.add(new("chat", 6, max_tokens=20, ignore_eos=True))
    (track,) = engine.add(embedding("a", 30, kind))
    pieces = 0
    while track.reason is None:
        pieces += "a" in granted(engine, engine.step())
    assert pieces > 5
    engine.drain()


@pytest.mark.parametrize("kind", KINDS)
def test_preemption_starts_over(kind: Pooling) -> None:
    engine = driver(full(12), max_num_batched_tokens=8, caching=False)
    engine.add(new("chat", 4, max_tokens=40, ignore_eos=True))
    engine.step()
    (track,) = engine.add(embedding("a", 30, kind))
    while track.reason is None:
        engine.step()
        if engine.engine.stats().scheduler.preemptions == 0 and "a" in _running(engine):
            engine.engine.scheduler._preempt(
                next(r for r in engine.engine.scheduler.running if r.name == "a")
            )
            engine.check()
    assert engine.engine.stats().scheduler.preemptions >= 1
    engine.drain()


def _running(engine: Driver) -> set[str]:
    return {request.name for request in engine.engine.scheduler.running}


def test_a_mean_needs_every_token_and_the_last_state_only_its_own() -> None:
    engine = driver()
    prompt = list(range(17))
    engine.add(new("first", prompt, max_tokens=1))
    engine.drain()
    engine.add(embedding("mean", prompt, Pooling.MEAN))
    assert granted(engine, engine.step()) == {"mean": 17}
    engine.drain()
    engine.add(embedding("last", prompt, Pooling.LAST))
    assert granted(engine, engine.step()) == {"last": 1}
    engine.drain()


def test_blocks_of_an_embedding_are_reused() -> None:
    engine = driver()
    prompt = list(range(17))
    engine.add(embedding("mean", prompt))
    engine.drain()
    engine.add(new("chat", prompt, max_tokens=2))
    assert granted(engine, engine.step()) == {"chat": 1}
    engine.drain()


def test_no_room_is_needed_for_output() -> None:
    engine = driver(full(16), max_model_len=64)
    engine.add(embedding("fits", 64))
    engine.add(new("scored", 64, max_tokens=0, prompt_logprobs=0))
    engine.drain()
    with pytest.raises(PromptTooLong):
        engine.add(embedding("longer", 65))
    with pytest.raises(PromptTooLong):
        engine.add(new("chat", 64, max_tokens=1))


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=1), SamplingParams(max_tokens=0, n=2), None])
def test_nothing_may_be_sampled(params: SamplingParams | None) -> None:
    with pytest.raises(InvalidParams, match="max_tokens 0 and n 1"):
        NewRequest("a", (1,), params or SamplingParams(), pooling=Pooling.MEAN)


@pytest.mark.parametrize(
    ("at", "vector", "sentence"),
    [(0, b"early", "too early"), (1, None, "gave no embedding")],
)
def test_a_vector_at_the_wrong_step_fails_the_request(at: int, vector: bytes | None, sentence: str) -> None:
    engine = driver(max_num_batched_tokens=8).engine
    engine.add(embedding("a", 16), 0.0)
    for step in range(at + 1):
        plan = engine.begin(0.0)
        part = SliceResult(plan.slices[0].request_id, pooled=vector if step == at else None)
        outputs = engine.finish(StepResult(plan.step_id, (part,)), 0.0)
    (output,) = outputs
    assert output.finish_reason is FinishReason.ERROR and sentence in str(output.error)


def test_a_mean_that_misses_positions_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a prefix hit would do to it."""
    engine = driver()
    prompt = list(range(17))
    engine.add(new("first", prompt, max_tokens=1))
    engine.drain()
    kv = engine.engine.scheduler.kv
    monkeypatch.setattr(kv, "lookup", lambda r: kv.cache.lookup(r.keys, r.tokens, r.salt))
    engine.add(embedding("mean", prompt, Pooling.MEAN))
    with pytest.raises(Broken, match="embedding"):
        engine.drain()
