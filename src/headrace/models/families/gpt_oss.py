"""gpt-oss: learned sinks, windows in every second layer, experts with biases, stored together and in MXFP4."""

from __future__ import annotations

from dataclasses import replace

from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import MAX_INTERMEDIATE
from headrace.models.families.mixtures import read_experts
from headrace.models.families.reading import (
    FULL,
    SLIDING,
    ExpertTensors,
    Family,
    decoder,
    read_attention,
    read_layer_types,
    read_window,
    rms_norm,
    with_window,
    with_windows,
)
from headrace.models.names import HF_NAMES
from headrace.models.spec import LayerSpec, MLPSpec, ModelSpec, RouterSpec

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _gpt_oss(config: ConfigReader) -> ModelSpec:
    config.only("swiglu_alpha", (1.702,), 1.702)
    config.only("swiglu_limit", (7, 7.0), 7.0)
    if not config.has("rope_parameters") and not config.has("rope_scaling"):
        config = ConfigReader({**config.fields, "rope_scaling": _YARN}, config.where)
    bias = config.flag("attention_bias", True)
    mixer, longest = read_attention(
        config, default_head_dim=64, theta=150_000.0, qkv_bias=bias, out_bias=bias, learned_sinks=True
    )
    types = read_layer_types(config, lambda index: FULL if index % 2 else SLIDING)
    windows = with_windows(config, types, read_window(config, 128))
    expert = MLPSpec(config.integer("intermediate_size", 1, MAX_INTERMEDIATE), "swiglu_oai", bias=True)
    router = RouterSpec(4, scores="softmax_chosen", bias=True)
    experts = read_experts(config, router, expert, "num_local_experts", "num_experts", top_k=4)
    layers = [LayerSpec(with_window(mixer, window), experts) for window in windows]
    return decoder(config, "gpt_oss", layers, rms_norm(config), longest)


_GATE_UP = ("gate_proj", "up_proj")


def _tensors(stored: str, parts: tuple[str, ...]) -> dict[str, ExpertTensors]:
    """A matrix as floats, or as blocks of MXFP4, and its bias."""

    def of(end: str, transposed: bool = False) -> ExpertTensors:
        return ExpertTensors(tuple(f".experts.{{e}}.{part}{end}" for part in parts), transposed)

    return {
        f".experts.{stored}": of(".weight", transposed=True),
        **{f".experts.{stored}{end}": of(end) for end in ("_blocks", "_scales")},
        f".experts.{stored}_bias": of(".bias"),
    }


GPT_OSS = {
    "GptOssForCausalLM": Family(
        "gpt_oss",
        _gpt_oss,
        replace(HF_NAMES, router="model.layers.{i}.mlp.router"),
        by_expert={**_tensors("gate_up_proj", _GATE_UP), **_tensors("down_proj", ("down_proj",))},
        models="gpt-oss",
        features="learned sinks, windows in every second layer, experts with biases in MXFP4",
    ),
}
