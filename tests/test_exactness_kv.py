"""Coded keys and values change no token by what else happens: as in test_exactness.py, for each type of the KV cache.

With 4-bit codes a token's keys are read as they were computed while their block is being written, and as codes after
that: which of both a query reads must not depend on chunks, prefix hits, preemption, drafts or shared prompts. Codes
depend on the block size, so that it is the same in all runs of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from tests import needs
from tests.test_exactness import Guessing, Run, Tokens, alone, matrix, requests_for, run

needs.native()

KINDS: dict[str, dict[str, object]] = {
    "int8": {"model": "tale", "kv_cache_dtype": "int8"},
    "fp8": {"model": "tale", "kv_cache_dtype": "fp8"},
    "fp8 of latents": {"model": "deepseek", "kv_cache_dtype": "fp8"},
    "int4": {"model": "tale", "kv_cache_dtype": "int4"},
    "int4 in windows": {"model": "mistral", "kv_cache_dtype": "int4"},
    "int4 in some windows": {"model": "qwen2-hybrid", "kv_cache_dtype": "int4"},
    "int4 after sinks": {
        "model": "tale",
        "kv_cache_dtype": "int4",
        "attention_sinks": 4,
        "sliding_window": 24,
    },
    "int4 beside states": {"model": "delta", "kv_cache_dtype": "int4"},
    "int4 in bfloat16": {"model": "tale", "kv_cache_dtype": "int4", "dtype": "bfloat16"},
}
BLOCK: dict[str, object] = {"block_size": 16}
PLAIN: dict[str, object] = {"enable_prefix_caching": False, **BLOCK}
CASES: dict[str, tuple[dict[str, object], Callable[[Run], bool]]] = {
    "batch mix": (PLAIN, lambda seen: seen.largest_batch >= 4),
    "chunked prefill": (
        {**PLAIN, "max_num_batched_tokens": 13, "max_num_seqs": 8}, lambda seen: seen.split_prompts >= 7,
    ),
    "prefix cache": (BLOCK, lambda seen: seen.hits >= 48),
    "preemption": (
        {**PLAIN, "num_kv_blocks": 12, "max_model_len": 150, "max_num_batched_tokens": 24, "max_num_seqs": 8},
        lambda seen: seen.preemptions >= 1,
    ),
    "everything": (
        {**BLOCK, "num_kv_blocks": 16, "max_model_len": 150, "max_num_batched_tokens": 19, "max_num_seqs": 6,
         "preemption_victim": "cheapest", "scheduling_policy": "fair"},
        lambda seen: min(seen.preemptions, seen.hits, seen.split_prompts, seen.largest_batch - 1) >= 1,
    ),
}  # fmt: skip
BOUNDED = ("int4 in windows", "int4 after sinks")
"""Kinds whose sequences never hold more than a window: fewer blocks run out."""
USUAL = {("int4", "everything"), ("fp8", "everything")}


def located(kind: str, tiny_models: Mapping[str, str]) -> dict[str, object]:
    options = dict(KINDS[kind])
    options["model"] = tiny_models.get(str(options["model"]), options["model"])
    return options


def fitted(kind: str, options: Mapping[str, object]) -> dict[str, object]:
    chosen = dict(options)
    if "num_kv_blocks" in chosen and kind in BOUNDED:
        chosen["num_kv_blocks"] = 5
    if kind == "int4 after sinks":
        chosen.pop("max_model_len", None)
    return chosen


@pytest.fixture(scope="module")
def expected(tiny_models: Mapping[str, str]) -> Callable[..., Tokens]:
    known: dict[tuple[str, int], Tokens] = {}

    def of(kind: str, n: int = 1) -> Tokens:
        if (kind, n) not in known:
            known[kind, n] = alone({**located(kind, tiny_models), **BLOCK}, requests_for(n=n))
        return known[kind, n]

    return of


@pytest.mark.parametrize(("kind", "case"), matrix(KINDS, CASES, USUAL))
def test_no_token_differs(
    kind: str, case: str, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    options, happened = CASES[case]
    seen = run({**located(kind, tiny_models), **fitted(kind, options)}, requests_for())
    assert happened(seen), seen
    assert seen.tokens == expected(kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tight", [False, True], ids=["roomy", "preempting"])
def test_several_completions_share_their_prompt(
    kind: str, tight: bool, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    options = dict(BLOCK)
    if tight:
        options |= {"num_kv_blocks": 13, "max_model_len": 150, "max_num_seqs": 6}
    seen = run({**located(kind, tiny_models), **fitted(kind, options)}, requests_for(n=3))
    assert seen.forks >= 2
    assert not tight or kind in BOUNDED or seen.preemptions >= 1
    assert seen.tokens == expected(kind, 3)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "int4" else pytest.mark.long) for kind in KINDS]
)
def test_verified_drafts_change_nothing(
    kind: str, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    right = expected(kind)
    options = {**located(kind, tiny_models), **BLOCK}
    seen = run(options, requests_for(), wrap=lambda executor: Guessing(executor, right))
    assert seen.accepted >= 20 and seen.drafted - seen.accepted >= 5
    assert seen.tokens == right


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fp8", "int4"])
@pytest.mark.parametrize("drafter", ["ngram,tale-draft", "tale-eagle", "tale-medusa"])
def test_drafters_change_nothing(drafter: str, kind: str, expected: Callable[..., Tokens]) -> None:
    """A model that drafts has a cache of the same type; heads draft trees, whose branches have blocks of their own."""
    options = {**KINDS[kind], **BLOCK, "speculative": drafter, "adaptive_speculation": False}
    seen = run(options, [*requests_for()])
    assert seen.drafted > seen.accepted > 0
    assert seen.tokens == expected(kind)


@pytest.mark.parametrize("size", [32, pytest.param(64, marks=pytest.mark.long)])
def test_chunks_of_a_long_prompt_change_nothing(size: int) -> None:
    """Chunks that begin and end inside blocks, and queries of one tile that lie in several blocks."""
    prompt = tuple(6 + at * 7919 % 2000 for at in range(333))
    request = NewRequest("long", prompt, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    options: dict[str, object] = {"model": "tale", "kv_cache_dtype": "int4", "block_size": size}
    whole = run({**options, "max_num_batched_tokens": 512}, [request])
    for chunk in (1, 47, 96):
        cut = run({**options, "max_num_batched_tokens": chunk}, [replace(request)])
        assert cut.split_prompts >= 333 // chunk - 1
        assert cut.tokens == whole.tokens
