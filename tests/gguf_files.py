"""Writes a Hugging Face folder as a GGUF file with the package gguf, laid out as llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from headrace.gguf.types import TYPES
from headrace.models.gguf.encode import encode
from tests import needs

Choose = Callable[[str], str]
"""From a matrix's GGUF name to the name of its type."""

_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


def write_gguf(folder: Path, out: Path, kind: str | Choose, **options: Any) -> Path:
    """`out`, with matrices of that type. `options` are those of gguf.GGUFWriter, for split files."""
    gguf = needs.package("gguf")
    config = json.loads((folder / "config.json").read_text())
    arch = _ARCHITECTURES[config["model_type"]]
    choose: Choose = (lambda name: kind) if isinstance(kind, str) else kind
    writer = gguf.GGUFWriter(out, arch, **options)
    _add_sizes(gguf, writer, config)
    if (folder / "tokenizer.json").is_file():
        _add_vocabulary(gguf, writer, json.loads((folder / "tokenizer.json").read_text()), config)
        if (folder / "chat_template.jinja").is_file():
            writer.add_chat_template((folder / "chat_template.jinja").read_text())
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            values = tensor.float().numpy()
            if arch == "llama":
                values = _turned(name, values, config)
            _add_tensor(gguf, writer, _name(name), values, choose)
    if (divisors := _rope_divisors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _add_tensor(gguf: Any, writer: Any, name: str, values: NDArray[np.float32], choose: Choose) -> None:
    if values.ndim == 1:
        writer.add_tensor(name, values)
        return
    kind = choose(name)
    writer.add_tensor(name, rounded(values, kind), raw_dtype=gguf.GGMLQuantizationType[kind])


def rounded(values: NDArray[np.float32], kind: str) -> NDArray[Any]:
    """As the file holds it: rounded by the package gguf, or here where it cannot."""
    gguf = needs.package("gguf")
    try:
        raw: NDArray[Any] = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        return raw
    except NotImplementedError:
        return encode(values, TYPES[kind])


def _name(name: str) -> str:
    if name in _NAMES:
        return _NAMES[name]
    _, _, index, rest = name.split(".", 3)
    part, end = rest.rsplit(".", 1)
    return f"blk.{index}.{_PARTS[part]}.{end}"


def _turned(name: str, values: NDArray[np.float32], config: dict[str, Any]) -> NDArray[np.float32]:
    """Rows of q and k with the two halves of each head shuffled into each other."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = heads.get(name.split(".")[-2])
    if count is None:
        return values
    halves = values.reshape(count, 2, len(values) // count // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return {"rope_theta": config.get("rope_theta", 10_000.0), "rope_type": "default", **found}


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _rope_divisors(config: dict[str, Any]) -> NDArray[np.float32] | None:
    """What llama3's scaling divides each frequency by, from transformers' own frequencies."""
    rope = _rope(config)
    if rope["rope_type"] != "llama3":
        return None
    transformers = needs.package("transformers")
    rotary = needs.package("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS["llama3"]
    scaled, _ = rotary(transformers.LlamaConfig(**config), "cpu")
    plain = rope["rope_theta"] ** (
        -torch.arange(0, _head_dim(config), 2, dtype=torch.float64) / _head_dim(config)
    )
    return (plain / scaled.double()).float().numpy()


def _add_sizes(gguf: Any, writer: Any, config: dict[str, Any]) -> None:
    rope = _rope(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    if config["model_type"] == "mistral" and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("attention_factor") is not None:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])


def _add_vocabulary(gguf: Any, writer: Any, tokenizer: dict[str, Any], config: dict[str, Any]) -> None:
    """Byte-level BPE, as the bundled models have it."""
    ids = {
        **tokenizer["model"]["vocab"],
        **{token["content"]: token["id"] for token in tokenizer["added_tokens"]},
    }
    special = {token["id"] for token in tokenizer["added_tokens"]}
    texts = {number: text for text, number in ids.items()}
    size = config["vocab_size"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts.get(number, f"[unused {number}]") for number in range(size)])
    control, normal, unused = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.UNUSED
    writer.add_token_types(
        [control if n in special else normal if n in texts else unused for n in range(size)]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(tokenizer.get("post_processor") is not None)
