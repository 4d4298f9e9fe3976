"""The ledger's line for embeddings against what executors really hold for them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from headrace.build import assemble
from headrace.config import EngineConfig
from headrace.core.engine import Engine
from headrace.core.executor import Executor
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest, Pooling
from headrace.plan.ledger import ledger
from tests import needs

TOKENS, SEQUENCES = 512, 4
HOLDERS = ("*/runner/native_decoder.py", "*/runner/pooling.py")


def step(engine: Engine, executor: Executor, name: str) -> None:
    """One step, as large as may be, that makes nothing but embeddings."""
    for index in range(SEQUENCES):
        prompt = tuple(range(10 + index, 10 + index + TOKENS // SEQUENCES))
        new = NewRequest(f"{name}{index}", prompt, SamplingParams(max_tokens=0), pooling=Pooling.MEAN)
        engine.add(new, 0.0)
    plan = engine.begin(0.0)
    assert sum(len(work.tokens) for work in plan.slices) == TOKENS
    assert all(output.pooled for output in engine.finish(executor.execute(plan), 0.0))


def arrays_of(holders: tuple[str, ...]) -> int:
    """Bytes of the numpy arrays that were made there and live."""
    numpy = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    snapshot = tracemalloc.take_snapshot().filter_traces([numpy])
    places = [tracemalloc.Filter(True, holder) for holder in holders]
    return sum(trace.size for trace in snapshot.filter_traces(places).traces)


@pytest.mark.parametrize("ops", [None, "reference"])
def test_the_ledger_is_what_a_step_of_embeddings_holds(ops: str | None) -> None:
    if ops is None:
        needs.native()
    options = {"max_num_batched_tokens": TOKENS, "max_num_seqs": SEQUENCES, "enable_prefix_caching": False}
    parts = assemble(EngineConfig.from_kwargs(model="tale", num_threads=1, ops_force=ops, **options))
    (line,) = (line for line in ledger(parts.spec, parts.resolved).activations if line.name == "embeddings")
    sums = SEQUENCES * parts.spec.hidden_size * 8
    assert line.bytes == TOKENS * parts.spec.hidden_size * 4 + sums  # a width that needs no rounding
    step(parts.engine, parts.executor, "warm")  # the sums of its prompts go with the next plan
    tracemalloc.start()
    try:
        step(parts.engine, parts.executor, "first")
        model = parts.executor.model  # type: ignore[attr-defined]
        states = model.hidden()
        assert states.shape[0] == TOKENS
        held = arrays_of(HOLDERS if ops is None else HOLDERS[1:])
        torch_made = states.nbytes if ops is not None else 0  # torch's memory is none of Python's
        assert held + torch_made == line.bytes
        del states
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        step(parts.engine, parts.executor, "second")
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < line.bytes / 2  # the last step's states have gone before there are new ones
    finally:
        tracemalloc.stop()
