"""What is evicted depends on the request alone: with kv_eviction no token differs between a request by itself and one
in a batch, in chunks, after a prefix hit or after a preemption. Requests within the budget have the tokens of an engine
without eviction. Blocks are whole panels of keys, as attention adds up keys in other spans for others, and a choice of
tokens shows that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from tests import needs
from tests.test_exactness import Run, Tokens, alone, matrix, requests_for, run

needs.native()

EVICTION: dict[str, object] = {
    "kv_eviction": "snapkv", "kv_eviction_budget": 32, "kv_eviction_window": 8, "kv_eviction_sinks": 2,
    "kv_eviction_recent": 8, "kv_eviction_interval": 24,
}  # fmt: skip
KINDS: dict[str, dict[str, object]] = {
    "float32": {"model": "tale"},
    "bfloat16": {"model": "tale", "dtype": "bfloat16"},
    "int8": {"model": "tale", "kv_cache_dtype": "int8"},
    "fp8": {"model": "tale", "kv_cache_dtype": "fp8"},
    "some windows": {"model": "qwen2-hybrid"},
    "shared": {"model": "gemma4"},
}
PLAIN: dict[str, object] = {"enable_prefix_caching": False, "block_size": 16}
CASES: dict[str, tuple[dict[str, object], Callable[[Run], bool]]] = {
    "batch mix": (PLAIN, lambda seen: seen.largest_batch >= 4),
    "chunked prefill": (
        {**PLAIN, "max_num_batched_tokens": 13, "max_num_seqs": 5}, lambda seen: seen.split_prompts >= 7,
    ),
    "prefix cache": ({"block_size": 16}, lambda seen: seen.hits >= 48),
    "preemption": (
        {**PLAIN, "num_kv_blocks": 11, "max_model_len": 131, "max_num_batched_tokens": 48, "max_num_seqs": 8},
        lambda seen: seen.preemptions >= 1,
    ),
    "everything": (
        {"block_size": 16, "num_kv_blocks": 11, "max_model_len": 131, "max_num_batched_tokens": 33, "max_num_seqs": 8,
         "preemption_victim": "cheapest"},
        lambda seen: min(seen.preemptions, seen.hits, seen.split_prompts, seen.largest_batch - 1) >= 1,
    ),
}  # fmt: skip
USUAL = {("float32", "everything"), ("int8", "everything")}


def located(kind: str, tiny_models: Mapping[str, str]) -> dict[str, object]:
    options = dict(KINDS[kind])
    options["model"] = tiny_models.get(str(options["model"]), options["model"])
    return {**options, **EVICTION}


@pytest.fixture(scope="module")
def expected(tiny_models: Mapping[str, str]) -> Callable[..., Tokens]:
    known: dict[tuple[str, int], Tokens] = {}

    def of(kind: str, n: int = 1) -> Tokens:
        if (kind, n) not in known:
            known[kind, n] = alone(located(kind, tiny_models), requests_for(n=n))
        return known[kind, n]

    return of


@pytest.mark.parametrize(("kind", "case"), matrix(KINDS, CASES, USUAL))
def test_no_token_differs(
    kind: str, case: str, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    options, happened = CASES[case]
    seen = run({**located(kind, tiny_models), **options}, requests_for())
    assert happened(seen), seen
    assert seen.evicted > 200
    assert seen.tokens == expected(kind)


@pytest.mark.long
@pytest.mark.parametrize("prefix", [True, False])
def test_several_completions_of_a_prompt_that_is_evicted(
    prefix: bool, tiny_models: Mapping[str, str], expected: Callable[..., Tokens]
) -> None:
    options = {"block_size": 16, "enable_prefix_caching": prefix}
    seen = run({**located("float32", tiny_models), **options}, requests_for(n=3))
    assert seen.tokens == expected("float32", 3)
    assert seen.evicted > 200 and (not prefix or seen.hits > 0)


@pytest.mark.parametrize("n", [1, 3])
def test_requests_within_the_budget_are_exact(n: int) -> None:
    """Beside requests that evict, and with forks."""
    short = [
        NewRequest(
            f"short-{index}",
            tuple(range(100 + index, 120 + index)),
            SamplingParams(temperature=0.7, seed=index, n=n, max_tokens=23, ignore_eos=True),
        )
        for index in range(3)
    ]
    options = {"model": "tale", "block_size": 16}
    plain = run(options, short, at_once=True)
    seen = run({**options, **EVICTION}, [*short, *requests_for()[:3]], at_once=True)
    assert plain.evicted == 0 and seen.evicted > 0
    assert {key: seen.tokens[key] for key in plain.tokens} == plain.tokens
    assert n == 1 or seen.forks > 0


def test_a_budget_of_the_whole_sequence_changes_no_bit() -> None:
    asked = [replace(one, params=replace(one.params, logprobs=2)) for one in requests_for()[:4]]
    plain = run({"model": "tale"}, asked)
    seen = run({"model": "tale", "kv_eviction": "snapkv", "kv_eviction_budget": 256}, asked)
    assert seen.evicted == 0
    assert (seen.tokens, seen.logprobs) == (plain.tokens, plain.logprobs)


def test_an_abort_between_the_choice_and_the_move_frees_all(tiny_models: Mapping[str, str]) -> None:
    """Requests that leave while a step moves their tokens, and at other times: `run` counts the free blocks at the
    end."""
    requests = requests_for(max_tokens=20)
    leaving = {1: "request-0", 4: "request-2", 6: "request-1", 9: "request-4"}

    def abort(parts: object, step: int) -> None:
        if step in leaving:
            parts.engine.abort(leaving[step], float(step))  # type: ignore[attr-defined]

    options = {**located("float32", tiny_models), "block_size": 16}
    seen = run(options, requests, abort)
    expected = alone(located("float32", tiny_models), requests)
    stayed = [key for key in expected if key[0] not in leaving.values()]
    assert {key: seen.tokens[key] for key in stayed} == {key: expected[key] for key in stayed}
    for name in leaving.values():
        tokens = seen.tokens.get((name, 0), ())
        assert tokens == expected[name, 0][: len(tokens)]


def test_memory_falls_to_the_budget() -> None:
    parts = assemble(EngineConfig.from_kwargs(model="tale", num_threads=1, block_size=16, **EVICTION))
    engine = parts.engine
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    engine.add(NewRequest("a", tuple(range(100, 300)), params), 0.0)
    held = []
    while engine.has_work:
        plan = engine.begin(0.0)
        engine.finish(parts.executor.execute(plan), 0.0)
        held.append(engine.kv_usage())
    most = -(-(32 + 24) // 16)
    assert max(usage.held_blocks for usage in held[1:-1]) <= most + 2  # and those that tokens move to
    assert max(usage.used_tokens for usage in held[1:-1]) == 32 + 23
    assert engine.stats().scheduler.evicted_tokens == 200 - 32 + 48


def test_values_that_are_not_finite_stay_alone(tiny_models: Mapping[str, str]) -> None:
    """A sequence whose keys are NaN fails alone; those beside it have their tokens."""
    requests = requests_for()[:4]
    expected = alone(located("float32", tiny_models), requests)
    parts = assemble(
        EngineConfig.from_kwargs(
            **{**located("float32", tiny_models), "dtype": "float32", "num_threads": 1, "block_size": 16}
        )  # type: ignore[arg-type]
    )
    engine = parts.engine
    for request in requests:
        engine.add(request, 0.0)
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    spoiled = None
    while engine.has_work:
        plan = engine.begin(0.0)
        if spoiled is None:
            first = next(request for request in engine.scheduler.running if request.name == "request-2")
            if first.num_computed > 40:
                spoiled = first.tables[0].live[0]
                parts.executor.model._kv._pools[0][0][:, spoiled] = 255  # type: ignore[attr-defined]  # NaN
        for output in engine.finish(parts.executor.execute(plan), 0.0):
            key = (output.request_id, output.index)
            found[key] = found.get(key, ()) + output.tokens
    assert spoiled is not None
    for key, tokens in expected.items():
        if key[0] != "request-2":
            assert found[key] == tokens
