"""An EAGLE layer reads each token once with the true states, and its drafts are those of transformers' Llama layer."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace import LLM
from headrace.build import survey
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import CheckpointError, ConfigError
from headrace.speculative.eagle import _KEPT, _Progress
from tests import needs
from tests.speculative import heads_folders
from tests.speculative.eagle_reference import PROMPT, TALE, H, Reference, V, reference
from tests.speculative.watched import drive

needs.native()
__all__ = ["reference"]


@pytest.mark.parametrize("ops", [None, pytest.param("reference", marks=pytest.mark.long)])
def test_drafts_are_those_of_the_formula(reference: Reference, ops: str | None) -> None:
    greedy = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    options = {"num_speculative_tokens": 3, "ops_force": ops, "max_num_batched_tokens": 17}
    outputs, watched = drive([NewRequest("a", PROMPT, greedy)], **TALE, **options)
    stats = outputs[-1].stats
    assert 0 < stats.num_accepted < stats.num_drafted
    assert max(watched.steps) == 17 and watched.read[:50] == list(range(50))
    longest = max((tokens for tokens, _ in watched.proposed), key=len)
    states = reference.states(longest)
    for tokens, drafts in watched.proposed:
        assert drafts == reference.draft(tokens, states[: len(tokens) - 1], len(drafts)), len(tokens)
    assert len(watched.proposed) > 5 and sum(len(drafts) == 3 for _, drafts in watched.proposed) > 3


def test_each_token_is_read_once_with_its_state() -> None:
    greedy = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    outputs, watched = drive([NewRequest("a", PROMPT, greedy)], **TALE, num_speculative_tokens=1)
    assert sorted(watched.read) == list(range(len(watched.read)))  # drafts of one token predict no state
    assert len(watched.read) >= 50 + 28 and outputs[-1].stats.num_accepted > 0


def progress(stored: int) -> _Progress:
    return _Progress(stored, 2)


def drafted(computed: int, states: np.ndarray | None) -> Any:
    class One:
        pass

    one: Any = One()
    one.computed, one.states = computed, states
    return one


def test_states_wait_until_their_token_is_read() -> None:
    states = np.arange(40, dtype=np.float32).reshape(20, 2)
    one = progress(4)
    assert not one.before(4, 3).any() and one.before(4, 3).shape == (3, 2)  # a prefix hit: nothing is known
    one.note(drafted(8, states[4:8]))
    assert np.array_equal(one.before(4, 5), np.concatenate((np.zeros((1, 2)), states[4:8])))
    one.note(drafted(10, states[8:10]))
    assert np.array_equal(one.before(5, 6), states[4:10])
    one.stored = 11
    one.note(drafted(11, states[10:11]))
    assert np.array_equal(one.before(10, 2), states[9:11])  # the last token may be read again
    assert one.waiting == 2
    one.note(drafted(15, None))  # a step that could give none
    one.note(drafted(17, states[15:17]))
    assert np.array_equal(one.before(16, 2), states[15:17]) and not one.before(11, 5).any()


def test_few_states_wait_while_nothing_is_drafted() -> None:
    one = progress(0)
    for at in range(0, 4 * _KEPT, 8):
        one.note(drafted(at + 8, np.full((8, 2), at, dtype=np.float32)))
        one.forget()
    assert one.waiting == _KEPT and one.first == 3 * _KEPT
    assert one.before(4 * _KEPT, 1)[0, 0] == 4 * _KEPT - 8


def test_states_that_wait_are_not_copied_in_each_step() -> None:
    one, row = _Progress(0, 512), 512 * 4
    one.note(drafted(100, np.ones((100, 512), dtype=np.float32)))
    copied = 0
    tracemalloc.start()
    try:
        for at in range(100, 4 * _KEPT):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            one.note(drafted(at + 1, np.full((1, 512), at, dtype=np.float32)))
            one.forget()
            copied += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert copied < 8 * 4 * _KEPT * row
    assert np.array_equal(one.before(4 * _KEPT - 9, 10)[:, 0], np.arange(4 * _KEPT - 10, 4 * _KEPT))
    assert not one.before(2 * _KEPT, 3).any()


def test_the_plan_counts_the_layer_and_its_cache() -> None:
    plain = survey(EngineConfig("tale", kv_cache_memory="4MiB"))
    found = survey(EngineConfig("tale", speculative="tale-eagle", kv_cache_memory="4MiB"))
    assert [group.name for group in found.resolved.kv_groups][len(plain.resolved.kv_groups) :] == [
        "draft full"
    ]
    assert 918_272 * 2 <= found.ledger.weight_bytes - plain.ledger.weight_bytes < 918_272 * 5
    assert found.ledger.activation_bytes > plain.ledger.activation_bytes
    small = survey(EngineConfig("tale", speculative="tale-eagle", speculative_quantization="int4"))
    assert small.ledger.weight_bytes < found.ledger.weight_bytes - 918_272


def test_a_layer_in_4_bits_still_drafts_well() -> None:
    greedy = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    outputs, _ = drive([NewRequest("a", PROMPT, greedy)], **TALE, speculative_quantization="int4")
    assert outputs[-1].stats.num_accepted > 10


def test_layers_that_do_not_fit_are_refused_at_load(tmp_path: Path) -> None:
    other = heads_folders.any_eagle(tmp_path / "other", V, 64)
    with pytest.raises(ConfigError, match="hidden_size 64; tale has 256"):
        LLM("tale", speculative=str(other), show_progress=False)
    absurd = heads_folders.any_eagle(tmp_path / "absurd", V, H)
    config = (absurd / "config.json").read_text()
    (absurd / "config.json").write_text(config.replace('"head_dim": 16', '"head_dim": 15'))
    with pytest.raises(CheckpointError, match="head_dim must be even"):
        LLM("tale", speculative=str(absurd), show_progress=False)
    (absurd / "config.json").write_text(config.replace('"intermediate_size": 32', '"intermediate_size": 48'))
    with pytest.raises(CheckpointError, match="has shape"):
        LLM("tale", speculative=str(absurd), show_progress=False)
    missing = heads_folders.any_eagle(tmp_path / "missing", V, H)
    (missing / "model.safetensors").unlink()
    save_file({"model.norm.weight": np.ones(H, np.float32)}, missing / "model.safetensors")
    with pytest.raises(CheckpointError, match="lacks tensor"):
        LLM("tale", speculative=str(missing), show_progress=False)
