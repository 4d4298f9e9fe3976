"""Models with recurrent layers, of experts too."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.models.shapes.base import Config, shape

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
    return shape(
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
    return shape(
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
    return shape(
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


RECURRENT: Mapping[str, Config] = {
    "qwen3-next-80b-a3b": _qwen_hybrid_moe("Qwen3Next", (2048, 5120, 48, 16, 2, 151_936), 32, 512, 10, 512),
    "qwen3.5-0.8b": _qwen3_5((1024, 3584, 24, 8, 2, 248_320), 16, tied=True),
    "qwen3.5-2b": _qwen3_5((2048, 6144, 24, 8, 2, 248_320), 16, tied=True),
    "qwen3.5-4b": _qwen3_5((2560, 9216, 32, 16, 4, 248_320), 32, tied=True),
    "qwen3.5-9b": _qwen3_5((4096, 12_288, 32, 16, 4, 248_320), 32),
    "qwen3.5-27b": _qwen3_5((5120, 17_408, 64, 24, 4, 248_320), 48),
    "qwen3.5-35b-a3b": _qwen_hybrid_moe("Qwen3_5Moe", (2048, 512, 40, 16, 2, 248_320), 32, 256, 8, 512),
    "qwen3.5-122b-a10b": _qwen_hybrid_moe("Qwen3_5Moe", (3072, 1024, 48, 32, 2, 248_320), 64, 256, 8, 1024),
    "qwen3.5-397b-a17b": _qwen_hybrid_moe("Qwen3_5Moe", (4096, 1024, 60, 32, 2, 248_320), 64, 512, 10, 1024),
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
}
