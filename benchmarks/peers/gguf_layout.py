"""Names and layout of a Llama checkpoint's tensors in a GGUF file. Needs numpy only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Llama checkpoint's tensor."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, index, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{index}.{_LAYER_NAMES[part]}.weight"


def read_bfloat16(path: Path) -> Iterator[tuple[str, Floats]]:
    """Every tensor of a safetensors file of bfloat16, as float32."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"tensor {name} is {entry['dtype']}, not BF16")
        first, last = entry["data_offsets"]
        halves = np.memmap(path, np.uint16, "r", begin + first, ((last - first) // 2,))
        values = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
        yield name, values.reshape(entry["shape"])


def rotated_rows(weight: Floats, heads: int) -> Floats:
    """Query or key rows in GGUF's order: rope there turns neighbouring rows, in checkpoints row i and i + D/2."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)
