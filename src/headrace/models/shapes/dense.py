"""Dense models that attend in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.models.shapes.base import Config, qwen, shape


def _llama3(sizes: tuple[int, int, int, int, int, int], factor: float, **fields: Any) -> Config:
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return shape(
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
    return shape("Llama", sizes, max_position_embeddings=max_position, **{**ids, **fields})


def _smollm2(sizes: tuple[int, int, int, int, int, int], theta: float) -> Config:
    return _llama(sizes, 8192, rope_theta=theta, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0)


def _mistral(sizes: tuple[int, int, int, int, int, int], max_position: int, theta: float) -> Config:
    return shape(
        "Mistral",
        sizes,
        head_dim=128,
        max_position_embeddings=max_position,
        rope_theta=theta,
        bos_token_id=1,
        eos_token_id=2,
    )


def _gemma2(sizes: tuple[int, int, int, int, int, int], head_dim: int, scalar: int) -> Config:
    return shape(
        "Gemma2",
        sizes,
        head_dim=head_dim,
        query_pre_attn_scalar=scalar,
        max_position_embeddings=8192,
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=2,
        eos_token_id=1,
    )


def _gemma3(
    sizes: tuple[int, int, int, int, int, int],
    max_position: int,
    window: int,
    head_dim: int,
    scalar: int,
    factor: float | None = None,
) -> Config:
    scaling = None if factor is None else {"rope_type": "linear", "factor": factor}
    return shape(
        "Gemma3",
        sizes,
        head_dim=head_dim,
        query_pre_attn_scalar=scalar,
        max_position_embeddings=max_position,
        sliding_window=window,
        rope_theta=1_000_000.0,
        rope_local_base_freq=10_000.0,
        rope_scaling=scaling,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=2,
        eos_token_id=[1, 106],
    )


def _gemma4(
    sizes: tuple[int, int, int, int, int, int], max_position: int, window: int, period: int, **fields: Any
) -> Config:
    """period: every so many layers one has full attention."""
    layers = sizes[2]
    types = ["sliding_attention" if (index + 1) % period else "full_attention" for index in range(layers)]
    return shape(
        "Gemma4",
        sizes,
        head_dim=256,
        global_head_dim=512,
        max_position_embeddings=max_position,
        sliding_window=window,
        layer_types=types,
        final_logit_softcapping=30.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=2,
        eos_token_id=[1, 106],
        **fields,
    )


def _ministral3(sizes: tuple[int, int, int, int, int, int], *, tied: bool = False) -> Config:
    scaling = {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    }
    return shape(
        "Ministral3",
        sizes,
        head_dim=128,
        max_position_embeddings=262_144,
        rope_parameters=scaling,
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
    )


def _gemma(sizes: tuple[int, int, int, int, int, int]) -> Config:
    return shape(
        "Gemma",
        sizes,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        max_position_embeddings=8192,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=2,
        eos_token_id=1,
    )


def _bloom(hidden: int, layers: int, heads: int) -> Config:
    return MappingProxyType(
        {
            "architectures": ["BloomForCausalLM"],
            "model_type": "bloom",
            "hidden_size": hidden,
            "n_layer": layers,
            "n_head": heads,
            "vocab_size": 250_880,
            "seq_length": 2048,
            "torch_dtype": "float16",
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
    )


def _gpt2(hidden: int, layers: int, heads: int) -> Config:
    return MappingProxyType(
        {
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": heads,
            "n_positions": 1024,
            "vocab_size": 50_257,
            "bos_token_id": 50_256,
            "eos_token_id": 50_256,
            "torch_dtype": "float32",
        }
    )


DENSE: Mapping[str, Config] = {
    "tiny": _llama((64, 128, 2, 4, 2, 256), 512, torch_dtype="float32"),
    "llama-68m": _llama((768, 3072, 2, 12, 12, 32_000), 2048),
    "tinyllama-1.1b": _llama((2048, 5632, 22, 32, 4, 32_000), 2048),
    "smollm2-135m": _smollm2((576, 1536, 30, 9, 3, 49_152), 100_000.0),
    # SmolLM2-135M with the vocabulary of the side-by-side measurements
    "smollm2-135m-32k": _smollm2((576, 1536, 30, 9, 3, 32_000), 100_000.0),
    "smollm2-360m": _smollm2((960, 2560, 32, 15, 5, 49_152), 100_000.0),
    "smollm2-1.7b": _smollm2((2048, 8192, 24, 32, 32, 49_152), 130_000.0),
    "llama-2-7b": _llama((4096, 11_008, 32, 32, 32, 32_000), 4096, torch_dtype="float16"),
    "llama-2-13b": _llama((5120, 13_824, 40, 40, 40, 32_000), 4096, torch_dtype="float16"),
    "llama-2-70b": _llama((8192, 28_672, 80, 64, 8, 32_000), 4096, torch_dtype="float16"),
    "llama-65b": _llama((8192, 22_016, 80, 64, 64, 32_000), 2048, torch_dtype="float16"),
    "codellama-34b": _llama((8192, 22_016, 48, 64, 8, 32_000), 16_384, rope_theta=1_000_000.0),
    "llama-3.1-8b": _llama3((4096, 14_336, 32, 32, 8, 128_256), 8.0),
    "llama-3.1-70b": _llama3((8192, 28_672, 80, 64, 8, 128_256), 8.0),
    "llama-3.1-405b": _llama3((16_384, 53_248, 126, 128, 8, 128_256), 8.0),
    "llama-3.2-1b": _llama3((2048, 8192, 16, 32, 8, 128_256), 32.0, head_dim=64, tie_word_embeddings=True),
    "llama-3.2-3b": _llama3((3072, 8192, 28, 24, 8, 128_256), 32.0, head_dim=128, tie_word_embeddings=True),
    "mistral-7b": shape(
        "Mistral",
        (4096, 14_336, 32, 32, 8, 32_000),
        max_position_embeddings=32_768,
        sliding_window=4096,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "qwen2.5-0.5b": qwen("Qwen2", (896, 4864, 24, 14, 2, 151_936), 32_768, tied=True),
    "qwen2.5-1.5b": qwen("Qwen2", (1536, 8960, 28, 12, 2, 151_936), 32_768, tied=True),
    "qwen2.5-7b": qwen("Qwen2", (3584, 18_944, 28, 28, 4, 152_064), 32_768, tied=False),
    "qwen2.5-3b": qwen("Qwen2", (2048, 11_008, 36, 16, 2, 151_936), 32_768, tied=True),
    "qwen2.5-14b": qwen("Qwen2", (5120, 13_824, 48, 40, 8, 152_064), 32_768, tied=False),
    "qwen2.5-32b": qwen("Qwen2", (5120, 27_648, 64, 40, 8, 152_064), 32_768, tied=False),
    "qwen2.5-72b": qwen("Qwen2", (8192, 29_568, 80, 64, 8, 152_064), 32_768, tied=False),
    "qwen3-0.6b": qwen("Qwen3", (1024, 3072, 28, 16, 8, 151_936), 40_960, tied=True),
    "qwen3-1.7b": qwen("Qwen3", (2048, 6144, 28, 16, 8, 151_936), 40_960, tied=True),
    "qwen3-4b": qwen("Qwen3", (2560, 9728, 36, 32, 8, 151_936), 40_960, tied=True),
    "qwen3-8b": qwen("Qwen3", (4096, 12_288, 36, 32, 8, 151_936), 40_960, tied=False),
    "qwen3-14b": qwen("Qwen3", (5120, 17_408, 40, 40, 8, 151_936), 40_960, tied=False),
    "qwen3-32b": qwen("Qwen3", (5120, 25_600, 64, 64, 8, 151_936), 40_960, tied=False),
    "mistral-nemo-12b": _mistral((5120, 14_336, 40, 32, 8, 131_072), 131_072, 1_000_000.0),
    "mistral-small-24b": _mistral((5120, 32_768, 40, 32, 8, 131_072), 32_768, 100_000_000.0),
    "mistral-large-123b": _mistral((12_288, 28_672, 88, 96, 8, 32_768), 131_072, 1_000_000.0),
    "ministral-3-3b": _ministral3((3072, 9216, 26, 32, 8, 131_072), tied=True),
    "ministral-3-8b": _ministral3((4096, 14_336, 34, 32, 8, 131_072)),
    "internlm3-8b": shape(
        "InternLM3",
        (4096, 10_240, 48, 32, 2, 128_512),
        head_dim=128,
        max_position_embeddings=32_768,
        rope_theta=50_000_000.0,
        rope_scaling={"rope_type": "dynamic", "factor": 6.0},
        bos_token_id=1,
        eos_token_id=2,
    ),
    "smollm3-3b": shape(
        "SmolLM3",
        (2048, 11_008, 36, 16, 4, 128_256),
        max_position_embeddings=65_536,
        rope_theta=5_000_000.0,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=128_000,
        eos_token_id=128_012,
    ),
    "granite-3.3-8b": shape(
        "Granite",
        (4096, 12_800, 40, 32, 8, 49_159),
        max_position_embeddings=131_072,
        rope_theta=10_000_000.0,
        tie_word_embeddings=True,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.0078125,
        logits_scaling=16.0,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "granite-4.0-micro": shape(
        "GraniteMoeHybrid",
        (2560, 8192, 40, 40, 8, 100_352),
        max_position_embeddings=131_072,
        rope_theta=10_000_000.0,
        position_embedding_type="rope",
        layer_types=["attention"] * 40,
        num_local_experts=0,
        shared_intermediate_size=8192,
        tie_word_embeddings=True,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        attention_multiplier=0.015625,
        logits_scaling=10.0,
        bos_token_id=100_257,
        eos_token_id=100_257,
    ),
    "seed-oss-36b": shape(
        "SeedOss",
        (5120, 27_648, 64, 80, 8, 155_136),
        head_dim=128,
        max_position_embeddings=524_288,
        rope_theta=10_000_000.0,
        rms_norm_eps=1e-6,
        attention_bias=True,
        bos_token_id=0,
        eos_token_id=2,
    ),
    "gemma-2b": _gemma((2048, 16_384, 18, 8, 1, 256_000)),
    "gemma-7b": _gemma((3072, 24_576, 28, 16, 16, 256_000)),
    "gemma-2-2b": _gemma2((2304, 9216, 26, 8, 4, 256_000), 256, 256),
    "gemma-2-9b": _gemma2((3584, 14_336, 42, 16, 8, 256_000), 256, 256),
    "gemma-2-27b": _gemma2((4608, 36_864, 46, 32, 16, 256_000), 128, 144),
    "gemma-3-1b": _gemma3((1152, 6912, 26, 4, 1, 262_144), 32_768, 512, 256, 256),
    "gemma-3-4b": _gemma3((2560, 10_240, 34, 8, 4, 262_208), 131_072, 1024, 256, 256, factor=8.0),
    "gemma-3-12b": _gemma3((3840, 15_360, 48, 16, 8, 262_208), 131_072, 1024, 256, 256, factor=8.0),
    "gemma-3-27b": _gemma3((5376, 21_504, 62, 32, 16, 262_208), 131_072, 1024, 128, 168, factor=8.0),
    "gemma-4-e2b": _gemma4(
        (1536, 6144, 35, 8, 1, 262_144),
        131_072,
        512,
        5,
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
    ),
    "gemma-4-e4b": _gemma4((2560, 10_240, 42, 8, 2, 262_144), 131_072, 512, 6, num_kv_shared_layers=18),
    "gemma-4-12b": _gemma4(
        (3840, 15_360, 48, 16, 8, 262_144),
        262_144,
        1024,
        6,
        architectures=["Gemma4UnifiedForCausalLM"],
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        hidden_size_per_layer_input=0,
    ),
    "gemma-4-26b-a4b": _gemma4(
        (2816, 2112, 30, 16, 8, 262_144),
        262_144,
        1024,
        6,
        attention_k_eq_v=True,
        num_global_key_value_heads=2,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=128,
        top_k_experts=8,
        moe_intermediate_size=704,
    ),
    "gemma-4-31b": _gemma4(
        (5376, 21_504, 60, 32, 16, 262_144),
        262_144,
        1024,
        6,
        attention_k_eq_v=True,
        num_global_key_value_heads=4,
        hidden_size_per_layer_input=0,
    ),
    "phi-3-mini": shape(
        "Phi3",
        (3072, 8192, 32, 32, 32, 32_064),
        max_position_embeddings=4096,
        sliding_window=2047,
        bos_token_id=1,
        eos_token_id=32_000,
    ),
    "phi-4": shape(
        "Phi3",
        (5120, 17_920, 40, 40, 10, 100_352),
        max_position_embeddings=16_384,
        rope_theta=250_000.0,
        bos_token_id=100_257,
        eos_token_id=100_265,
    ),
    "phi-4-mini": shape(
        "Phi3",
        (3072, 8192, 32, 24, 8, 200_064),
        max_position_embeddings=131_072,
        original_max_position_embeddings=4096,
        partial_rotary_factor=0.75,
        rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [8.0] * 48},
        sliding_window=262_144,
        tie_word_embeddings=True,
        bos_token_id=199_999,
        eos_token_id=199_999,
    ),
    "olmo-2-7b": shape(
        "Olmo2",
        (4096, 11_008, 32, 32, 32, 100_352),
        max_position_embeddings=4096,
        rope_theta=500_000.0,
        rms_norm_eps=1e-6,
        eos_token_id=100_257,
    ),
    "olmo-3-7b": shape(
        "Olmo3",
        (4096, 11_008, 32, 32, 32, 100_278),
        max_position_embeddings=65_536,
        rope_theta=500_000.0,
        rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
        sliding_window=4096,
        rms_norm_eps=1e-6,
        eos_token_id=100_257,
    ),
    "command-r7b": shape(
        "Cohere2",
        (4096, 14_336, 32, 32, 8, 256_000),
        max_position_embeddings=132_096,
        rope_theta=50_000.0,
        sliding_window=4096,
        logit_scale=0.25,
        tie_word_embeddings=True,
        bos_token_id=5,
        eos_token_id=255_001,
    ),
    "glm-4-9b": shape(
        "Glm",
        (4096, 13_696, 40, 32, 2, 151_552),
        head_dim=128,
        max_position_embeddings=131_072,
        partial_rotary_factor=0.5,
        attention_bias=True,
        rms_norm_eps=1.5625e-07,
        eos_token_id=151_329,
    ),
    "glm-4-9b-0414": shape(
        "Glm4",
        (4096, 13_696, 40, 32, 2, 151_552),
        head_dim=128,
        max_position_embeddings=32_768,
        partial_rotary_factor=0.5,
        attention_bias=True,
        eos_token_id=151_329,
    ),
    "starcoder2-3b": shape(
        "Starcoder2",
        (3072, 12_288, 30, 24, 2, 49_152),
        hidden_act="gelu_pytorch_tanh",
        max_position_embeddings=16_384,
        rope_theta=999_999.4420358813,
        sliding_window=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "pythia-1.4b": shape(
        "GPTNeoX",
        (2048, 8192, 24, 16, 16, 50_304),
        hidden_act="gelu",
        rotary_pct=0.25,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=0,
        torch_dtype="float16",
    ),
    "bloom-560m": _bloom(1024, 24, 16),
    "bloom-7b1": _bloom(4096, 30, 32),
    "mpt-7b": MappingProxyType(
        {
            "architectures": ["MptForCausalLM"],
            "model_type": "mpt",
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "max_seq_len": 2048,
            "vocab_size": 50_432,
            "torch_dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
    ),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-xl": _gpt2(1600, 48, 25),
}
