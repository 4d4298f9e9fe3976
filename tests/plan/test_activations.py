from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.models.spec import ModelSpec
from headrace.plan.activations import activation_bytes, activation_parts
from headrace.plan.formats import MemoryFormat, memory_format
from headrace.plan.kv import KVDemand, kv_demands
from headrace.program.lower import lower

FLOAT32 = memory_format("float32", "float32", None)
BFLOAT16 = memory_format("bfloat16", "bfloat16", None)


def demands_of(
    spec: ModelSpec, tokens: int, rows: int, memory: MemoryFormat, length: int
) -> tuple[KVDemand, ...]:
    return kv_demands(
        spec.kv_shapes,
        block_size=16,
        max_model_len=length,
        max_num_seqs=max(1, rows),
        chunk=tokens,
        stored=memory.kv,
    )


def size_of(spec: ModelSpec, tokens: int, rows: int, memory: MemoryFormat, length: int = 128) -> int:
    return activation_bytes(lower(spec), tokens, rows, memory, demands_of(spec, tokens, rows, memory, length))


def test_parts_by_hand(make_spec: Callable[..., ModelSpec]) -> None:
    # The second layer is the wider one: four heads and two KV heads of 8.
    spec = make_spec((None, None), kv_heads=(1, 2))
    demands = demands_of(spec, 10, 3, BFLOAT16, 30)  # two blocks of 16 hold the longest sequence
    parts = {part.name: part.bytes for part in activation_parts(lower(spec), 10, 3, BFLOAT16, demands)}
    gathered, ends, pairs = 3 * 32 * 2 * 8, 3 * 16 * 2 * 8, 10 * 32
    assert parts == {
        "hidden": 10 * 3 * 16 * 2,
        "attention": 10 * ((4 + 2 + 2) * 8 + 4 * 8) * 2,
        "feed-forward": 10 * 3 * 32 * 2,
        "attention scratch": gathered * (4 + 4 + 2) + ends * 8 + pairs * (4 * 2 * 4 + 12),
        "logits": 3 * 2 * 64 * 4,
        "prompt logprobs": 10 * 64 * (4 + 2) + 10 * 64 * 16,
        "embeddings": 10 * 16 * 4 + 3 * 16 * 8,
    }
    assert activation_bytes(lower(spec), 10, 3, BFLOAT16, demands) == sum(parts.values())


def test_layers_share_their_buffers(make_spec: Callable[..., ModelSpec]) -> None:
    one, many = make_spec((None,)), make_spec((None,) * 9)
    assert size_of(one, 7, 2, FLOAT32) == size_of(many, 7, 2, FLOAT32)


@given(
    tokens=st.integers(0, 10**6),
    rows=st.integers(1, 10**4),
    length=st.integers(1, 10**6),
    more=st.integers(0, 99),
)
def test_never_falls(
    make_spec: Callable[..., ModelSpec], tokens: int, rows: int, length: int, more: int
) -> None:
    spec = make_spec((None, 50))
    size = size_of(spec, tokens, rows, FLOAT32, length)
    assert size_of(spec, tokens + more, rows, FLOAT32, length) >= size
    assert size_of(spec, tokens, rows + more, FLOAT32, length) >= size
    assert size_of(spec, tokens, rows, FLOAT32, length + more) >= size


PEAK = """
import sys, torch
from headrace.config import EngineConfig
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.build import assemble
def memory(field):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(field))
def step(name, scored):
    parts.engine.add(NewRequest(name, tuple(range(5, 1005)), SamplingParams(max_tokens=1, prompt_logprobs=scored)), 0.0)
    plan = parts.engine.begin(0.0)
    assert sum(len(work.tokens) for work in plan.slices) == 1000
    outputs = parts.engine.finish(parts.executor.execute(plan), 0.0)
    assert [len(o.prompt_logprobs) for o in outputs if scored is not None] in ([], [999])
parts = assemble(EngineConfig.from_kwargs(model="tale", ops_force=sys.argv[1], num_threads=1, num_kv_blocks=128,
    max_num_batched_tokens=1000, max_num_seqs=8, enable_prefix_caching=False, dtype="float32"))
step("warm", None)
parts.engine.abort("warm", 0.0)
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak
step("scored", 2)
print(memory("VmHWM") - before)
"""


@pytest.mark.long
@pytest.mark.parametrize("ops", ["torch", "reference"])
def test_the_ledger_covers_a_step_on_the_torch_path(ops: str) -> None:
    """The peak of a step that scores a prompt of 1,000 tokens, most of it attention scratch and logits."""
    from headrace.build import survey
    from headrace.config import EngineConfig

    plan = survey(
        EngineConfig.from_kwargs(
            model="tale", ops_force=ops, num_threads=1, num_kv_blocks=128, max_num_batched_tokens=1000,
            max_num_seqs=8, enable_prefix_caching=False, dtype="float32",
        )
    )  # fmt: skip
    planned = {line.name: line.bytes for line in plan.ledger.activations if line.name != "embeddings"}
    before = sum(planned[name] for name in ("hidden", "attention", "feed-forward", "logits"))
    # Without a heap that keeps what was freed, memory is what is in use.
    quiet = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PEAK, ops],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=True,
    )
    peak = int(done.stdout)
    assert before < peak <= sum(planned.values())
