"""Configs of well-known models, for `shape:NAME`: the same sizes with random weights, no download."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Config = Mapping[str, Any]


def _shape(architecture: str, sizes: tuple[int, int, int, int, int, int], **fields: Any) -> Config:
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


def _llama3(sizes: tuple[int, int, int, int, int, int], factor: float, **fields: Any) -> Config:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return _shape(
        "Llama",
        sizes,
        max_position_embeddings=131_072,
        rope_theta=500_000.0,
        rope_scaling=scaling,
        bos_token_id=128_000,
        eos_token_id=128_001,
        **fields,
    )


def _llama(sizes: tuple[int, int, int, int, int, int], max_position: int, **fields: Any) -> Config:
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return _shape("Llama", sizes, max_position_embeddings=max_position, **{**ids, **fields})


def _smollm2(sizes: tuple[int, int, int, int, int, int], theta: float) -> Config:
    return _llama(sizes, 8192, rope_theta=theta, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0)


def _qwen(
    architecture: str, sizes: tuple[int, int, int, int, int, int], max_position: int, tied: bool
) -> Config:
    fields: dict[str, Any] = {"head_dim": 128} if architecture == "Qwen3" else {}
    return _shape(
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


def _qwen3_moe(layers: int) -> Config:
    sizes = (2048, 6144, layers, 32, 4, 151_936)
    fields = {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    }
    return MappingProxyType({**_qwen("Qwen3Moe", sizes, 40_960, tied=False), "head_dim": 128, **fields})


SHAPES: Mapping[str, Config] = MappingProxyType(
    {
        "tiny": _llama((64, 128, 2, 4, 2, 256), 512, torch_dtype="float32"),
        "tinyllama-1.1b": _llama((2048, 5632, 22, 32, 4, 32_000), 2048),
        "smollm2-135m": _smollm2((576, 1536, 30, 9, 3, 49_152), 100_000.0),
        # SmolLM2-135M with the vocabulary of the side-by-side measurements
        "smollm2-135m-32k": _smollm2((576, 1536, 30, 9, 3, 32_000), 100_000.0),
        "smollm2-360m": _smollm2((960, 2560, 32, 15, 5, 49_152), 100_000.0),
        "smollm2-1.7b": _smollm2((2048, 8192, 24, 32, 32, 49_152), 130_000.0),
        "llama-2-7b": _llama((4096, 11_008, 32, 32, 32, 32_000), 4096, torch_dtype="float16"),
        "llama-2-13b": _llama((5120, 13_824, 40, 40, 40, 32_000), 4096, torch_dtype="float16"),
        "llama-3.1-8b": _llama3((4096, 14_336, 32, 32, 8, 128_256), 8.0),
        "llama-3.1-70b": _llama3((8192, 28_672, 80, 64, 8, 128_256), 8.0),
        "llama-3.2-1b": _llama3(
            (2048, 8192, 16, 32, 8, 128_256), 32.0, head_dim=64, tie_word_embeddings=True
        ),
        "llama-3.2-3b": _llama3(
            (3072, 8192, 28, 24, 8, 128_256), 32.0, head_dim=128, tie_word_embeddings=True
        ),
        "mistral-7b": _shape(
            "Mistral",
            (4096, 14_336, 32, 32, 8, 32_000),
            max_position_embeddings=32_768,
            sliding_window=4096,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "qwen2.5-0.5b": _qwen("Qwen2", (896, 4864, 24, 14, 2, 151_936), 32_768, tied=True),
        "qwen2.5-1.5b": _qwen("Qwen2", (1536, 8960, 28, 12, 2, 151_936), 32_768, tied=True),
        "qwen2.5-7b": _qwen("Qwen2", (3584, 18_944, 28, 28, 4, 152_064), 32_768, tied=False),
        "qwen3-0.6b": _qwen("Qwen3", (1024, 3072, 28, 16, 8, 151_936), 40_960, tied=True),
        "qwen3-1.7b": _qwen("Qwen3", (2048, 6144, 28, 16, 8, 151_936), 40_960, tied=True),
        "qwen3-4b": _qwen("Qwen3", (2560, 9728, 36, 32, 8, 151_936), 40_960, tied=True),
        "qwen3-8b": _qwen("Qwen3", (4096, 12_288, 36, 32, 8, 151_936), 40_960, tied=False),
        "qwen3-32b": _qwen("Qwen3", (5120, 25_600, 64, 64, 8, 151_936), 40_960, tied=False),
        "qwen3-30b-a3b": _qwen3_moe(48),
        # its first layers, for measurements
        "qwen3-30b-a3b-8l": _qwen3_moe(8),
        "mixtral-8x7b": _shape(
            "Mixtral",
            (4096, 14_336, 32, 32, 8, 32_000),
            max_position_embeddings=32_768,
            rope_theta=1_000_000.0,
            num_local_experts=8,
            num_experts_per_tok=2,
            bos_token_id=1,
            eos_token_id=2,
        ),
    }
)
