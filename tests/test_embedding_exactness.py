"""An embedding does not depend on what else happens: bitwise on native kernels, as tokens are in test_exactness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Pooling
from tests.test_exactness import ALONE, CASES, MODELS, TORCH, Run, fitted, located, requests_for

Vectors = dict[str, bytes]


def embeddings() -> list[NewRequest]:
    """The prompts of the requests of test_exactness, each with the last token's state and either all or their mean."""
    params = SamplingParams(max_tokens=0)
    return [
        replace(request, request_id=f"{kind.value}-{request.request_id}", params=params, pooling=kind)
        for number, request in enumerate(requests_for())
        for kind in (Pooling.LAST, Pooling.ALL if number % 2 else Pooling.MEAN)
    ]


def run(
    options: Mapping[str, object], requests: Sequence[NewRequest], in_turn: bool = False
) -> tuple[Vectors, Run]:
    """All together, one more arriving at every second step, or each after the end of the one before."""
    parts = assemble(EngineConfig.from_kwargs(**{"dtype": "float32", "num_threads": 1, **options}))
    engine, seen, queue, vectors = parts.engine, Run(), list(requests), {}
    while queue or engine.has_work:
        if queue and (not engine.has_work if in_turn else seen.steps % 2 == 0):
            engine.add(queue.pop(0), float(seen.steps))
        plan = engine.begin(float(seen.steps))
        seen.see(plan)
        for output in engine.finish(parts.executor.execute(plan), float(seen.steps)):
            assert output.error is None
            if output.pooled is not None:
                vectors[output.request_id] = output.pooled
    stats = engine.stats()
    assert stats.free_blocks == stats.total_blocks
    seen.preemptions = stats.scheduler.preemptions
    seen.split_prompts -= len(vectors)  # embeddings sample nothing after their last slice, either
    if stats.cache is not None:
        seen.hits, seen.evictions = stats.cache.hits, stats.cache.evictions
    return vectors, seen


def mixed() -> list[NewRequest]:
    """Embeddings among requests that generate."""
    pairs = zip(embeddings()[::2] + embeddings()[1::2], requests_for() * 2, strict=True)
    return [
        one
        for index, (asked, chat) in enumerate(pairs)
        for one in (asked, replace(chat, request_id=f"chat-{index}"))
    ]


@pytest.fixture(scope="module")
def expected(tiny_models: Mapping[str, str]) -> Callable[[str, object], Vectors]:
    known: dict[tuple[str, object], Vectors] = {}

    def of(kind: str, block_size: object) -> Vectors:
        """Each by itself. Keys are visited block by block, so that another size of block is another rounding."""
        if (kind, block_size) not in known:
            options = {**ALONE, **located(kind, tiny_models), "block_size": block_size}
            known[kind, block_size], seen = run(options, embeddings(), in_turn=True)
            assert seen.preemptions == seen.hits == seen.split_prompts == 0 and seen.largest_batch == 1
        return known[kind, block_size]

    return of


def usual(kind: str, case: str) -> bool:
    """The case with all events for each kind but torch, and the one with none of them for one kind."""
    return kind != TORCH and case in (("everything", "batch mix") if kind == "full" else ("everything",))


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=() if usual(kind, case) else pytest.mark.long)
        for case in CASES
        for kind in MODELS
    ],
)
def test_no_bit_differs(
    kind: str, case: str, tiny_models: Mapping[str, str], expected: Callable[[str, object], Vectors]
) -> None:
    options, happened = CASES[case]
    vectors, seen = run({**located(kind, tiny_models), **fitted(kind, options)}, mixed())
    assert happened(seen), seen
    required = expected(kind, options["block_size"])
    assert set(vectors) == set(required) and len(vectors) == 14
    if kind == TORCH:  # which may round in another order, see docs/architecture.md
        for name, vector in vectors.items():
            ours, theirs = (np.frombuffer(data, dtype="<f4") for data in (vector, required[name]))
            assert np.abs(ours - theirs).max() < 1e-4
    else:
        assert vectors == required
