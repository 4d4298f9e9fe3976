"""What most configs have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Config = Mapping[str, Any]


def shape(architecture: str, sizes: tuple[int, int, int, int, int, int], **fields: Any) -> Config:
    """A config.json. `sizes`: hidden, intermediate, layers, heads, KV heads, vocabulary."""
    hidden, intermediate, layers, heads, kv_heads, vocab = sizes
    config = {
        "architectures": [f"{architecture}ForCausalLM"],
        "model_type": architecture.lower(),
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return MappingProxyType({**config, **fields})


def qwen(
    architecture: str, sizes: tuple[int, int, int, int, int, int], max_position: int, tied: bool
) -> Config:
    fields: dict[str, Any] = {"head_dim": 128} if architecture == "Qwen3" else {}
    return shape(
        architecture,
        sizes,
        max_position_embeddings=max_position,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=tied,
        bos_token_id=151_643,
        eos_token_id=151_645,
        **fields,
    )
