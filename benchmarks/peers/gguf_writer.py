"""Writes a Llama model's Hugging Face folder as a GGUF file; runs in an environment that has the `gguf` package.

    python -m benchmarks.peers.gguf_writer FOLDER OUT.gguf Q8_0|Q4_0

Every matrix gets the same format, embedding and head too, so that a file's size says what a step reads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from benchmarks.peers.vocabulary import SPECIAL, pairs, tokens

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


def write(folder: Path, out: Path, quantization: str) -> None:
    """Write `out` in the format `quantization` (a name of gguf.GGMLQuantizationType); it appears only when complete."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = gguf.GGMLQuantizationType[quantization]
    draft = out.with_suffix(".part")
    writer = gguf.GGUFWriter(draft, "llama")
    _add_facts(writer, config, quantization)
    _add_vocabulary(writer, config["vocab_size"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in read_bfloat16(folder / "model.safetensors"):
        part = name.split(".")[-2]
        if part in heads:
            values = rotated_rows(values, heads[part])
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            packed = gguf.quants.quantize(values, kind)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=kind)
        print(gguf_name(name), flush=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    draft.rename(out)


def _add_facts(writer: Any, config: Mapping[str, Any], quantization: str) -> None:
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    writer.add_name("random weights")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantization}"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])


def _add_vocabulary(writer: Any, size: int) -> None:
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens(size))
    writer.add_token_types([control] * len(SPECIAL) + [normal] * (size - len(SPECIAL)))
    writer.add_token_merges([" ".join(pair) for pair in pairs(size - len(SPECIAL) - 256)])
    writer.add_bos_token_id(SPECIAL.index("<s>"))
    writer.add_eos_token_id(SPECIAL.index("</s>"))
    writer.add_unk_token_id(SPECIAL.index("<unk>"))
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
