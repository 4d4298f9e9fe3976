"""Blocks per KV group: what a sequence needs, and how memory is shared between groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.engine import Engine
from headrace.core.params import SamplingParams
from headrace.core.policy import SchedulerConfig
from headrace.core.types import NewRequest, Retention, SliceResult, StepPlan, StepResult
from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.plan.formats import KVFormat
from headrace.plan.kv import (
    KVDemand,
    blocks_at,
    blocks_within,
    kv_demands,
    kv_groups,
    largest,
    pool_bytes,
    sequence_bytes,
    streaming_spec,
    useful_bytes,
)

MakeSpec = Callable[..., ModelSpec]


def demands_of(
    spec: ModelSpec,
    *,
    length: int = 128,
    seqs: int = 4,
    chunk: int = 32,
    block_size: int = 16,
    least_chunk: int | None = None,
) -> tuple[KVDemand, ...]:
    return kv_demands(
        spec.kv_shapes,
        block_size=block_size,
        max_model_len=length,
        max_num_seqs=seqs,
        chunk=chunk,
        least_chunk=least_chunk,
        stored=KVFormat("float32"),
    )


def test_full_attention(make_spec: MakeSpec) -> None:
    (demand,) = demands_of(make_spec((None, None)), length=100)
    assert (
        demand.block_bytes == 2 * 2 * 1 * 8 * 16 * 4
    )  # keys and values, layers, heads, width, tokens, bytes
    assert (demand.per_sequence, demand.most) == (7, 28)
    assert (sequence_bytes([demand]), useful_bytes([demand])) == (7 * 2048, 28 * 2048)


@pytest.mark.parametrize(
    ("window", "sinks", "chunk", "length", "blocks"),
    [
        (32, 0, 16, 1000, 5),  # (32 + 16) / 16, and two of slack
        (33, 0, 16, 1000, 6),
        (32, 4, 16, 1000, 6),
        (32, 17, 16, 1000, 7),
        (32, 0, 2000, 1000, 63),  # a chunk is at most the sequence: no more than full attention
        (32, 4, 16, 40, 3),
    ],
)
def test_windows_need_window_sinks_chunk_and_slack(
    make_spec: MakeSpec, window: int, sinks: int, chunk: int, length: int, blocks: int
) -> None:
    (demand,) = demands_of(make_spec((window,), sinks=sinks), length=length, chunk=chunk)
    assert demand.per_sequence == blocks and demand.most == 4 * blocks


def test_memory_short_for_all_is_shared_at_one_level(make_spec: MakeSpec) -> None:
    full, window = demands_of(make_spec((None, 32)), length=1024, seqs=8, chunk=16)
    assert (full.per_sequence, window.per_sequence, window.most) == (64, 5, 40)
    assert full.block_bytes == window.block_bytes == 1024
    both = (full, window)
    assert blocks_within(both, 69 * 1024 - 1) is None
    assert blocks_within(both, 69 * 1024) == (64, 5)
    assert blocks_within(both, 80 * 1024) == (64, 16)  # the level rises where it is lowest
    assert blocks_within(both, 200 * 1024) == (
        160,
        40,
    )  # windows have enough: the rest goes to the full group
    assert blocks_within(both, 2**40) == (512, 40)
    assert blocks_within(both, 1040 * 1024, spare=True) == (1000, 40)


@given(
    windows=st.lists(st.none() | st.integers(1, 200), min_size=1, max_size=4),
    sinks=st.integers(0, 20),
    heads=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    length=st.integers(1, 400),
    seqs=st.integers(1, 9),
    chunk=st.integers(1, 64),
    block_size=st.sampled_from([1, 4, 16]),
    budget=st.integers(0, 2_000_000),
    spare=st.booleans(),
)
def test_pools_stay_within_the_budget_and_hold_one_sequence(
    make_spec: MakeSpec,
    windows: Sequence[int | None],
    sinks: int,
    heads: Sequence[int],
    length: int,
    seqs: int,
    chunk: int,
    block_size: int,
    budget: int,
    spare: bool,
) -> None:
    spec = make_spec(tuple(windows), sinks=sinks, kv_heads=tuple(heads))
    demands = demands_of(spec, length=length, seqs=seqs, chunk=chunk, block_size=block_size)
    counts = blocks_within(demands, budget, spare=spare)
    assert (counts is None) == (sequence_bytes(demands) > budget)
    if counts is None:
        return
    assert pool_bytes(demands, counts) <= budget
    widest = max((n for n, d in zip(counts, demands, strict=True) if d.layout.window is None), default=None)
    for count, demand in zip(counts, demands, strict=True):
        assert demand.per_sequence <= count
        if demand.layout.window is not None or not spare:
            assert count <= demand.most
        if widest is not None:
            assert count <= widest
    level = max(counts) + 1
    more = blocks_at(demands, level, spare=spare)
    assert more == counts or pool_bytes(demands, more) > budget  # nothing is left lying about
    groups = kv_groups(demands, counts)
    assert len({group.name for group in groups}) == len(groups)
    assert [g.num_blocks for g in groups] == list(counts)


def execute(plan: StepPlan) -> StepResult:
    """A model that always says 1."""
    return StepResult(
        plan.step_id, tuple(SliceResult(s.request_id, (1,) if s.sample else ()) for s in plan.slices)
    )


def generate(demands: Sequence[KVDemand], counts: Sequence[int], config: SchedulerConfig) -> int:
    """Run as many sequences to the longest length as a step takes; returns how often one was preempted."""
    engine = Engine(config, kv_groups(demands, counts), prefix_caching=False)
    assert config.max_model_len is not None
    for index in range(config.max_num_seqs):
        prompt = tuple(range(2, 52))
        engine.add(NewRequest(str(index), prompt, SamplingParams(max_tokens=None)), now=0.0)
    lengths = {str(index): len(prompt) for index in range(config.max_num_seqs)}
    for step in range(1000):
        if not engine.has_work:
            break
        for output in engine.finish(execute(engine.begin(float(step))), float(step)):
            lengths[output.request_id] += len(output.tokens)
    assert set(lengths.values()) == {config.max_model_len}
    return engine.scheduler.stats.preemptions


WINDOWS = [
    ((None,), 0, 32),
    ((24,), 0, 16),
    ((None, 24), 0, 7),
    ((8, 40), 5, 16),
    ((24,), 17, 64),
    ((1,), 0, 1),
]


@pytest.mark.parametrize(("windows", "sinks", "chunk"), WINDOWS)
@pytest.mark.parametrize("seqs", [1, 3])
def test_the_core_never_preempts_where_all_have_the_most_they_can_use(
    make_spec: MakeSpec, windows: tuple[int | None, ...], sinks: int, chunk: int, seqs: int
) -> None:
    spec = make_spec(windows, sinks=sinks)
    tokens = max(chunk, seqs)
    demands = demands_of(spec, length=100, seqs=seqs, chunk=tokens, block_size=8)
    config = SchedulerConfig(seqs, tokens, 100, spec.vocab_size)
    assert generate(demands, [demand.most for demand in demands], config) == 0


@pytest.mark.parametrize(("windows", "sinks", "chunk"), WINDOWS)
def test_the_core_runs_one_longest_sequence_in_the_smallest_pools(
    make_spec: MakeSpec, windows: tuple[int | None, ...], sinks: int, chunk: int
) -> None:
    spec = make_spec(windows, sinks=sinks)
    demands = demands_of(spec, length=100, chunk=chunk, block_size=8, least_chunk=1)
    for seqs in (1, min(3, chunk)):
        config = SchedulerConfig(seqs, chunk, 100, spec.vocab_size)
        generate(demands, [demand.per_sequence for demand in demands], config)


def test_groups_of_one_name_get_unique_names(make_spec: MakeSpec) -> None:
    spec = make_spec((None, None, 32), kv_heads=(1, 2, 1))
    demands = demands_of(spec)
    groups = kv_groups(demands, [3, 4, 5])
    assert [group.name for group in groups] == ["full", "full#2", "window-32"]
    assert [group.num_blocks for group in groups] == [3, 4, 5]
    assert groups[2].retention is Retention.WINDOW and groups[2].window == 32


def test_streaming_narrows_full_layers_once(make_spec: MakeSpec) -> None:
    spec = make_spec((None, 32))
    assert streaming_spec(spec, None, None) is spec
    streamed = streaming_spec(spec, 4, 64)
    assert [layer.mixer.window for layer in streamed.layers] == [64, 32]
    assert streaming_spec(streamed, 4, 64) == streamed
    with pytest.raises(ConfigError):
        streaming_spec(spec, 100, 100)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 60))
def test_largest(low: int, span: int, limit: int) -> None:
    found = largest(low, low + span, lambda n: n <= limit)
    assert found == max(low, min(limit, low + span))
