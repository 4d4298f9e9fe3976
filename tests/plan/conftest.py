"""Models and machines to plan with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.core.types import Retention
from headrace.models.families import read_spec
from headrace.models.source import BUNDLED_FOLDER
from headrace.models.spec import AttentionSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec, RopeSpec
from headrace.plan.hardware import Machine
from tests import needs

# config.json of public checkpoints, as far as sizes go, and the parameters that their pages state.
KNOWN: dict[str, tuple[dict[str, Any], int]] = {
    "TinyLlama-1.1B": (
        {
            "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
            "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        },
        1_100_048_384,
    ),
    "SmolLM2-135M": (
        {
            "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "torch_dtype": "bfloat16", "tie_word_embeddings": True, "rope_theta": 100000,
        },
        134_515_008,
    ),
    "Llama-2-7B": (
        {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "torch_dtype": "float16", "tie_word_embeddings": False,
        },
        6_738_415_616,
    ),
    "Qwen2.5-0.5B": (
        {
            "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
            "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "hidden_act": "silu",
            "torch_dtype": "bfloat16", "tie_word_embeddings": True, "rope_theta": 1000000.0,
            "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 24,
        },
        494_032_768,
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
            "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "hidden_act": "silu",
            "torch_dtype": "bfloat16", "tie_word_embeddings": True, "rope_theta": 1000000,
            "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
        },
        596_049_920,
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def known_specs() -> dict[str, tuple[ModelSpec, int]]:
    """Public models by name: spec and stated number of parameters."""
    return {name: (read_spec(config), count) for name, (config, count) in KNOWN.items()}


def build_spec(
    windows: tuple[int | None, ...] = (None, None),
    *,
    kv_heads: tuple[int, ...] = (1,),
    sinks: int = 0,
    hidden: int = 16,
    vocab: int = 64,
    max_position: int = 128,
    tie: bool = True,
    checkpoint_dtype: str = "float32",
    bias: bool = False,
    qk_norm: bool = False,
    head_dim: int = 8,
) -> ModelSpec:
    """A small model with a layer for each window (None is full attention); KV heads repeat in order."""
    layers = []
    for index, window in enumerate(windows):
        heads = kv_heads[index % len(kv_heads)]
        retention = Retention.FULL if window is None else Retention.SINKS if sinks else Retention.WINDOW
        mixer = AttentionSpec(
            num_heads=heads * 2,
            num_kv_heads=heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=RopeSpec(theta=10000.0, dim=head_dim),
            retention=retention,
            window=window,
            sinks=0 if window is None else sinks,
            qkv_bias=bias,
            out_bias=bias,
            qk_norm=NormSpec(1e-6) if qk_norm else None,
        )
        layers.append(LayerSpec(mixer, MLPSpec(32, bias=bias)))
    return ModelSpec(
        "llama", hidden, vocab, max_position, tuple(layers), NormSpec(1e-6), tie, checkpoint_dtype
    )


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., ModelSpec]:
    return build_spec


@pytest.fixture
def restored(tmp_path: Path) -> Callable[..., Path]:
    """The bundled draft model in another float type: a folder. Its numbers are small enough for float16."""

    def store(dtype: str, *, named: str | None = None, tied: bool = True) -> Path:
        """`named`: what the config says, where that is not the truth."""
        torch, files = needs.package("torch"), needs.package("safetensors.torch")
        original = BUNDLED_FOLDER / "tale-draft"
        folder = tmp_path / f"{dtype}-{named}-{tied}"
        shutil.copytree(original, folder)
        tensors = {
            name: tensor.to(torch.float16).to(getattr(torch, dtype))
            for name, tensor in files.load_file(original / "model.safetensors").items()
        }
        if not tied:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        files.save_file(tensors, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        config |= {"torch_dtype": named or dtype, "tie_word_embeddings": tied}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return store


@pytest.fixture(scope="session")
def make_machine() -> Callable[..., Machine]:
    """An idle CPU with `memory` bytes."""

    def machine(memory: int = 1 << 30, flags: tuple[str, ...] = (), kind: str = "cpu") -> Machine:
        return Machine(kind, "test device", memory, memory, 4, frozenset(flags))  # type: ignore[arg-type]

    return machine
