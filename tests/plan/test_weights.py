from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.build import survey
from headrace.config import EngineConfig
from headrace.models.families import read_spec, weight_names
from headrace.models.shapes import SHAPES
from headrace.models.spec import ModelSpec, StoredCodes
from headrace.plan.weight_formats import weight_formats
from headrace.plan.weights import parameter_count, weight_parts
from headrace.program.lower import lower
from headrace.quant.block_formats import BLOCK_CODES


@pytest.mark.parametrize(
    "name", ["TinyLlama-1.1B", "SmolLM2-135M", "Llama-2-7B", "Qwen2.5-0.5B", "Qwen3-0.6B"]
)
def test_public_models(known_specs: dict[str, tuple[ModelSpec, int]], name: str) -> None:
    spec, count = known_specs[name]
    assert parameter_count(lower(spec)) == count


def test_parts_by_hand(make_spec: Callable[..., ModelSpec]) -> None:
    # One layer: hidden 16, two heads and one KV head of 8, inner 32, vocabulary 64.
    parts = {part.name: part.parameters for part in weight_parts(lower(make_spec((None,), tie=False)))}
    assert parts == {
        "embeddings": 64 * 16,
        "attention": 16 * 16 + 2 * 16 * 8 + 16 * 16,
        "feed-forward": 3 * 16 * 32,
        "norms": 16 + 2 * 16,
        "head": 64 * 16,
    }


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({"bias": True}, (16 + 8 + 8 + 16) + (32 + 32 + 16)),
        ({"qk_norm": True}, 2 * 8),
        ({"tie": False}, 64 * 16),
    ],
)
def test_options_of_a_layer(
    make_spec: Callable[..., ModelSpec], options: dict[str, bool], extra: int
) -> None:
    with_option, plain = lower(make_spec((None,), **options)), lower(make_spec((None,)))
    assert parameter_count(with_option) == parameter_count(plain) + extra


@pytest.mark.parametrize("name", ["gemma-2-2b", "smollm3-3b", "gpt2", "phi-3-mini", "pythia-1.4b"])
def test_the_plan_knows_the_tensors_of_a_family(name: str) -> None:
    """Norms after each half, biases, positions and fused tensors are parameters too."""
    plan = survey(
        EngineConfig(f"shape:{name}", quantization="int4", max_model_len=256, kv_cache_memory=1 << 30)
    )
    tensors = lower(plan.spec, weight_names(plan.spec)).tensors()
    assert plan.ledger.parameters == sum(math.prod(shape) for shape in tensors.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_positions_that_are_codes_become_floats(dtype: str) -> None:
    """Their rows are added, and no kernel adds codes. Those of the tokens stay as they are."""
    spec, codes = read_spec(SHAPES["gpt2"]), BLOCK_CODES["q8_0"]
    names = ("transformer.wte.weight", "transformer.wpe.weight")
    spec = replace(spec, codes=StoredCodes("GGUF", tuple((name, codes) for name in names), "int8"))
    formats = weight_formats(spec, lower(spec, weight_names(spec)), dtype, None)
    assert formats is not None and formats.keeps_table("embed") and not formats.keeps_table("positions")
    assert formats.decoded == (("positions", codes.name),)
