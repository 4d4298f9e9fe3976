"""Properties of the torch sampler only: the cost of a call, and its cached plan."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.runner.sampling import sampler as sampler_module
from headrace.runner.sampling.sampler import Sampler
from headrace.runner.sampling.state import SampleRow
from tests.runner.sampling.test_sampler import VOCAB, random_logits, state_of


class Recorder(TorchDispatchMode):
    """Names of the torch operations that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("path", ["_argmax_numpy", "_argmax_torch"])
def test_a_plain_greedy_batch_costs_one_argmax(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(logits: torch.Tensor) -> tuple[list[int], list[float]]:
        calls.append(logits)
        return original(logits)

    original = getattr(sampler_module, path)
    monkeypatch.setattr(sampler_module, "_argmax", counted)
    sampler = Sampler(VOCAB)
    rows = [SampleRow(state_of(sampler, temperature=0.0, ignore_eos=True)) for _ in range(6)]
    logits = random_logits(6)
    sampler.sample(logits, rows)
    with Recorder() as recorder:
        got = sampler.sample(logits, rows)
    # NumPy's argmax reads the tensor's own memory, for which torch makes a view.
    assert (
        recorder.names == {"_argmax_numpy": ["aten.detach.default"], "_argmax_torch": ["aten.max.dim"]}[path]
    )
    assert [call is logits for call in calls] == [True, True]
    assert got.tokens == logits.argmax(-1).tolist()
    assert got.logprobs is None
    assert got.errors == {}


def test_a_plan_is_kept_while_the_batch_stays_the_same() -> None:
    sampler = Sampler(VOCAB)
    rows = [SampleRow(state_of(sampler, seed=seed)) for seed in range(3)]
    logits = random_logits(3)
    sampler.sample(logits, rows)
    plan = sampler._plan
    for row in rows:
        row.state.extend((9,))
    sampler.sample(logits, [SampleRow(row.state) for row in rows])
    assert sampler._plan is plan
    sampler.sample(logits[:2], rows[:2])
    assert sampler._plan is not plan


def test_both_argmax_take_the_lowest_id_and_see_nan() -> None:
    logits = torch.tensor(
        [
            [1.0, 3.0, 3.0, 2.0],
            [0.0, -0.0, 0.0, 0.0],
            [1.0, math.nan, 5.0, math.inf],
            [-math.inf] * 4,
        ]
    )
    tokens, highest = sampler_module._argmax_numpy(logits)
    assert tokens[:3] == sampler_module._argmax_torch(logits)[0][:3] == [1, 0, 1]
    assert repr(highest) == repr(sampler_module._argmax_torch(logits)[1]) == "[3.0, 0.0, nan, -inf]"
