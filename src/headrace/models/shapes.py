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


def _mistral(sizes: tuple[int, int, int, int, int, int], max_position: int, theta: float) -> Config:
    return _shape(
        "Mistral",
        sizes,
        head_dim=128,
        max_position_embeddings=max_position,
        rope_theta=theta,
        bos_token_id=1,
        eos_token_id=2,
    )


def _gemma2(sizes: tuple[int, int, int, int, int, int], head_dim: int, scalar: int) -> Config:
    return _shape(
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
    return _shape(
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
    return _shape(
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


def _gpt_oss(layers: int, experts: int) -> Config:
    return _shape(
        "GptOss",
        (2880, 2880, layers, 64, 8, 201_088),
        head_dim=64,
        max_position_embeddings=131_072,
        rope_theta=150_000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        sliding_window=128,
        num_local_experts=experts,
        num_experts_per_tok=4,
        bos_token_id=199_998,
        eos_token_id=200_002,
    )


def _deepseek(
    architecture: str, sizes: tuple[int, int, int, int, int, int], query_rank: int | None, **fields: Any
) -> Config:
    mscale = fields.pop("mscale")
    return _shape(
        architecture,
        sizes,
        max_position_embeddings=163_840,
        rms_norm_eps=1e-6,
        q_lora_rank=query_rank,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        rope_scaling={
            "type": "yarn",
            "factor": 40,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": mscale,
            "mscale_all_dim": mscale,
        },
        **fields,
    )


def _deepseek_v2_lite(layers: int) -> Config:
    return _deepseek(
        "DeepseekV2",
        (2048, 10_944, layers, 16, 16, 102_400),
        None,
        mscale=0.707,
        moe_intermediate_size=1408,
        n_routed_experts=64,
        num_experts_per_tok=6,
        n_shared_experts=2,
        first_k_dense_replace=1,
        topk_method="greedy",
        bos_token_id=100_000,
        eos_token_id=100_001,
    )


_HYBRID = {
    "head_dim": 256,
    "max_position_embeddings": 262_144,
    "rope_theta": 10_000_000.0,
    "rms_norm_eps": 1e-6,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


def _qwen3_5(sizes: tuple[int, int, int, int, int, int], heads: int, *, tied: bool = False) -> Config:
    """The text part. heads: of values, in layers with the delta rule."""
    return _shape(
        "Qwen3_5",
        sizes,
        **_HYBRID,
        linear_num_value_heads=heads,
        tie_word_embeddings=tied,
        eos_token_id=248_046,
    )


def _qwen_hybrid_moe(
    architecture: str,
    sizes: tuple[int, int, int, int, int, int],
    heads: int,
    experts: int,
    top_k: int,
    wide: int,
) -> Config:
    return _shape(
        architecture,
        sizes,
        **_HYBRID,
        linear_num_value_heads=heads,
        num_experts=experts,
        num_experts_per_tok=top_k,
        moe_intermediate_size=wide,
        shared_expert_intermediate_size=wide,
        norm_topk_prob=True,
        eos_token_id=248_046 if architecture == "Qwen3_5Moe" else 151_645,
    )


_ATTENDING = [2, 5, 8, 10, 12, 14]


def _lfm2(
    sizes: tuple[int, int, int, int, int, int], attending: list[int], *, adjusted: bool = True
) -> Config:
    """adjusted: the width of the feed-forward half is two thirds of the config's, rounded up to a multiple of 256."""
    return _shape(
        "Lfm2",
        sizes,
        max_position_embeddings=128_000,
        rope_theta=1_000_000.0,
        norm_eps=1e-5,
        conv_L_cache=3,
        block_auto_adjust_ff_dim=adjusted,
        layer_types=["full_attention" if index in attending else "conv" for index in range(sizes[2])],
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=7,
    )


def _llama4(experts: int, step: int, **fields: Any) -> Config:
    """The text part."""
    return _shape(
        "Llama4",
        (5120, 8192, 48, 40, 8, 202_048),
        head_dim=128,
        intermediate_size_mlp=16_384,
        num_local_experts=experts,
        num_experts_per_tok=1,
        interleave_moe_layer_step=step,
        attention_chunk_size=8192,
        rope_theta=500_000.0,
        bos_token_id=200_000,
        eos_token_id=200_001,
        **fields,
    )


def _glm4_moe(sizes: tuple[int, int, int, int, int, int], experts: int, wide: int, **fields: Any) -> Config:
    return _shape(
        "Glm4Moe",
        sizes,
        head_dim=128,
        max_position_embeddings=131_072,
        rope_theta=1_000_000.0,
        partial_rotary_factor=0.5,
        attention_bias=True,
        n_routed_experts=experts,
        num_experts_per_tok=8,
        moe_intermediate_size=wide,
        n_shared_experts=1,
        norm_topk_prob=True,
        eos_token_id=151_329,
        **fields,
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


SHAPES: Mapping[str, Config] = MappingProxyType(
    {
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
        "llama-3.1-8b": _llama3((4096, 14_336, 32, 32, 8, 128_256), 8.0),
        "llama-3.1-70b": _llama3((8192, 28_672, 80, 64, 8, 128_256), 8.0),
        "llama-3.1-405b": _llama3((16_384, 53_248, 126, 128, 8, 128_256), 8.0),
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
        "qwen2.5-3b": _qwen("Qwen2", (2048, 11_008, 36, 16, 2, 151_936), 32_768, tied=True),
        "qwen2.5-14b": _qwen("Qwen2", (5120, 13_824, 48, 40, 8, 152_064), 32_768, tied=False),
        "qwen2.5-32b": _qwen("Qwen2", (5120, 27_648, 64, 40, 8, 152_064), 32_768, tied=False),
        "qwen2.5-72b": _qwen("Qwen2", (8192, 29_568, 80, 64, 8, 152_064), 32_768, tied=False),
        "qwen3-0.6b": _qwen("Qwen3", (1024, 3072, 28, 16, 8, 151_936), 40_960, tied=True),
        "qwen3-1.7b": _qwen("Qwen3", (2048, 6144, 28, 16, 8, 151_936), 40_960, tied=True),
        "qwen3-4b": _qwen("Qwen3", (2560, 9728, 36, 32, 8, 151_936), 40_960, tied=True),
        "qwen3-8b": _qwen("Qwen3", (4096, 12_288, 36, 32, 8, 151_936), 40_960, tied=False),
        "qwen3-14b": _qwen("Qwen3", (5120, 17_408, 40, 40, 8, 151_936), 40_960, tied=False),
        "qwen3-32b": _qwen("Qwen3", (5120, 25_600, 64, 64, 8, 151_936), 40_960, tied=False),
        "qwen3-30b-a3b": _qwen3_moe(48),
        # its first layers, for measurements
        "qwen3-30b-a3b-8l": _qwen3_moe(8),
        "deepseek-v2-lite": _deepseek_v2_lite(27),
        "deepseek-v2-lite-4l": _deepseek_v2_lite(4),
        "deepseek-v3": _deepseek(
            "DeepseekV3",
            (7168, 18_432, 61, 128, 128, 129_280),
            1536,
            mscale=1.0,
            moe_intermediate_size=2048,
            n_routed_experts=256,
            num_experts_per_tok=8,
            n_shared_experts=1,
            first_k_dense_replace=3,
            n_group=8,
            topk_group=4,
            routed_scaling_factor=2.5,
            norm_topk_prob=True,
            bos_token_id=0,
            eos_token_id=1,
        ),
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
        "mistral-nemo-12b": _mistral((5120, 14_336, 40, 32, 8, 131_072), 131_072, 1_000_000.0),
        "mistral-small-24b": _mistral((5120, 32_768, 40, 32, 8, 131_072), 32_768, 100_000_000.0),
        "smollm3-3b": _shape(
            "SmolLM3",
            (2048, 11_008, 36, 16, 4, 128_256),
            max_position_embeddings=65_536,
            rope_theta=5_000_000.0,
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            bos_token_id=128_000,
            eos_token_id=128_012,
        ),
        "granite-3.3-8b": _shape(
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
        "seed-oss-36b": _shape(
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
        "phi-3-mini": _shape(
            "Phi3",
            (3072, 8192, 32, 32, 32, 32_064),
            max_position_embeddings=4096,
            sliding_window=2047,
            bos_token_id=1,
            eos_token_id=32_000,
        ),
        "phi-4": _shape(
            "Phi3",
            (5120, 17_920, 40, 40, 10, 100_352),
            max_position_embeddings=16_384,
            rope_theta=250_000.0,
            bos_token_id=100_257,
            eos_token_id=100_265,
        ),
        "olmo-2-7b": _shape(
            "Olmo2",
            (4096, 11_008, 32, 32, 32, 100_352),
            max_position_embeddings=4096,
            rope_theta=500_000.0,
            rms_norm_eps=1e-6,
            eos_token_id=100_257,
        ),
        "command-r7b": _shape(
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
        "glm-4-9b-0414": _shape(
            "Glm4",
            (4096, 13_696, 40, 32, 2, 151_552),
            head_dim=128,
            max_position_embeddings=32_768,
            partial_rotary_factor=0.5,
            attention_bias=True,
            eos_token_id=151_329,
        ),
        "starcoder2-3b": _shape(
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
        "pythia-1.4b": _shape(
            "GPTNeoX",
            (2048, 8192, 24, 16, 16, 50_304),
            hidden_act="gelu",
            rotary_pct=0.25,
            max_position_embeddings=2048,
            bos_token_id=0,
            eos_token_id=0,
            torch_dtype="float16",
        ),
        "gpt-oss-20b": _gpt_oss(24, 32),
        "gpt-oss-20b-8l": _gpt_oss(8, 32),
        "gpt-oss-120b": _gpt_oss(36, 128),
        "llama-4-scout": _llama4(
            16,
            1,
            max_position_embeddings=10_485_760,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 16.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            },
        ),
        "llama-4-maverick": _llama4(128, 2, max_position_embeddings=1_048_576, use_qk_norm=False),
        "glm-4.5": _glm4_moe(
            (5120, 12_288, 92, 96, 8, 151_552),
            160,
            1536,
            use_qk_norm=True,
            first_k_dense_replace=3,
            routed_scaling_factor=2.5,
        ),
        "glm-4.5-air": _glm4_moe(
            (4096, 10_944, 46, 96, 8, 151_552),
            128,
            1408,
            use_qk_norm=False,
            first_k_dense_replace=1,
            routed_scaling_factor=1.0,
        ),
        "qwen3-next-80b-a3b": _qwen_hybrid_moe(
            "Qwen3Next", (2048, 5120, 48, 16, 2, 151_936), 32, 512, 10, 512
        ),
        "qwen3.5-0.8b": _qwen3_5((1024, 3584, 24, 8, 2, 248_320), 16, tied=True),
        "qwen3.5-2b": _qwen3_5((2048, 6144, 24, 8, 2, 248_320), 16, tied=True),
        "qwen3.5-4b": _qwen3_5((2560, 9216, 32, 16, 4, 248_320), 32, tied=True),
        "qwen3.5-9b": _qwen3_5((4096, 12_288, 32, 16, 4, 248_320), 32),
        "qwen3.5-27b": _qwen3_5((5120, 17_408, 64, 24, 4, 248_320), 48),
        "qwen3.5-35b-a3b": _qwen_hybrid_moe("Qwen3_5Moe", (2048, 512, 40, 16, 2, 248_320), 32, 256, 8, 512),
        "qwen3.5-122b-a10b": _qwen_hybrid_moe(
            "Qwen3_5Moe", (3072, 1024, 48, 32, 2, 248_320), 64, 256, 8, 1024
        ),
        "qwen3.5-397b-a17b": _qwen_hybrid_moe(
            "Qwen3_5Moe", (4096, 1024, 60, 32, 2, 248_320), 64, 512, 10, 1024
        ),
        "lfm2-350m": _lfm2((1024, 6656, 16, 16, 8, 65_536), _ATTENDING),
        "lfm2-700m": _lfm2((1536, 10_240, 16, 24, 8, 65_536), _ATTENDING),
        "lfm2-1.2b": _lfm2((2048, 12_288, 16, 32, 8, 65_536), _ATTENDING),
        "lfm2-2.6b": _lfm2((2048, 10_752, 30, 32, 8, 65_536), [2, 6, 9, 12, 15, 18, 21, 24], adjusted=False),
        "lfm2-8b-a1b": MappingProxyType(
            {
                **_lfm2((2048, 7168, 24, 32, 8, 65_536), [2, 6, 10, 14, 18, 21]),
                "architectures": ["Lfm2MoeForCausalLM"],
                "num_dense_layers": 2,
                "num_experts": 32,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 1792,
            }
        ),
        "gpt2": _gpt2(768, 12, 12),
        "gpt2-xl": _gpt2(1600, 48, 25),
    }
)
