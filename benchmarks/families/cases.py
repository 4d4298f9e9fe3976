"""The models and the work that are measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from headrace.models.shapes import SHAPES


@dataclass(frozen=True, slots=True)
class Work:
    """`batch` requests at once, each of `prompt` tokens and `outputs` more. goals: how many times llama.cpp's rate."""

    batch: int
    prompt: int
    outputs: int
    prefill_goal: float | None = None
    decode_goal: float | None = None

    @property
    def name(self) -> str:
        """As drivers are asked for it."""
        return f"{self.batch}x{self.prompt}x{self.outputs}"


@dataclass(frozen=True, slots=True)
class Case:
    """One GGUF file with random weights: the config of a shape, and the mix of types of its matrices."""

    title: str
    config: Mapping[str, Any]
    mix: str
    works: tuple[Work, ...]

    def cut(self, layers: int) -> Case:
        """The same with so many layers."""
        return replace(
            self, title=f"{self.title}, cut to {layers} layers", config={**self.config, "num_hidden_layers": layers}
        )  # fmt: skip

    @property
    def longest(self) -> int:
        """Most tokens of a sequence."""
        return max(work.prompt + work.outputs for work in self.works)

    @property
    def batch(self) -> int:
        """Most sequences at once."""
        return max(work.batch for work in self.works)


LONG = 16_384

QWEN3_5_2B: Mapping[str, Any] = MappingProxyType(
    {
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 248_320,
        "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": (11, 11, 10),
        },
        "full_attention_interval": 4,
        "linear_num_value_heads": 16,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }
)

CASES: Mapping[str, Case] = MappingProxyType(
    {
        "mixture": Case(
            "Qwen3-30B-A3B of 8 layers",
            SHAPES["qwen3-30b-a3b-8l"],
            "Q4_K_M",
            (Work(1, 512, 1), Work(1, 16, 48, decode_goal=1.3), Work(16, 16, 16, decode_goal=2.5)),
        ),
        "gpt-oss": Case(
            "gpt-oss-20b of 8 layers",
            SHAPES["gpt-oss-20b-8l"],
            "MXFP4",
            (Work(1, 512, 1), Work(1, 16, 48, decode_goal=1.3), Work(16, 16, 16, decode_goal=2.5)),
        ),
        "hybrid": Case(
            "Qwen3.5-2B",
            QWEN3_5_2B,
            "Q4_K_M",
            (Work(1, LONG, 24, prefill_goal=1.5, decode_goal=1.5), Work(8, 128, 16)),
        ),
        "dense": Case(
            "TinyLlama 1.1B",
            {**SHAPES["tinyllama-1.1b"], "max_position_embeddings": 2 * LONG},
            "Q4_K_M",
            (Work(1, LONG, 24, prefill_goal=1.0, decode_goal=1.0),),
        ),
    }
)
"""By the name on the command line. Work of one output measures the prompt alone."""
