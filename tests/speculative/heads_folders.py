"""Folders of draft heads, written without the code that trains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

H, V = 8, 20
RNG = np.random.default_rng(0)
SAMPLE = RNG.standard_normal((8, H)).astype(np.float32)

LAYER: dict[str, Any] = {
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 12,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip

EAGLE_SHAPES = {
    "model.fc.weight": (H, 2 * H), "model.norm.weight": (H,),
    "model.layers.0.input_layernorm.weight": (H,), "model.layers.0.post_attention_layernorm.weight": (H,),
    "model.layers.0.self_attn.q_proj.weight": (16, H), "model.layers.0.self_attn.k_proj.weight": (8, H),
    "model.layers.0.self_attn.v_proj.weight": (8, H), "model.layers.0.self_attn.o_proj.weight": (H, 16),
    "model.layers.0.mlp.gate_proj.weight": (12, H), "model.layers.0.mlp.up_proj.weight": (12, H),
    "model.layers.0.mlp.down_proj.weight": (H, 12),
}  # fmt: skip

Tensors = dict[str, NDArray[Any]]


def section(method: str, **fields: Any) -> dict[str, Any]:
    """The object of a config.json."""
    sizes = {"num_heads": 2, "num_blocks": 1} if method == "medusa" else {"layer": LAYER}
    known = {"format": 1, "method": method, "model": "small", "vocab_size": V, "hidden_size": H}
    return {"headrace_heads": known | sizes | fields}


def medusa_tensors() -> Tensors:
    made: Tensors = {"base.embedding_sample": SAMPLE.astype(np.float16)}
    for i in range(2):
        made[f"heads.{i}.blocks.0.weight"] = RNG.standard_normal((H, H)).astype(np.float16)
        made[f"heads.{i}.blocks.0.bias"] = RNG.standard_normal(H).astype(np.float16)
    return made


Tree = list[tuple[int, ...]]

WIDE: Tree = [
    (0,), (1,), (2,), (3,), (0, 0), (1, 0), (4,), (5,), (0, 1), (2, 0), (1, 1), (0, 0, 0), (1, 0, 0), (6,),
]  # fmt: skip
"""A tree in which the chain of first choices is one of many paths."""


def near_medusa(
    folder: Path,
    vocab_size: int,
    hidden_size: int,
    count: int = 3,
    tree: Tree | None = None,
    change: float = 0.02,
) -> Path:
    """Heads that `change` a hidden state a little, for a model of any weights: a folder."""
    tensors: Tensors = {}
    for i in range(count):
        tensors[f"heads.{i}.blocks.0.weight"] = change * RNG.standard_normal(
            (hidden_size, hidden_size)
        ).astype(np.float32)
        tensors[f"heads.{i}.blocks.0.bias"] = np.zeros(hidden_size, dtype=np.float32)
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "hidden_size": hidden_size, "num_heads": count}
    if tree is not None:
        sizes["tree"] = tree
    return write(folder, section("medusa", **sizes), tensors)


def any_eagle(folder: Path, vocab_size: int, hidden_size: int) -> Path:
    """A layer of random weights for a model of any weights: a folder."""
    layer = LAYER | {"head_dim": 16, "intermediate_size": 32}
    kv, q = 2 * 16, 4 * 16
    shapes = {
        "fc": (hidden_size, 2 * hidden_size),
        "layers.0.self_attn.q_proj": (q, hidden_size), "layers.0.self_attn.k_proj": (kv, hidden_size),
        "layers.0.self_attn.v_proj": (kv, hidden_size), "layers.0.self_attn.o_proj": (hidden_size, q),
        "layers.0.mlp.gate_proj": (32, hidden_size), "layers.0.mlp.up_proj": (32, hidden_size),
        "layers.0.mlp.down_proj": (hidden_size, 32),
    }  # fmt: skip
    tensors: Tensors = {
        f"model.{name}.weight": (RNG.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32)
        for name, shape in shapes.items()
    }
    for name in ("norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"):
        tensors[f"model.{name}.weight"] = np.ones(hidden_size, dtype=np.float32)
    sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size, "layer": layer}
    return write(folder, section("eagle", **sizes), tensors)


def eagle_tensors() -> Tensors:
    made = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in EAGLE_SHAPES.items()}
    return made | {"base.embedding_sample": SAMPLE}


def write(folder: Path, config: object, tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder
