"""Eviction in the plan: sizes, combinations that cannot be, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.build import assemble, survey
from headrace.config import EngineConfig
from headrace.core.eviction import Eviction
from headrace.core.params import SamplingParams
from headrace.core.types import NewRequest
from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.plan.eviction import check_eviction, choose_sizes
from headrace.plan.report import report
from tests import needs


def test_sizes_follow_the_budget() -> None:
    assert choose_sizes(None, None, None, None, None) == Eviction(1024, 32, 4, 32, 256)
    assert choose_sizes(40, None, None, None, None) == Eviction(40, 10, 4, 10, 10)
    assert choose_sizes(2, None, None, None, None) == Eviction(2, 1, 0, 1, 1)
    assert choose_sizes(64, 8, 2, 62, 100) == Eviction(64, 8, 2, 62, 100)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        (
            (8, None, 4, 5, None),
            "kv_eviction_budget 8 is less than kv_eviction_sinks 4 and kv_eviction_recent 5",
        ),
        ((8, 9, None, None, None), "kv_eviction_window 9 is greater than kv_eviction_budget 8"),
        ((64, 16, None, None, 15), "kv_eviction_interval 15 is less than kv_eviction_window 16"),
    ],
)
def test_sizes_that_do_not_go_together(sizes: tuple[int | None, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        choose_sizes(*sizes)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"kv_eviction": "off", "kv_eviction_budget": 64},
            "kv_eviction_budget has no meaning without kv_eviction",
        ),
        ({"kv_eviction": "h2o"}, "kv_eviction must be one of off, snapkv"),
        ({"kv_eviction_budget": 1}, "kv_eviction_budget must be between 2"),
        ({"kv_cache": False}, "needs the KV cache"),
        ({"kv_layout": "contiguous"}, "contiguous"),
        ({"attention_sinks": 4, "sliding_window": 64}, "sliding_window both bound"),
        ({"speculative": "ngram"}, "cannot run with speculative"),
        ({"kv_cache_dtype": "int4"}, "int4, which codes whole blocks"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        EngineConfig.from_kwargs(**{"model": "tale", "kv_eviction": "snapkv", **options})


def test_what_is_asked_for_is_used() -> None:
    needs.native()
    sizes = {"budget": 100, "window": 16, "sinks": 8, "recent": 64, "interval": 300}
    options = {f"kv_eviction_{name}": size for name, size in sizes.items()}
    resolved = survey(EngineConfig.from_kwargs(model="tale", kv_eviction="snapkv", **options)).resolved
    assert resolved.eviction == Eviction(**sizes)
    reasons = dict(resolved.reasons)
    assert {reasons[name] for name in ("kv_eviction", *options)} == {"asked for"}
    plain = survey(EngineConfig.from_kwargs(model="tale")).resolved
    assert plain.eviction is None and plain.kv_eviction_budget is None
    assert dict(plain.reasons)["kv_eviction_budget"] == "nothing is evicted"


def test_models_that_cannot(make_spec: Callable[..., ModelSpec]) -> None:
    with pytest.raises(ConfigError, match="every layer of it has a window of its own"):
        check_eviction(make_spec((32, 32)), native=True)
    with pytest.raises(ConfigError, match="needs the native CPU kernels"):
        survey(EngineConfig.from_kwargs(model="tale", kv_eviction="snapkv", ops_force="reference"))


@pytest.mark.parametrize(("family", "why"), [("deepseek", "latent"), ("delta", "recurrent")])
def test_families_that_cannot(family: str, why: str, tiny_models: dict[str, str]) -> None:
    needs.native()
    with pytest.raises(ConfigError, match=why):
        survey(EngineConfig.from_kwargs(model=tiny_models[family], kv_eviction="snapkv"))


def test_linear_biases_cannot(make_spec: Callable[..., ModelSpec]) -> None:
    spec = make_spec((None,))
    layer = spec.layers[0]
    biased = replace(spec, layers=(replace(layer, mixer=replace(layer.mixer, alibi=8.0)),))
    with pytest.raises(ConfigError, match="ALiBi"):
        check_eviction(biased, native=True)


def test_the_step_holds_the_window() -> None:
    needs.native()
    config = EngineConfig.from_kwargs(
        model="tale", kv_eviction="snapkv", kv_eviction_budget=128, max_num_batched_tokens=16, max_num_seqs=4
    )
    with pytest.raises(ConfigError, match=r"kv_eviction_window 32: .* at most 16 tokens"):
        survey(config)


def test_a_prompt_ends_while_all_other_sequences_decode() -> None:
    """Its last window comes in one slice, for which their tokens leave room: else it would wait for their ends."""
    needs.native()
    options = {"model": "tale", "kv_eviction": "snapkv", "kv_eviction_budget": 64, "kv_eviction_window": 16}
    small = EngineConfig.from_kwargs(**options, max_num_seqs=40, max_num_batched_tokens=54)
    with pytest.raises(ConfigError, match="or raise --max-num-batched-tokens to 55"):
        survey(small)
    survey(replace(small, max_num_batched_tokens=55))
    survey(replace(small, kv_eviction_budget=1024))  # nothing is evicted
    many = survey(EngineConfig.from_kwargs(**options, max_num_seqs=600)).resolved
    assert many.max_num_batched_tokens == 600 - 1 + 16
    assert "kv_eviction_window" in dict(many.reasons)["max_num_batched_tokens"]


def test_the_memory_is_planned_to_the_byte() -> None:
    """Against the arenas of the tape, and the pool that one sequence needs."""
    needs.native()
    options = {
        "model": "tale",
        "num_threads": 2,
        "max_num_seqs": 3,
        "max_model_len": 300,
        "block_size": 16,
    }
    sizes = {"kv_eviction": "snapkv", "kv_eviction_budget": 64}
    plain, evicting = (EngineConfig.from_kwargs(**options, **more) for more in ({}, sizes))
    plans = [survey(config) for config in (plain, evicting)]
    arenas = [assemble(config).executor.model.tape.nbytes for config in (plain, evicting)]  # type: ignore[attr-defined]
    (line,) = [line for line in plans[1].ledger.activations if line.name == "KV eviction"]
    assert line.bytes == arenas[1] - arenas[0] > 0
    one, two = (plan.ledger.kv_per_sequence.bytes for plan in plans)
    assert two - one == 64 * plans[0].ledger.kv_token_bytes
    after = plans[1].ledger.kv_after_eviction
    assert after is not None and after.bytes == 80 * plans[0].ledger.kv_token_bytes
    assert plans[0].ledger.kv_after_eviction is None
    text = report(plans[1].spec, plans[1].resolved, plans[1].ledger)
    assert "KV eviction: answers are not exact" in text and "KV of one sequence after eviction" in text
    assert "not exact" not in report(plans[0].spec, plans[0].resolved, plans[0].ledger)


@pytest.mark.parametrize("budget", [300, 2**31 - 1])
def test_a_budget_that_no_sequence_exceeds_costs_nothing(budget: int) -> None:
    needs.native()
    options = {"model": "tale", "num_threads": 2, "max_model_len": 300}
    plain = survey(EngineConfig.from_kwargs(**options))
    plan = survey(EngineConfig.from_kwargs(**options, kv_eviction="snapkv", kv_eviction_budget=budget))
    assert plan.resolved.eviction is None and plan.resolved.kv_eviction_budget == budget
    assert plan.ledger.total == plain.ledger.total
    text = report(plan.spec, plan.resolved, plan.ledger)
    assert "nothing is evicted: no sequence is longer than max_model_len 300" in text
    assert "not exact" not in text


def test_a_long_interval_takes_memory_for_the_longest_sequence_only() -> None:
    needs.native()
    config = EngineConfig.from_kwargs(
        model="tale", num_threads=1, max_num_seqs=3, max_model_len=300, kv_eviction="snapkv",
        kv_eviction_budget=64, kv_eviction_interval=2**31 - 1,
    )  # fmt: skip
    plan = survey(config)
    (line,) = [line for line in plan.ledger.activations if line.name == "KV eviction"]
    assert line.bytes < 2**20 and "300 tokens" in line.how
    after = plan.ledger.kv_after_eviction
    assert after is not None and "up to 236 newer ones" in after.how
    assert "64 tokens of prompt and 300 in all" in report(plan.spec, plan.resolved, plan.ledger)
    parts = assemble(config)
    params = SamplingParams(temperature=0.0, max_tokens=99, ignore_eos=True)
    parts.engine.add(NewRequest("a", tuple(range(100, 300)), params), 0.0)
    while parts.engine.has_work:
        outputs = parts.engine.finish(parts.executor.execute(parts.engine.begin(0.0)), 0.0)
        assert all(output.error is None for output in outputs)
    assert parts.engine.stats().scheduler.evicted_tokens == 200 - 64
