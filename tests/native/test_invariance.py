"""Bitwise batch invariance of the native paths, through the whole engine.

The requests of tests/test_exactness.py, each alone and then together under events that change its company: a batch,
chunks, a prefix hit, preemption, rejected drafts. Every log-probability must be the same float. The matrix itself is
tested with a model whose kernels depend on the number of rows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import needs
from tests.instruction_sets import BEST, SETS, parameters

_native = needs.native()

from headrace.core.executor import Executor  # noqa: E402
from headrace.core.types import NewRequest  # noqa: E402
from headrace.models.families import read_spec  # noqa: E402
from headrace.models.packed_loader import load_packed  # noqa: E402
from headrace.models.source import resolve_model  # noqa: E402
from headrace.quant.format import BF16, WeightFormats  # noqa: E402
from headrace.runner.executor import ModelExecutor  # noqa: E402
from headrace.runner.native_decoder import NativeDecoder  # noqa: E402
from headrace.runner.step import Step  # noqa: E402
from headrace.runner.tape_memory import TapeLimits  # noqa: E402
from tests.test_exactness import CASES, Guessing, Run, requests_for, run  # noqa: E402

# How weights and KV are kept -> the options that ask for it.
FORMATS: dict[str, dict[str, object]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, KV int8": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "int4-g32-asym-a16": {"dtype": "bfloat16", "quantization": "int4-g32-asym-a16"},
}
USUAL = {
    ("int4", "everything"), ("bfloat16, KV int8", "everything"), ("int4-g32-asym-a16", "everything"),
    ("bfloat16", "preemption"),
}  # fmt: skip
"""The formats and cases of the usual run; the others are `long`."""
TALE: dict[str, object] = {"model": "tale", "num_threads": 2}
ALONE: dict[str, object] = {
    **TALE, "num_threads": 1, "max_num_seqs": 1, "max_num_batched_tokens": 2048, "enable_prefix_caching": False,
}  # fmt: skip


def requests(seed: int = 0) -> list[NewRequest]:
    made = requests_for(seed=seed, max_tokens=30)
    return [replace(one, params=replace(one.params, logprobs=2)) for one in made]


@functools.cache
def alone(format: str, kernels: str, block_size: object) -> Run:
    """Every request by itself, in one piece, on one thread. Attention rounds by whole blocks, so these are the same."""
    options = {**ALONE, **FORMATS[format], "ops_force": kernels, "block_size": block_size}
    seen = run(options, requests(), in_turn=True)
    assert seen.largest_batch == 1 and seen.preemptions == seen.hits == seen.split_prompts == 0
    return seen


def check(case: str, format: str, kernels: str) -> None:
    options, happened = CASES[case]
    expected = alone(format, kernels, options["block_size"])
    assert all(len(found) == 30 for found in expected.logprobs.values())
    seen = run({**TALE, **options, **FORMATS[format], "ops_force": kernels}, requests())
    assert happened(seen), seen
    assert seen.tokens == expected.tokens
    assert seen.logprobs == expected.logprobs  # floats, compared bit for bit (none of them is a NaN)


def unless(usual: bool, *values: object) -> object:
    """A parameter that is `long` unless it is in the usual run."""
    return pytest.param(*values, marks=() if usual else pytest.mark.long)


@pytest.mark.parametrize(
    ("format", "case"),
    [unless((format, case) in USUAL, format, case) for format in FORMATS for case in CASES],
)
def test_every_logprob_is_the_same_float(format: str, case: str) -> None:
    check(case, format, BEST)


WINDOWS: dict[str, dict[str, object]] = {"full": {}, "sinks": {"attention_sinks": 4, "sliding_window": 40}}
CROWDED = {("bfloat16, KV int8", "full"), ("int4", "sinks")}
"""Those in the usual run."""


@pytest.mark.parametrize(
    ("format", "window"),
    [unless((format, window) in CROWDED, format, window) for format in FORMATS for window in WINDOWS],
)
def test_alone_and_among_31_others(format: str, window: str) -> None:
    crowd = [
        replace(one, request_id=f"{one.request_id}-{seed}") for seed in range(5) for one in requests(seed)
    ][:32]
    options = {
        **TALE,
        **FORMATS[format],
        **WINDOWS[window],
        "ops_force": BEST,
        "block_size": 16,
        "enable_prefix_caching": False,
    }
    seen = run({**options, "max_num_seqs": 32, "max_num_batched_tokens": 4096}, crowd, at_once=True)
    assert seen.largest_batch == 32
    single = run({**options, "max_num_seqs": 1, "max_num_batched_tokens": 4096}, crowd[::5], in_turn=True)
    assert single.largest_batch == 1 and len(single.logprobs) == 7
    for key, logprobs in single.logprobs.items():
        assert seen.logprobs[key] == logprobs


@pytest.mark.parametrize("kernels", parameters(SETS[1:]))
@pytest.mark.parametrize("format", [unless(False, "float32"), unless(False, "bfloat16, KV int8"), "int4"])
def test_on_every_instruction_set(format: str, kernels: str) -> None:
    check("everything", format, kernels)


@pytest.mark.parametrize("format", ["bfloat16", "int4"])
def test_verified_drafts_change_no_logprob(format: str) -> None:
    expected = alone(format, BEST, 8)
    seen = run(
        {**TALE, "block_size": 8, **FORMATS[format], "ops_force": BEST},
        requests(),
        wrap=lambda executor: Guessing(executor, expected.tokens),
    )
    assert seen.accepted >= 20 and seen.drafted - seen.accepted >= 5
    assert seen.logprobs == expected.logprobs


class ByRows:
    """What other engines do: one kernel for a single row, another one for many. Both are right to a rounding."""

    def __init__(self, many: NativeDecoder, single: NativeDecoder) -> None:
        self._many, self._single = many, single
        self.vocab_size = many.vocab_size
        self._kv, self.copy_blocks = many._kv, many.copy_blocks  # one KV memory serves both

    def forward(self, step: Step) -> NDArray[np.float32]:
        return (self._single if len(step.ids) == 1 else self._many).forward(step)


def depends_on_rows(executor: Executor) -> Executor:
    assert isinstance(executor, ModelExecutor)
    model = executor.model
    assert isinstance(model, NativeDecoder)
    groups = [table.group for table in executor._tables]
    kernels, team = _native.Kernels("portable"), _native.Team(1)
    source = resolve_model("tale")
    weights = load_packed(
        source,
        read_spec(source.config),
        dtype="bfloat16",
        weights=WeightFormats(BF16),
        kernels=kernels,
        team=team,
    )
    limits = TapeLimits(16, 16)
    single = NativeDecoder(model.program, weights, model._kv, groups, kernels, team, limits)
    executor.model = ByRows(model, single)
    return executor


@functools.cache
def alone_by_rows(block_size: object) -> Run:
    lone = {**ALONE, **FORMATS["bfloat16"], "ops_force": BEST, "block_size": block_size}
    return run(lone, requests(), wrap=depends_on_rows, in_turn=True)


@pytest.mark.skipif(BEST == "portable", reason="needs two instruction sets that round differently")
@pytest.mark.parametrize("case", [unless(case == "everything", case) for case in CASES])
def test_the_matrix_notices_a_kernel_that_depends_on_the_number_of_rows(case: str) -> None:
    options, happened = CASES[case]
    expected = alone_by_rows(options["block_size"])
    crowd: Mapping[str, object] = {**TALE, **options, **FORMATS["bfloat16"], "ops_force": BEST}
    seen = run(crowd, requests(), wrap=depends_on_rows)
    assert happened(seen), seen
    assert seen.logprobs != expected.logprobs
