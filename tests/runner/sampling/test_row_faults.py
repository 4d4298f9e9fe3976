"""Faults in one sequence's sampling, planted under the bundled model's real executor: only that sequence fails."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from headrace.build import EngineParts, assemble
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest
from headrace.errors import EngineDead
from headrace.runner.executor import ModelExecutor
from headrace.runner.sampling.output import NAN_LOGITS
from headrace.runner.sampling.row_faults import MAX_LOST_STEPS, NOT_SAMPLED, NOT_STARTED
from headrace.runner.sampling.state import SequenceState
from headrace.serving.engine.stepper import Stepper
from headrace.serving.system import MONOTONIC

Ended = dict[str, tuple[list[int], FinishReason | None, str | None]]

PROMPTS = {"a": (5, 9, 40), "b": (7, 7), "c": (300, 20, 11, 6)}
VICTIM = "b"
VICTIM_SEED = 666


@pytest.fixture(scope="module")
def parts() -> EngineParts:
    return assemble(EngineConfig(model="tale", num_threads=1, num_kv_blocks=64, max_model_len=256))


@pytest.fixture
def executor(parts: EngineParts) -> Any:
    assert isinstance(parts.executor, ModelExecutor)
    return parts.executor


def run(parts: EngineParts, names: str = "abc", **params: Any) -> Ended:
    """The outcome of requests that run together; no block is left in use."""
    engine = parts.engine
    stepper = Stepper(engine, parts.executor, MONOTONIC)
    for name in names:
        seed = VICTIM_SEED if name == VICTIM else 1
        options = {"max_tokens": 12, "temperature": 0.8, "seed": seed, "ignore_eos": True} | params
        engine.add(NewRequest(name, PROMPTS[name], SamplingParams(**options)), MONOTONIC())
    ended: Ended = {name: ([], None, None) for name in names}
    while engine.has_work:
        for output in stepper.step().outputs:
            tokens = ended[output.request_id][0] + list(output.tokens)
            ended[output.request_id] = (tokens, output.finish_reason, output.error)
    stats = engine.stats()
    assert stats.free_blocks == stats.total_blocks
    return ended


def raising(sample: Callable[..., Any], after: int = 0) -> Callable[..., Any]:
    """A sampler that raises on the victim's rows, from its output position `after` on."""

    def sample_or_raise(logits: Any, rows: Any, at: Any = None, masks: Any = None) -> Any:
        for row in rows:
            if row.state.params.seed == VICTIM_SEED and row.state.num_output >= after:
                raise IndexError("planted, with a secret of the inside: /etc/shadow")
        return sample(logits, rows, at, masks)

    return sample_or_raise


@pytest.mark.parametrize("params", [{}, {"logprobs": 2}, {"prompt_logprobs": 1}, {"repetition_penalty": 1.2}])
@pytest.mark.parametrize("after", [0, 5])
def test_an_exception_in_one_row(
    parts: EngineParts, executor: Any, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], after: int
) -> None:
    expected = run(parts, **params)
    assert all(reason is FinishReason.LENGTH for _, reason, _ in expected.values())
    with monkeypatch.context() as planted:
        planted.setattr(executor.sampler, "sample", raising(executor.sampler.sample, after), raising=False)
        outcome = run(parts, **params)
    assert outcome[VICTIM] == (expected[VICTIM][0][:after], FinishReason.ERROR, NOT_SAMPLED)
    for name in "ac":
        assert outcome[name] == expected[name]
    assert run(parts, **params) == expected  # nothing of it is left


def test_nan_and_infinite_logits(parts: EngineParts, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in the logits of one sequence, as from a broken kernel."""
    expected = run(parts)
    forward = executor.model.forward

    def broken(step: Any) -> Any:
        logits = forward(step) + 0  # a copy, of numpy or of torch: what torch infers may not be changed
        if len(step.kv_lens) == 3 and step.kv_lens[1] > 5:
            logits[1] = math.nan
        return logits

    with monkeypatch.context() as planted:
        planted.setattr(executor.model, "forward", broken, raising=False)
        outcome = run(parts)
    assert outcome[VICTIM][1:] == (FinishReason.ERROR, NAN_LOGITS)
    assert outcome["a"] == expected["a"] and outcome["c"] == expected["c"]


@pytest.mark.parametrize(("method", "error"), [("extend", NOT_SAMPLED), ("__init__", NOT_STARTED)])
def test_a_sequence_that_cannot_be_kept(
    parts: EngineParts, executor: Any, monkeypatch: pytest.MonkeyPatch, method: str, error: str
) -> None:
    """The sampling state of one sequence raises, where it is created or where it records tokens."""
    expected = run(parts)
    original = getattr(SequenceState, method)

    def broken(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (args[0] if method == "__init__" else self).params.seed == VICTIM_SEED:
            raise KeyError("planted")
        return original(self, *args, **kwargs)

    with monkeypatch.context() as planted:
        planted.setattr(SequenceState, method, broken)
        outcome = run(parts)
    assert outcome[VICTIM] == ([], FinishReason.ERROR, error)
    assert outcome["a"] == expected["a"] and outcome["c"] == expected["c"]
    assert run(parts) == expected


def test_the_exception_is_only_in_the_log(
    parts: EngineParts, executor: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor.sampler, "sample", raising(executor.sampler.sample), raising=False)
    with caplog.at_level(logging.ERROR):
        outcome = run(parts, VICTIM)
    assert outcome[VICTIM][2] == NOT_SAMPLED and "shadow" in caplog.text


def test_a_sampler_that_always_fails_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no row can be blamed, the executor is broken: the engine must end, so that another one is started."""

    def broken(*_: Any) -> Any:
        raise MemoryError("planted")

    together = assemble(EngineConfig(model="tale", num_threads=1, num_kv_blocks=64, max_model_len=256))
    monkeypatch.setattr(together.executor.sampler, "sample", broken, raising=False)  # type: ignore[attr-defined]
    with pytest.raises(EngineDead):
        run(together)

    alone = assemble(EngineConfig(model="tale", num_threads=1, num_kv_blocks=64, max_model_len=256))
    monkeypatch.setattr(alone.executor.sampler, "sample", broken, raising=False)  # type: ignore[attr-defined]
    for _ in range(MAX_LOST_STEPS):
        assert run(alone, "a")["a"][1] is FinishReason.ERROR
    with pytest.raises(EngineDead):
        run(alone, "a")
