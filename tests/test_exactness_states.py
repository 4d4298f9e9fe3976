"""Models with recurrent layers: a request's tokens and their log-probabilities do not depend on what else happens.

As in test_exactness.py: each request alone and all together, with NaN in every block and slot that
holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from headrace.build import EngineParts
from tests import tiny_checkpoint
from tests.test_exactness import PLAIN, Run, alike, each_alone, requests_for, run

KINDS = [
    *tiny_checkpoint.RECURRENT,
    *(pytest.param(f"{name} on torch", marks=pytest.mark.long) for name in tiny_checkpoint.RECURRENT),
]

CASES: dict[str, tuple[dict[str, object], Callable[[Run], bool]]] = {
    "batch mix": (PLAIN, lambda seen: seen.largest_batch >= 4),
    "chunked prefill": (
        {**PLAIN, "max_num_batched_tokens": 13, "max_num_seqs": 8}, lambda seen: seen.split_prompts >= 7,
    ),
    "prefix cache": ({"block_size": 16, "state_interval": 16}, lambda seen: seen.hits >= 2 * 48),
    "preemption": (
        {"block_size": 16, "num_kv_blocks": 14, "max_model_len": 150, "max_num_batched_tokens": 24,
         "max_num_seqs": 8, "state_interval": 16},
        lambda seen: min(seen.preemptions, seen.hits) >= 1,
    ),
    "everything": (
        {"block_size": 16, "num_kv_blocks": 16, "max_model_len": 150, "max_num_batched_tokens": 19,
         "max_num_seqs": 6, "state_interval": 32, "preemption_victim": "cheapest", "scheduling_policy": "fair"},
        lambda seen: min(seen.preemptions, seen.hits, seen.split_prompts, seen.evictions) >= 1,
    ),
}  # fmt: skip


Alone = Callable[[str, str, int], Run]


@pytest.fixture(scope="module")
def alone(tiny_models: Mapping[str, str]) -> Alone:
    known: dict[tuple[str, str, int], Run] = {}

    def of(kind: str, which: str, n: int) -> Run:
        if (kind, which, n) not in known:
            requests = alike() if which == "alike" else requests_for(n=n)
            known[kind, which, n] = each_alone({**located(kind, tiny_models), "block_size": 16}, requests)
        return known[kind, which, n]

    return of


def located(kind: str, tiny_models: Mapping[str, str]) -> dict[str, object]:
    options: dict[str, object] = {"model": tiny_models[kind.split()[0]]}
    return {**options, "ops_force": "reference"} if kind.endswith("torch") else options


def assert_same(kind: str, seen: Run, expected: Run) -> None:
    assert {key: tokens for key, tokens in seen.tokens.items() if tokens != expected.tokens[key]} == {}
    assert seen.tokens.keys() == expected.tokens.keys()
    if not kind.endswith("torch"):  # there products depend on the number of rows
        assert seen.logprobs == expected.logprobs


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_token_differs(kind: str, case: str, tiny_models: Mapping[str, str], alone: Alone) -> None:
    options, happened = CASES[case]
    seen = run({**located(kind, tiny_models), **options}, requests_for())
    assert happened(seen), seen
    assert_same(kind, seen, alone(kind, "usual", 1))


@pytest.mark.parametrize("room", ["roomy", "preempting"])
@pytest.mark.parametrize("kind", KINDS)
def test_several_completions_share_their_prompt(
    kind: str, room: str, tiny_models: Mapping[str, str], alone: Alone
) -> None:
    tight = room == "preempting"
    options: dict[str, object] = {"block_size": 16}
    if tight:
        options |= {"num_kv_blocks": 16, "max_model_len": 150, "max_num_seqs": 6}
    seen = run({**located(kind, tiny_models), **options}, requests_for(n=3))
    assert seen.forks >= 2
    assert (seen.preemptions >= 1) == tight
    assert_same(kind, seen, alone(kind, "usual", 3))


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_turn_of_a_conversation(kind: str, tiny_models: Mapping[str, str], alone: Alone) -> None:
    """Answers of 40 tokens end between blocks; the prompts of the next turns are found up to their last whole block."""
    expected = alone(kind, "usual", 1)
    turns = [
        replace(
            one,
            request_id=f"{one.request_id}+",
            prompt=(*one.prompt, *expected.tokens[one.request_id, 0], 7, 8, 9),
        )
        for one in requests_for()
    ]
    options = {**located(kind, tiny_models), "block_size": 16}
    apart = each_alone(options, turns)
    seen = run(options, [*requests_for(), *turns], in_turn=True)
    assert seen.hits >= sum((len(one.prompt) - 4) // 16 * 16 for one in turns)
    both = {**expected.tokens, **apart.tokens}, {**expected.logprobs, **apart.logprobs}
    assert_same(kind, seen, replace(expected, tokens=both[0], logprobs=both[1]))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_prompts_that_arrive_together_share_states(
    kind: str, tiny_models: Mapping[str, str], alone: Alone
) -> None:
    seen = run({**located(kind, tiny_models), "block_size": 16}, alike(), at_once=True)
    assert (
        seen.forks == 2 and seen.hits >= 3 * 64
    )  # states of prompts' last whole blocks, in the step that writes them
    assert_same(kind, seen, alone(kind, "alike", 1))


@pytest.mark.parametrize("kind", KINDS)
def test_aborted_requests_leave_no_trace(kind: str, tiny_models: Mapping[str, str], alone: Alone) -> None:
    gone = ("request-1", "request-2", "request-5")

    def abort(parts: EngineParts, step: int) -> None:
        if step in (4, 9, 14):
            parts.engine.abort(gone[(step - 4) // 5], float(step))

    options = {"block_size": 16, "state_interval": 16, "max_num_batched_tokens": 24}
    seen = run({**located(kind, tiny_models), **options}, requests_for(), abort)
    expected = alone(kind, "usual", 1)
    kept = [key for key in expected.tokens if key[0] not in gone]
    assert {key: seen.tokens[key] for key in kept} == {key: expected.tokens[key] for key in kept}
    assert any(len(seen.tokens.get((name, 0), ())) < 40 for name in gone)
    assert replace(seen, tokens={}).hits > 0
