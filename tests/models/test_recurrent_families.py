"""Configs of recurrent families that contradict themselves: one sentence that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.models.families import read_spec
from headrace.models.spec import ConvSpec, DeltaSpec
from tests.tiny_checkpoint import RECURRENT


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("delta", {"linear_num_value_heads": 3}, "linear_num_value_heads 3"),
        ("delta", {"linear_key_head_dim": -1}, "linear_key_head_dim"),
        ("delta", {"linear_conv_kernel_dim": 1 << 40}, "linear_conv_kernel_dim"),
        ("delta", {"layer_types": ["linear_attention", "mamba", "full_attention"]}, "'mamba'"),
        ("delta", {"layer_types": ["linear_attention"]}, "layer_types"),
        ("convolution", {"conv_L_cache": 0}, "conv_L_cache"),
        ("convolution", {"layer_types": None, "full_attn_idxs": [7]}, "full_attn_idxs"),
        ("convolution", {"block_multiple_of": 0}, "block_multiple_of"),
    ],
)
def test_configs_that_lie_are_refused(name: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(HeadraceError, match=said) as caught:
        read_spec(RECURRENT[name] | fields)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_layers_are_of_the_kinds_that_the_config_names() -> None:
    delta = read_spec(RECURRENT["delta"] | {"layer_types": None, "num_hidden_layers": 8})
    assert [isinstance(layer.mixer, DeltaSpec) for layer in delta.layers] == [True, True, True, False] * 2
    attending = RECURRENT["convolution"] | {"layer_types": None, "full_attn_idxs": [1]}
    assert [isinstance(layer.mixer, ConvSpec) for layer in read_spec(attending).layers] == [True, False, True]


def test_the_text_part_of_a_multimodal_config_is_read() -> None:
    whole = {"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {**RECURRENT["delta"]}}
    assert read_spec(whole).family == "qwen3_5"
