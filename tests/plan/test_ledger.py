from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.config import EngineConfig
from headrace.config_resolve import resolve
from headrace.models.spec import ModelSpec
from headrace.plan.hardware import Machine
from headrace.plan.kv import streaming_spec
from headrace.plan.ledger import Ledger, ledger
from headrace.plan.units import GIB

MakeSpec = Callable[..., ModelSpec]
MakeMachine = Callable[..., Machine]


def ledger_of(spec: ModelSpec, machine: Machine, **options: object) -> Ledger:
    return ledger(spec, resolve(EngineConfig.from_kwargs(model="m", **options), spec, machine))


def test_tinyllama_by_hand(known_specs: dict[str, tuple[ModelSpec, int]], make_machine: MakeMachine) -> None:
    spec, parameters = known_specs["TinyLlama-1.1B"]
    costs = ledger_of(spec, make_machine(64 * GIB, ("amx_bf16",)), kv_cache_memory="1GiB")
    assert costs.parameters == parameters and costs.weight_bytes == 2 * parameters
    assert costs.kv_token_bytes == 22 * 2 * 4 * 64 * 2 == 22_528
    assert costs.kv_per_sequence.bytes == 2048 * 22_528
    assert costs.kv_pool_bytes == GIB // (16 * 22_528) * 16 * 22_528
    embeddings = 512 * 2048 * 4 + 64 * 2048 * 8
    layers, logits = 512 * (3 * 2048 + 2560 + 2048 + 3 * 5632) * 2, 64 * 2 * 32000 * 4
    # Keys and values of 2^24 elements, the last blocks of 64 sequences, and 2^24 logits with their softmax and masks.
    scratch = (1 << 24) * (4 + 4 + 2) + 64 * 16 * 256 * 2 * 4 + (1 << 24) // 32 * (32 * 2 * 4 + 12)
    scored = 512 * 32000 * (4 + 2) + (1 << 22) * 16
    assert costs.activation_bytes == layers + scratch + logits + scored + embeddings
    assert costs.total == costs.weight_bytes + costs.kv_pool_bytes + costs.activation_bytes


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [("Llama-2-7B", 524_288), ("Qwen2.5-0.5B", 12_288), ("Qwen3-0.6B", 114_688), ("SmolLM2-135M", 23_040)],
)
def test_kv_bytes_per_token_of_public_models(
    known_specs: dict[str, tuple[ModelSpec, int]], make_machine: MakeMachine, name: str, token_bytes: int
) -> None:
    costs = ledger_of(known_specs[name][0], make_machine(256 * GIB), dtype="bfloat16")
    assert costs.kv_token_bytes == token_bytes


def test_each_group_has_its_lines(make_spec: MakeSpec, make_machine: MakeMachine) -> None:
    spec = make_spec((None, 32, 32), kv_heads=(1, 2, 2))
    costs = ledger_of(spec, make_machine(GIB), max_num_batched_tokens=64)
    assert [(line.name, line.bytes) for line in costs.kv_per_token] == [
        ("full", 2 * 8 * 4),
        ("window-32", 2 * 2 * 2 * 8 * 4),
    ]
    assert "1 layers" in costs.kv_per_token[0].how and "all tokens" in costs.kv_per_token[0].how
    assert "the last 32 tokens" in costs.kv_per_token[1].how
    assert [line.name for line in costs.kv_pools] == ["full", "window-32"]
    for lines in (
        costs.weights,
        costs.kv_per_token,
        (costs.kv_per_sequence,),
        costs.kv_pools,
        costs.activations,
    ):
        assert all(line.how and line.bytes >= 0 for line in lines)


def test_the_ledger_is_the_same_with_streaming_applied_before(
    make_spec: MakeSpec, make_machine: MakeMachine
) -> None:
    spec = make_spec()
    resolved = resolve(EngineConfig("m", attention_sinks=4, sliding_window=32), spec, make_machine())
    costs = ledger(spec, resolved)
    assert costs == ledger(streaming_spec(spec, 4, 32), resolved)
    assert "the last 32 tokens and the first 4" in costs.kv_per_token[0].how
