"""A request's tokens, and the bits of their logprobs, do not depend on what else happens: weights in GGUF's blocks.

As tests/test_exactness.py, with every type of blocks on every instruction set. The usual run takes the mixture of
types that most files have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.core.types import NewRequest
from headrace.quant.block_formats import BLOCK_FORMATS
from tests import needs
from tests.gguf_files import write_gguf
from tests.instruction_sets import BEST, SETS
from tests.places import TALE
from tests.test_exactness import CASES, SHARED, Run, alike, each_alone, requests_for, run

needs.native()

MIXED = "Q4_K_M"
TYPES = [MIXED, *(name.upper() for name in BLOCK_FORMATS)]


def mixed(name: str) -> str:
    """Types as in Q4_K_M files: more bits for embeddings, and for v and down of every second layer. Up as well, so that
    gate and up differ."""
    if name == "token_embd.weight":
        return "Q6_K"
    _, index, part, _ = name.split(".")
    return "Q6_K" if part in ("attn_v", "ffn_down", "ffn_up") and int(index) % 2 == 0 else "Q4_K"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("blocks")

    def of(type: str) -> str:
        path: Path = folder / f"tale-{type}.gguf"
        if not path.exists():
            write_gguf(TALE, path, mixed if type == MIXED else type)
        return str(path)

    return of


def with_logprobs() -> list[NewRequest]:
    return [replace(one, params=replace(one.params, logprobs=2)) for one in requests_for()]


EVENTS: Mapping[str, tuple[Callable[[], list[NewRequest]], bool]] = {
    "everything": (with_logprobs, False),
    "and preempted": (alike, True),
}


def combinations() -> list[object]:
    """Every type on every instruction set; all but the mixture on the best set are `long`."""
    return [
        pytest.param(type, kernels, id=f"{type}-{kernels}", marks=() if usual else pytest.mark.long)
        for type in TYPES
        for kernels in SETS
        for usual in [(type, kernels) == (MIXED, BEST)]
    ]


@pytest.mark.parametrize(("type", "kernels"), combinations())
@pytest.mark.parametrize("event", EVENTS)
def test_nothing_differs(type: str, kernels: str, event: str, files: Callable[[str], str]) -> None:
    make, at_once = EVENTS[event]
    options, happened = {**CASES, **SHARED}[event]
    model: dict[str, object] = {
        "model": files(type),
        "ops_force": kernels,
        "block_size": options["block_size"],
    }
    expected: Run = each_alone(model, make())
    seen = run({**model, **options}, make(), at_once=at_once)
    assert happened(seen), seen
    assert seen.tokens == expected.tokens
    assert seen.logprobs == expected.logprobs
    assert all(len(found) == len(seen.tokens[key]) for key, found in seen.logprobs.items())
