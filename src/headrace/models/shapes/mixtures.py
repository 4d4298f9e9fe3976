"""Mixtures of experts, and models with latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.models.shapes.base import Config, qwen, shape


def _qwen3_moe(layers: int, hidden: int = 2048, heads: int = 32, wide: int = 768) -> Config:
    sizes = (hidden, 3 * hidden, layers, heads, 4, 151_936)
    fields = {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": wide,
        "norm_topk_prob": True,
    }
    return MappingProxyType({**qwen("Qwen3Moe", sizes, 40_960, tied=False), "head_dim": 128, **fields})


def _gpt_oss(layers: int, experts: int) -> Config:
    return shape(
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
    return shape(
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


def _llama4(experts: int, step: int, **fields: Any) -> Config:
    """The text part."""
    return shape(
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
    return shape(
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


MIXTURES: Mapping[str, Config] = {
    "qwen3-30b-a3b": _qwen3_moe(48),
    # its first layers, for measurements
    "qwen3-30b-a3b-8l": _qwen3_moe(8),
    "qwen3-235b-a22b": _qwen3_moe(94, 4096, 64, 1536),
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
    "kimi-k2": MappingProxyType(
        {
            **_deepseek(
                "DeepseekV3",
                (7168, 18_432, 61, 64, 64, 163_840),
                1536,
                mscale=1.0,
                moe_intermediate_size=2048,
                n_routed_experts=384,
                num_experts_per_tok=8,
                n_shared_experts=1,
                first_k_dense_replace=1,
                n_group=1,
                topk_group=1,
                routed_scaling_factor=2.827,
                norm_topk_prob=True,
                bos_token_id=163_584,
                eos_token_id=163_585,
            ),
            "max_position_embeddings": 131_072,
            "rope_theta": 50_000.0,
        }
    ),
    "glm-4.7-flash": shape(
        "Glm4MoeLite",
        (2048, 10_240, 47, 20, 20, 154_880),
        max_position_embeddings=202_752,
        rope_theta=1_000_000.0,
        q_lora_rank=768,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
        moe_intermediate_size=1536,
        n_routed_experts=64,
        num_experts_per_tok=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=1.8,
        norm_topk_prob=True,
        eos_token_id=[154_820, 154_827, 154_829],
    ),
    "qwen1.5-moe-a2.7b": shape(
        "Qwen2Moe",
        (2048, 5632, 24, 16, 16, 151_936),
        max_position_embeddings=8192,
        rope_theta=1_000_000.0,
        rms_norm_eps=1e-6,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
        num_experts=60,
        num_experts_per_tok=4,
        norm_topk_prob=False,
        bos_token_id=151_643,
        eos_token_id=151_643,
    ),
    "mixtral-8x7b": shape(
        "Mixtral",
        (4096, 14_336, 32, 32, 8, 32_000),
        max_position_embeddings=32_768,
        rope_theta=1_000_000.0,
        num_local_experts=8,
        num_experts_per_tok=2,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "mixtral-8x22b": shape(
        "Mixtral",
        (6144, 16_384, 56, 48, 8, 32_768),
        max_position_embeddings=65_536,
        rope_theta=1_000_000.0,
        num_local_experts=8,
        num_experts_per_tok=2,
        bos_token_id=1,
        eos_token_id=2,
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
}
