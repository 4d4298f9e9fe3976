"""Turning a model into a streaming one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.core.types import Retention
from headrace.errors import ConfigError
from headrace.models.families import read_spec
from headrace.models.rope import dynamic_theta, inverse_frequencies
from headrace.models.shapes import SHAPES
from headrace.models.streaming import STREAM_MAX_POSITION, with_streaming


def test_full_layers_become_sinks_and_window(llama_config: dict[str, Any]) -> None:
    spec = with_streaming(read_spec(llama_config), sinks=4, window=20)
    for layer in spec.layers:
        assert (layer.mixer.retention, layer.mixer.sinks, layer.mixer.window) == (Retention.SINKS, 4, 20)
    (layout,) = spec.kv_shapes
    assert (layout.retention, layout.sinks, layout.window) == (Retention.SINKS, 4, 20)
    assert spec.max_position == STREAM_MAX_POSITION


def test_layers_with_a_window_keep_it(llama_config: dict[str, Any]) -> None:
    fields = {
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
    }
    spec = with_streaming(read_spec({**llama_config, **fields}), sinks=4, window=20)
    assert [layer.mixer.retention for layer in spec.layers] == [Retention.SINKS, Retention.WINDOW]
    assert [layer.mixer.window for layer in spec.layers] == [20, 9]


def test_a_model_with_windows_only_is_refused(llama_config: dict[str, Any]) -> None:
    fields = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 9}
    with pytest.raises(ConfigError, match="every layer of it has a window of its own"):
        with_streaming(read_spec({**llama_config, **fields}), sinks=4, window=20)
    turned = with_streaming(read_spec(llama_config), sinks=4, window=20)
    assert with_streaming(turned, sinks=4, window=20) == turned


def test_positions_that_a_stream_cannot_have() -> None:
    """A step beyond the last embedding of a position would end the engine."""
    with pytest.raises(
        ConfigError, match="not supported for learned positions, of which this model has 1024"
    ):
        with_streaming(read_spec(SHAPES["gpt2"]), sinks=0, window=20)
    sizes = {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    bloom = read_spec({"architectures": ["BloomForCausalLM"], **sizes})
    with pytest.raises(ConfigError, match=r"linear biases \(ALiBi\)"):
        with_streaming(bloom, sinks=4, window=20)
    assert {layer.mixer.window for layer in with_streaming(bloom, sinks=0, window=20).layers} == {20}


@pytest.mark.parametrize(("window", "stretched"), [(30, False), (100, True)])
def test_dynamic_rope_follows_the_cache_and_not_the_stream(
    llama_config: dict[str, Any], window: int, stretched: bool
) -> None:
    spec = read_spec({**llama_config, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})
    rope = with_streaming(spec, 4, window).layers[0].mixer.rope
    assert (rope.theta > 10_000.0) is stretched
    base = spec.layers[0].mixer.rope
    cached = replace(base, kind="default", theta=dynamic_theta(base, 4 + window))
    assert inverse_frequencies(rope) == inverse_frequencies(cached)


@pytest.mark.parametrize(("sinks", "window"), [(-1, 8), (4, 0), (4, 61)])
def test_bounds(llama_config: dict[str, Any], sinks: int, window: int) -> None:
    with pytest.raises(ConfigError, match="attention sinks"):
        with_streaming(read_spec(llama_config), sinks, window)
