"""Medusa's heads: their logits are those of the formula, and a draft is drawn as a token would be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace import LLM
from headrace.build import assemble, survey
from headrace.config import EngineConfig
from headrace.errors import ConfigError
from headrace.runner.executor import ModelExecutor
from headrace.speculative.control import Speculation
from headrace.speculative.heads import MedusaHeads
from headrace.speculative.medusa import MedusaMethod
from tests import needs
from tests.speculative import heads_folders

needs.native()
H, V = 256, 2048


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return heads_folders.near_medusa(tmp_path_factory.mktemp("medusa") / "heads", V, H)


@pytest.mark.parametrize("ops", [None, "reference"])
def test_logits_are_the_models_head_after_the_blocks(folder: Path, ops: str | None) -> None:
    options = EngineConfig(
        "tale", speculative=str(folder), dtype="float32", ops_force=ops, kv_cache_memory="4MiB"
    )
    parts = assemble(options)
    assert isinstance(parts.executor, ModelExecutor) and isinstance(parts.executor.drafter, Speculation)
    (method,) = parts.executor.drafter.methods
    assert isinstance(method, MedusaMethod)
    rng = np.random.default_rng(1)
    states = rng.standard_normal((5, H)).astype(np.float32)
    plain = np.asarray(parts.executor.model.head(states))
    assert plain.shape == (5, V)
    found = method._logits(states, 3)
    assert [first for _, first in found] == [0, 5, 10]
    for head, (logits, first) in enumerate(found):
        ((weight, bias),) = method._heads.blocks[head]
        inner = states @ weight.T + bias
        expected = np.asarray(parts.executor.model.head(states + inner / (1 + np.exp(-inner))))
        assert np.abs(np.asarray(logits)[first : first + 5] - expected).max() < 1e-3
        assert np.abs(expected - plain).max() > 0.1


def test_heads_with_a_matrix_of_their_own_use_it() -> None:
    rng = np.random.default_rng(2)
    weight, matrix = (
        rng.standard_normal((4, 4)).astype(np.float32),
        rng.standard_normal((6, 4)).astype(np.float32),
    )
    block = ((weight, np.zeros(4, dtype=np.float32)),)

    class Doubles:
        def head(self, states: np.ndarray) -> np.ndarray:
            return np.concatenate([states, states], axis=1)[:, :6]

    heads = MedusaHeads((block, block), (matrix, None))
    method = MedusaMethod(heads, Doubles(), None, "heads")  # type: ignore[arg-type]
    states = rng.standard_normal((3, 4)).astype(np.float32)
    (own, first), (shared, second) = method._logits(states, 2)
    inner = states @ weight.T
    after = states + inner / (1 + np.exp(-inner))
    assert np.allclose(own, after @ matrix.T, atol=1e-5) and first == 0
    assert np.allclose(shared[second : second + 3, :4], after, atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_numbers_that_overflow_warn_nobody() -> None:
    """numpy would write a line of code to the server's log."""
    weight, nothing = np.diag([-300.0, 1.0]).astype(np.float32), np.zeros(2, dtype=np.float32)
    heads = MedusaHeads((((weight, nothing),),), (np.eye(2, dtype=np.float32),))
    method = MedusaMethod(heads, None, None, "heads")  # type: ignore[arg-type]
    ((logits, _),) = method._logits(np.ones((1, 2), dtype=np.float32), 1)
    assert np.allclose(logits, [[1.0, 1.0 + 1.0 / (1.0 + np.exp(-1.0))]], atol=1e-5)


def test_the_plan_counts_them(folder: Path) -> None:
    plain = survey(EngineConfig("tale", kv_cache_memory="4MiB")).ledger
    found = survey(EngineConfig("tale", speculative=str(folder), kv_cache_memory="4MiB")).ledger
    assert found.weight_bytes - plain.weight_bytes == 3 * (H * H + H) * 4
    assert found.kv_pool_bytes == plain.kv_pool_bytes


def test_heads_of_another_model_are_refused_at_load(tmp_path: Path, folder: Path) -> None:
    other = heads_folders.near_medusa(tmp_path / "other", V, 64)
    with pytest.raises(ConfigError, match="hidden_size 64; tale has 256"):
        LLM("tale", speculative=str(other), show_progress=False)
    with pytest.raises(ConfigError, match="heads are not quantised"):
        LLM("tale", speculative=str(folder), speculative_quantization="int4", show_progress=False)
