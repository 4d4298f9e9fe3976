"""Configs of every family that lie: one field after the other holds something absurd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.errors import CheckpointError, HeadraceError
from headrace.models.families import read_spec, weight_names
from headrace.models.families.registry import ARCHITECTURES
from headrace.models.shapes import SHAPES
from headrace.program.lower import lower

ABSURD: tuple[Any, ...] = (
    None, -1, 0, 1, 3, 7, 1 << 40, 10**400, 0.5, float("nan"), float("inf"), True, "", "x", "x" * 10_000,
    [], [0], [1] * 5000, ["full_attention"], ["sliding_attention"] * 8, ["linear_attention"] * 8, {}, {"a": {"b": 1}},
    {"rope_type": "yarn"}, {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0], "long_factor": "x"},
    {"full_attention": 3, "sliding_attention": []},
)  # fmt: skip

FIELDS = (
    "layer_types", "sliding_window", "rope_scaling", "rope_parameters", "partial_rotary_factor", "head_dim",
    "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_group", "topk_group",
    "n_shared_experts", "moe_intermediate_size", "first_k_dense_replace", "mlp_only_layers", "kv_lora_rank",
    "q_lora_rank", "qk_rope_head_dim", "v_head_dim", "hidden_activation", "hidden_act", "text_config", "dtype",
    "no_rope_layers", "query_pre_attn_scalar", "logit_scale", "quantization_config",
)  # fmt: skip


def configs() -> dict[str, Mapping[str, Any]]:
    """A well-known config of each family, of few layers."""
    found: dict[str, Mapping[str, Any]] = {}
    for config in SHAPES.values():
        layers = next((name for name in ("n_layer", "n_layers") if name in config), "num_hidden_layers")
        found.setdefault(config["architectures"][0], {**config, layers: 8})
    return found


CONFIGS = configs()


def one_sentence(error: HeadraceError) -> bool:
    text = str(error)
    return 10 < len(text) < 500 and "\n" not in text


def test_every_family_has_a_shape() -> None:
    assert CONFIGS.keys() == ARCHITECTURES.keys()


SHARE = 6
"""One absurd value of so many is tried in the usual run, another one for the next field and for the next family."""


@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.long)], ids=["some", "all"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_lie_is_refused_or_has_a_program(name: str, share: int) -> None:
    config = CONFIGS[name]
    lowered = set()  # most fields mean nothing to most families
    refused, first = 0, [*CONFIGS].index(name)
    for number, field in enumerate(dict.fromkeys((*config, *FIELDS)), first):
        for value in ABSURD[number % share :: share]:
            try:
                spec = read_spec({**config, field: value})
                if spec in lowered:
                    continue
                lowered.add(spec)
                if len(spec.layers) <= 16 and sum(layer_experts(layer) for layer in spec.layers) <= 1 << 16:
                    assert lower(spec, weight_names(spec)).weights
            except HeadraceError as error:
                assert one_sentence(error), (field, value, str(error)[:600])
                refused += 1
    assert refused > 100 // share


def layer_experts(layer: Any) -> int:
    return int(getattr(layer.feed_forward, "num_experts", 1))


def test_experts_of_all_layers_are_bounded() -> None:
    config = {**CONFIGS["DeepseekV3ForCausalLM"], "num_hidden_layers": 1024, "n_routed_experts": 4096}
    with pytest.raises(CheckpointError, match=r"\d{7} experts in 1024 layers, more than the 65536"):
        read_spec(config)
