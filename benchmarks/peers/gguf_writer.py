"""Writes a Llama model's Hugging Face folder as a GGUF file; runs in an environment that has the `gguf` package.

    python -m benchmarks.peers.gguf_writer FOLDER OUT.gguf BF16|F16|Q8_0|Q4_0

Every matrix gets the same format, embedding and head too, so that a step reads the whole file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf

from benchmarks.peers.gguf_layout import gguf_name, read_bfloat16, rotated_rows
from benchmarks.peers.vocabulary import SPECIAL, pairs, tokens


def write(folder: Path, out: Path, quantization: str) -> None:
    """Write `out` in the format `quantization`, a name of gguf.GGMLQuantizationType."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = gguf.GGMLQuantizationType[quantization]
    writer = gguf.GGUFWriter(out, "llama")
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
