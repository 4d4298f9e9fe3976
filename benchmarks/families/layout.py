"""Metadata and tensors of a GGUF file, from the config of a shape: names and types as llama.cpp's converter and its
quantizer give them (https://github.com/ggml-org/llama.cpp, conversion and src/llama-quant.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Config = Mapping[str, Any]
Tensor = tuple[str, str, tuple[int, ...]]
"""Name, GGUF type, and shape with the input features last."""

Size = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Layout:
    """One architecture. metadata: keys besides those that all have, without the architecture's name before them.
    layer: matrices and vectors (one dimension) of the layer of that index."""

    arch: str
    metadata: Callable[[Config], dict[str, Any]]
    layer: Callable[[Config, int], Iterator[Size]]


def file_of(config: Config, mix: str) -> dict[str, Any]:
    """The architecture, all metadata and all tensors of a file, as `random_file` takes them."""
    layout = LAYOUTS[config["architectures"][0]]
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    metadata = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": _head_dim(config),
        "attention.value_length": _head_dim(config),
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-5)),
        "rope.freq_base": float(config.get("rope_theta", 10_000.0)),
        "vocab_size": config["vocab_size"],
        **layout.metadata(config),
    }
    return {"arch": layout.arch, "metadata": metadata, "tensors": list(_tensors(layout, config, mix))}


def _tensors(layout: Layout, config: Config, mix: str) -> Iterator[Tensor]:
    choose = _MIXES[mix]
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    table = (config["vocab_size"], hidden)
    yield "token_embd.weight", choose("token_embd", False), table
    if not config.get("tie_word_embeddings"):
        yield "output.weight", choose("output", False), table
    yield "output_norm.weight", "F32", (hidden,)
    for index in range(layers):
        for name, shape in layout.layer(config, index):
            part, _, kind = name.rpartition(".")
            plain = len(shape) == 1 or kind == "bias" or part in ("ffn_gate_inp", "ssm_conv1d")
            yield f"blk.{index}.{name}", "F32" if plain else choose(part, _more_bits(index, layers)), shape


def _more_bits(index: int, layers: int) -> bool:
    """The layers to which llama.cpp's mixes "M" give more bits: first and last eighths, and every third one between."""
    return index < layers // 8 or index >= 7 * layers // 8 or (index - layers // 8) % 3 == 2


def _q4_k_m(part: str, more: bool) -> str:
    if part == "output" or (more and part in ("attn_v", "ffn_down", "ffn_down_exps")):
        return "Q6_K"
    return "Q5_K" if part == "attn_qkv" else "Q4_K"


_MIXES: Mapping[str, Callable[[str, bool], str]] = MappingProxyType(
    {
        "Q4_K_M": _q4_k_m,
        "MXFP4": lambda part, more: "MXFP4" if part.endswith("_exps") else "Q8_0",
    }
)


def _head_dim(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _attention(config: Config, *, query: int = 1, bias: bool = False) -> Iterator[Size]:
    hidden, dim = config["hidden_size"], _head_dim(config)
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    sizes = {"attn_q": (query * heads, hidden), "attn_k": (kv_heads, hidden), "attn_v": (kv_heads, hidden)}
    for name, shape in {**sizes, "attn_output": (hidden, heads)}.items():
        yield f"{name}.weight", shape
        if bias:
            yield f"{name}.bias", shape[:1]


def _mlp(config: Config) -> Iterator[Size]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield "ffn_gate.weight", (inner, hidden)
    yield "ffn_up.weight", (inner, hidden)
    yield "ffn_down.weight", (hidden, inner)


def _experts(hidden: int, inner: int, experts: int, *, bias: bool = False) -> Iterator[Size]:
    sizes = {
        "ffn_gate_inp": (experts, hidden),
        "ffn_gate_exps": (experts, inner, hidden),
        "ffn_up_exps": (experts, inner, hidden),
        "ffn_down_exps": (experts, hidden, inner),
    }
    for name, shape in sizes.items():
        yield f"{name}.weight", shape
        if bias:
            yield f"{name}.bias", shape[:-1]


def _norms(config: Config, *names: str) -> Iterator[Size]:
    for name in names:
        yield f"{name}.weight", (config["hidden_size"],)


def _head_norms(config: Config) -> Iterator[Size]:
    yield "attn_q_norm.weight", (_head_dim(config),)
    yield "attn_k_norm.weight", (_head_dim(config),)


def _llama_layer(config: Config, index: int) -> Iterator[Size]:
    yield from _norms(config, "attn_norm", "ffn_norm")
    yield from _attention(config)
    yield from _mlp(config)


def _qwen3_moe_layer(config: Config, index: int) -> Iterator[Size]:
    yield from _norms(config, "attn_norm", "ffn_norm")
    yield from _head_norms(config)
    yield from _attention(config)
    yield from _experts(config["hidden_size"], config["moe_intermediate_size"], config["num_experts"])


def _gpt_oss_layer(config: Config, index: int) -> Iterator[Size]:
    yield from _norms(config, "attn_norm", "post_attention_norm")
    yield from _attention(config, bias=True)
    yield "attn_sinks.weight", (config["num_attention_heads"],)
    yield from _experts(
        config["hidden_size"], config["intermediate_size"], config["num_local_experts"], bias=True
    )


def _qwen3_5_layer(config: Config, index: int) -> Iterator[Size]:
    yield from _norms(config, "attn_norm", "post_attention_norm")
    yield from _mlp(config)
    if (index + 1) % config["full_attention_interval"] == 0:
        yield from _head_norms(config)
        yield from _attention(config, query=2)  # each head's query and gate
        return
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    inner = heads * config["linear_value_head_dim"]
    channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + inner
    yield "attn_qkv.weight", (channels, hidden)
    yield "attn_gate.weight", (inner, hidden)
    yield "ssm_conv1d.weight", (channels, config["linear_conv_kernel_dim"])
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    yield "ssm_beta.weight", (heads, hidden)
    yield "ssm_alpha.weight", (heads, hidden)
    yield "ssm_norm.weight", (config["linear_value_head_dim"],)
    yield "ssm_out.weight", (hidden, inner)


def _llama_metadata(config: Config) -> dict[str, Any]:
    return {"rope.dimension_count": _head_dim(config)}


def _qwen3_moe_metadata(config: Config) -> dict[str, Any]:
    return {
        "expert_count": config["num_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }


def _gpt_oss_metadata(config: Config) -> dict[str, Any]:
    rope = config["rope_scaling"]
    return {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
    }


def _qwen3_5_metadata(config: Config) -> dict[str, Any]:
    heads = config["linear_num_value_heads"]
    rope = config["rope_parameters"]
    rotated = int(_head_dim(config) * rope["partial_rotary_factor"])
    return {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": rotated,
        "rope.dimension_sections": [*rope["mrope_section"], 0],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "full_attention_interval": config["full_attention_interval"],
    }


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "LlamaForCausalLM": Layout("llama", _llama_metadata, _llama_layer),
        "Qwen3MoeForCausalLM": Layout("qwen3moe", _qwen3_moe_metadata, _qwen3_moe_layer),
        "GptOssForCausalLM": Layout("gpt-oss", _gpt_oss_metadata, _gpt_oss_layer),
        "Qwen3_5ForCausalLM": Layout("qwen35", _qwen3_5_metadata, _qwen3_5_layer),
    }
)
"""By the architecture of the config."""
