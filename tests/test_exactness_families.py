"""A request's tokens, and the bits of their logprobs, do not depend on what else happens: every family.

As tests/test_exactness.py, with small random weights that turn each feature of a family on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.core.types import NewRequest
from tests import needs
from tests.conformance.test_families import CASES as FAMILIES
from tests.conformance.test_native import widened
from tests.test_exactness import CASES, SHARED, Run, alike, each_alone, requests_for, run

needs.native()

OLD = ("llama-", "mistral", "qwen2", "qwen3-")
"""Families whose kinds of layers tests/test_exactness.py has."""

RECURRENT = ("qwen3-next", "qwen3.5", "lfm2")
STATE_INTERVAL = 16  # tokens between the states that prompts can share

NAMES = [name for name in FAMILIES if not name.startswith(OLD)]
USUAL = {"gemma3-scaled", "gpt-oss", "llama4"}

FEWER = {"everything": 24, "and preempted": 10}
"""Blocks where every layer has a window: they only run out when there are so few of them."""


def with_logprobs() -> list[NewRequest]:
    return [replace(one, params=replace(one.params, logprobs=2)) for one in requests_for()]


EVENTS: Mapping[str, tuple[Callable[[], list[NewRequest]], bool]] = {
    "everything": (with_logprobs, False),
    "and preempted": (alike, True),
    "prefix cache": (with_logprobs, False),
}


def in_windows(seen: Run) -> bool:
    """What happens in few blocks of windows alone; the other events preempt and share."""
    return min(seen.split_prompts, seen.largest_batch - 1, seen.dropped_blocks, seen.evictions) >= 1


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, bool]]:
    """By name: a folder, and whether every layer has a window."""
    known: dict[str, tuple[str, bool]] = {}

    def of(name: str) -> tuple[str, bool]:
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            case = widened(FAMILIES[name])
            named = (name for name in ("n_positions", "max_seq_len") if name in case.fields)
            length = next(named, "max_position_embeddings")
            sizes = [
                name
                for name in ("vocab_size", "vocab_size_per_layer_input")
                if name in {"vocab_size", *case.fields}
            ]
            fields: dict[str, Any] = {**case.fields, **dict.fromkeys(sizes, 2048), length: 512}
            config = replace(case, fields=fields).build(folder).config
            types = getattr(config, "layer_types", None) or ["full_attention"]
            window = getattr(config, "sliding_window", None)
            everywhere = set(types) == {"sliding_attention"} or (
                window and not hasattr(config, "layer_types")
            )
            known[name] = str(folder), bool(everywhere)
        return known[name]

    return of


def combinations() -> list[object]:
    return [
        pytest.param(event, name, marks=() if name in USUAL and event == "everything" else pytest.mark.long)
        for event in EVENTS
        for name in NAMES
    ]


@pytest.mark.parametrize(("event", "name"), combinations())
def test_nothing_differs(event: str, name: str, folders: Callable[[str], tuple[str, bool]]) -> None:
    folder, windows = folders(name)
    requests, at_once = EVENTS[event]
    model = {"model": folder, "tokenizer": "tale"}
    options, happened = (CASES | SHARED)[event]
    if name.startswith(RECURRENT) and event == "prefix cache":
        options = {**options, "state_interval": STATE_INTERVAL}
    if windows and event in FEWER:
        options = {**options, "num_kv_blocks": FEWER[event]}
        happened = in_windows if event == "everything" else happened
    expected: Run = each_alone({**model, "block_size": options["block_size"]}, requests())
    seen = run({**model, **options}, requests(), at_once=at_once)
    assert happened(seen), seen
    assert seen.tokens == expected.tokens and seen.logprobs == expected.logprobs
    assert len(set(expected.tokens.values())) > 4  # the model tells prompts apart
