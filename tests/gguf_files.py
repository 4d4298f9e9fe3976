"""Writes a Hugging Face folder as a GGUF file with the package gguf, laid out as llama.cpp's converter does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
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

Config = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """How llama.cpp's converter writes a family. permuted: rows of q and k in the order of the rope of neighbouring
    features. metadata: what it writes besides the sizes. change: what it makes of a tensor. divide: of a tensor and its
    name, those that it writes in its place."""

    arch: str
    permuted: bool = False
    metadata: Callable[[Any, Any, Config], None] = lambda gguf, writer, config: None
    change: Callable[[str, NDArray[np.float32], Config], NDArray[np.float32]] = lambda name, values, config: (
        values
    )
    divide: Callable[[str, NDArray[np.float32], Config], list[tuple[str, NDArray[np.float32]]]] = (
        lambda name, values, config: [(name, values)]
    )


def _mistral(gguf: Any, writer: Any, config: Config) -> None:
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def _ministral3(gguf: Any, writer: Any, config: Config) -> None:
    rope = _rope(config)
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def _granite(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _gemma2(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def _windows(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def _gemma3(gguf: Any, writer: Any, config: Config) -> None:
    _windows(gguf, writer, config)
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])


def _gemma4(gguf: Any, writer: Any, config: Config) -> None:
    """Fields of layers are by number, as transformers writes them."""
    _windows(gguf, writer, config)
    types, layers = config["layer_types"], config["num_hidden_layers"]
    own = [config["per_layer_config"].get(str(index), {}) for index in range(layers)]
    shared, wide = config["num_kv_shared_layers"], config["intermediate_size"]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input", 0))
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if config.get("use_double_wide_mlp"):
        writer.add_feed_forward_length([wide] * (layers - shared) + [2 * wide] * shared)
    full = own[types.index("full_attention")]
    writer.add_key_length(full["head_dim"])
    writer.add_value_length(full["head_dim"])
    writer.add_rope_dimension_count(full["head_dim"])
    turned = int(full["head_dim"] * _rope(config)["partial_rotary_factor"] / 2)
    divisors = np.repeat(np.float32([1.0, 1e30]), [turned, full["head_dim"] // 2 - turned])
    writer.add_tensor("rope_freqs.weight", divisors)
    if "num_key_value_heads" in full:
        writer.add_head_count_kv(
            [one.get("num_key_value_heads", config["num_key_value_heads"]) for one in own]
        )
    if config.get("final_logit_softcapping"):
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("enable_moe_block"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _phi3(gguf: Any, writer: Any, config: Config) -> None:
    rope = _rope(config)
    writer.add_sliding_window(config.get("sliding_window") or 0)
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for name in ("long", "short"):
            writer.add_tensor(
                f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], dtype=np.float32)
            )


def _cohere2(gguf: Any, writer: Any, config: Config) -> None:
    _windows(gguf, writer, config)
    writer.add_logit_scale(config["logit_scale"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _neox(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_parallel_residual(config["use_parallel_residual"])


def _experts(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if config["model_type"] == "mixtral":
        _mistral(gguf, writer, config)
        return
    if config["model_type"] == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        return
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _routed_experts(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config.get("norm_topk_prob", False))
    sigmoid = config["model_type"] != "deepseek_v2"
    kinds = gguf.ExpertGatingFuncType
    writer.add_expert_gating_func(kinds.SIGMOID if sigmoid else kinds.SOFTMAX)
    if config["n_group"] > 1:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])


def _llama4(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])


def _mpt(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_max_alibi_bias(float(config["attn_config"]["alibi_bias_max"]))


def _delta(gguf: Any, writer: Any, config: Config) -> None:
    heads = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * heads)
    writer.add_full_attention_interval(config.get("full_attention_interval", 4))
    if config["model_type"] != "qwen3_next":
        pairs = int(_head_dim(config) * _rope(config)["partial_rotary_factor"]) // 2
        writer.add_rope_dimension_sections([(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])
    if config.get("num_experts"):
        _experts(gguf, writer, config)


def _lfm2(gguf: Any, writer: Any, config: Config) -> None:
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _deepseek2(gguf: Any, writer: Any, config: Config) -> None:
    if config.get("q_lora_rank"):
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])
    _routed_experts(gguf, writer, config)
    if _rope(config).get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * _rope(config)["mscale_all_dim"])


def _whole_norms(name: str, values: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    return values + 1 if name.endswith("norm.weight") else values


def _of_delta(name: str, values: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    """Rates in place of their logarithms, norms whole."""
    if name.endswith(".A_log"):
        return -np.exp(values)
    return values if name.endswith("linear_attn.norm.weight") else _whole_norms(name, values, config)


def _tiled(name: str, values: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    """Qwen3.5: as `_of_delta`, and the first heads of values of all key heads before the second ones."""
    values = _of_delta(name, values, config)
    part = name.split(".linear_attn.")[-1]
    if part == name or part == "norm.weight":
        return values
    key_heads, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    others = (
        2 * key_heads * config["linear_key_head_dim"] if part.startswith(("in_proj_qkv", "conv1d")) else 0
    )
    order = np.arange(values.shape[part.startswith("out_proj")] - others).reshape(
        key_heads, heads // key_heads, -1
    )
    order = np.concatenate([np.arange(others), others + order.swapaxes(0, 1).reshape(-1)])
    return values[:, order] if part.startswith("out_proj") else values[order]


def _apart(name: str, values: NDArray[np.float32], config: Config) -> list[tuple[str, NDArray[np.float32]]]:
    """Qwen3-Next: q, k, v and gate of all heads one after the other, the gate in a tensor of its own."""
    if "in_proj_qkvz" not in name:
        return [(name, values)]
    key, heads = config["linear_key_head_dim"], config["linear_num_key_heads"]
    value = config["linear_value_head_dim"] * config["linear_num_value_heads"] // heads
    groups = values.reshape(heads, 2 * (key + value), -1)
    *qkv, gate = (
        part.reshape(-1, values.shape[1])
        for part in np.split(groups, [key, 2 * key, 2 * key + value], axis=1)
    )
    return [(name.replace("qkvz", "qkv"), np.concatenate(qkv)), (name.replace("qkvz", "z"), gate)]


def _turned_experts(
    name: str, values: NDArray[np.float32], config: Config
) -> list[tuple[str, NDArray[np.float32]]]:
    """Llama 4: matrices of experts as [rows, columns], gates apart from what they multiply."""
    if ".experts." not in name:
        return [(name, values)]
    rows = np.ascontiguousarray(values.swapaxes(1, 2))
    if name.endswith("down_proj"):
        return [(f"{name}.weight", rows)]
    gate, up = np.split(rows, 2, axis=1)
    module = name.removesuffix("gate_up_proj")
    return [(f"{module}gate_proj.weight", gate), (f"{module}up_proj.weight", up)]


def _in_two(name: str, values: NDArray[np.float32], config: Config) -> list[tuple[str, NDArray[np.float32]]]:
    """Granite 4: the gate apart from what it multiplies."""
    if "shared_mlp" not in name:
        return [(name, values)]
    module = name.replace("shared_mlp", "mlp").rsplit(".", 2)[0]
    if "output_linear" in name:
        return [(f"{module}.down_proj.weight", values)]
    gate, up = np.split(values, 2)
    return [(f"{module}.gate_proj.weight", gate), (f"{module}.up_proj.weight", up)]


def _without_prefix(
    name: str, values: NDArray[np.float32], config: Config
) -> list[tuple[str, NDArray[np.float32]]]:
    return [(name.removeprefix("transformer."), values)]


def _neox_rows(name: str, values: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    if "query_key_value" not in name:
        return values
    heads = values.reshape(_size(config, "num_attention_heads", "n_head"), 3, -1, *values.shape[1:])
    return np.concatenate([heads[:, part].reshape(-1, *values.shape[1:]) for part in range(3)])


def _transposed(name: str, values: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    return np.ascontiguousarray(values.T) if ".h." in name and values.ndim == 2 else values


LAYOUTS = {
    "llama": Layout("llama", permuted=True),
    "mistral": Layout("llama", permuted=True, metadata=_mistral),
    "ministral3": Layout("mistral3", permuted=True, metadata=_ministral3),
    "qwen2": Layout("qwen2"),
    "qwen3": Layout("qwen3"),
    "mixtral": Layout("llama", permuted=True, metadata=_experts),
    "qwen2_moe": Layout("qwen2moe", metadata=_experts),
    "qwen3_moe": Layout("qwen3moe", metadata=_experts),
    "gpt_oss": Layout("gpt-oss", metadata=_experts),
    "deepseek_v2": Layout("deepseek2", metadata=_deepseek2),
    "deepseek_v3": Layout("deepseek2", metadata=_deepseek2),
    "glm4_moe_lite": Layout("deepseek2", metadata=_deepseek2),
    "llama4_text": Layout("llama4", metadata=_llama4, divide=_turned_experts),
    "glm4_moe": Layout("glm4moe", metadata=_routed_experts),
    "qwen3_next": Layout("qwen3next", metadata=_delta, change=_of_delta, divide=_apart),
    "qwen3_5_text": Layout("qwen35", metadata=_delta, change=_tiled),
    "qwen3_5_moe_text": Layout("qwen35moe", metadata=_delta, change=_tiled),
    "lfm2": Layout("lfm2", metadata=_lfm2),
    "lfm2_moe": Layout("lfm2moe", metadata=_lfm2),
    "smollm3": Layout("smollm3", permuted=True),
    "granite": Layout("granite", permuted=True, metadata=_granite),
    "granitemoehybrid": Layout("granite", permuted=True, metadata=_granite, divide=_in_two),
    "seed_oss": Layout("seed_oss"),
    "gemma": Layout("gemma", change=_whole_norms),
    "gemma2": Layout("gemma2", metadata=_gemma2, change=_whole_norms),
    "gemma3_text": Layout("gemma3", metadata=_gemma3, change=_whole_norms),
    "gemma4_text": Layout("gemma4", metadata=_gemma4),
    "gemma4_unified_text": Layout("gemma4", metadata=_gemma4),
    "phi3": Layout("phi3", metadata=_phi3),
    "olmo2": Layout("olmo2"),
    "olmo3": Layout("olmo2", metadata=_windows),
    "cohere2": Layout("cohere2", metadata=_cohere2),
    "glm": Layout("chatglm"),
    "glm4": Layout("glm4"),
    "starcoder2": Layout("starcoder2", metadata=_mistral),
    "gpt_neox": Layout("gptneox", metadata=_neox, change=_neox_rows),
    "bloom": Layout("bloom", change=_neox_rows, divide=_without_prefix),
    "mpt": Layout("mpt", metadata=_mpt),
    "gpt2": Layout("gpt2", change=_transposed),
}
"""By the config's model_type."""


def write_gguf(
    folder: Path,
    out: Path,
    kind: str | Choose,
    *,
    tokenizer: str | None = None,
    split: bool = True,
    **options: Any,
) -> Path:
    """`out`, with matrices of that type.

    split: matrices of heads are tensors of their own (latent attention), as in files since 2025. tokenizer: the kind of
    vocabulary that is named, where the folder has none. `options` are those of gguf.GGUFWriter,
    for split files.
    """
    gguf = needs.package("gguf")
    config = json.loads((folder / "config.json").read_text())
    layout = LAYOUTS[config["model_type"]]
    stored = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    further = int(any(name.startswith("mtp.") or ".eh_proj." in name for one in stored for name in one))
    names = _names(gguf, layout.arch, config, further)
    choose: Choose = (lambda name: kind) if isinstance(kind, str) else kind
    writer = gguf.GGUFWriter(out, layout.arch, **options)
    _add_sizes(gguf, writer, config, further)
    layout.metadata(gguf, writer, config)
    if tokenizer is not None:
        writer.add_tokenizer_model(tokenizer)
    if (folder / "tokenizer.json").is_file():
        _add_vocabulary(gguf, writer, json.loads((folder / "tokenizer.json").read_text()), config)
        if (folder / "chat_template.jinja").is_file():
            writer.add_chat_template((folder / "chat_template.jinja").read_text())
    for one_file in stored:
        beside = {_after_the_last(name, config): tensor for name, tensor in one_file.items()}
        for name, tensor in _with_experts_together(beside).items():
            if name == "lm_head.weight" and config.get("tie_word_embeddings"):
                continue
            values = tensor.float().numpy()
            values = layout.change(name, _turned(name, values, config) if layout.permuted else values, config)
            divide = _split_heads if split and "kv_b_proj" in name else layout.divide
            for one, part in divide(name, values, config):
                _add_tensor(gguf, writer, names(_as_asked(one)), part, choose)
    if (divisors := _rope_divisors(config)) is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


_NEXT = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head.norm",
}
"""Qwen's parts of the layer that predicts further tokens, and those of DeepSeek."""


def _after_the_last(name: str, config: Config) -> str:
    """With that layer of Qwen's after the last one, as the other families have it."""
    if not name.startswith("mtp."):
        return name
    layer, part = f"model.layers.{_size(config, *_LAYERS)}.", name.removeprefix("mtp.")
    if part.startswith("layers.0."):
        return layer + part.removeprefix("layers.0.")
    return f"{layer}{_NEXT[part.removesuffix('.weight')]}.weight"


def _as_asked(name: str) -> str:
    """What the converter looks its name up by."""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    return name.replace(".dt_bias", ".dt_proj.bias").replace(".expert_bias", ".expert_bias.bias")


def _split_heads(
    name: str, values: NDArray[np.float32], config: Config
) -> list[tuple[str, NDArray[np.float32]]]:
    """Those of keys, transposed, and of values."""
    heads = values.reshape(config["num_attention_heads"], -1, values.shape[-1])
    keys, of_values = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
    return [
        (name.replace("kv_b", "k_b"), np.ascontiguousarray(keys.swapaxes(1, 2))),
        (name.replace("kv_b", "v_b"), np.ascontiguousarray(of_values)),
    ]


def _with_experts_together(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One tensor for each projection of all experts of a layer."""
    found: dict[str, torch.Tensor] = {}
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if ".mlp.experts." in name and match is None:
            found |= _in_halves(name, tensor)
        elif match is None:
            found[name] = tensor
        else:
            of_layers = "block_sparse_moe" in name or "feed_forward" in name
            layer = match[1].replace("model.", "", 1) if of_layers else match[1]
            together = f"{layer.replace('block_sparse_moe', 'feed_forward')}{match[3]}"
            experts.setdefault(together, {})[int(match[2])] = tensor
    return found | {
        name: torch.stack([ones[number] for number in range(len(ones))]) for name, ones in experts.items()
    }


def _in_halves(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """gpt-oss: rows of gate and up in turn, matrices as [columns, rows]."""
    layer, part = name.rsplit(".", 1)
    end = "bias" if part.endswith("_bias") else "weight"
    rows = tensor if end == "bias" else tensor.transpose(1, 2).contiguous()
    if part.startswith("down"):
        return {f"{layer}.down_proj.{end}": rows}
    return {f"{layer}.gate_proj.{end}": rows[:, 0::2], f"{layer}.up_proj.{end}": rows[:, 1::2]}


_IN_FLOAT32 = ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv")

_EXPERT = re.compile(r"(model\.layers\.\d+\.\w+\.experts\.)(\d+)\.(\w+\.weight)")


def _add_tensor(gguf: Any, writer: Any, name: str, values: NDArray[np.float32], choose: Choose) -> None:
    values = np.ascontiguousarray(values.squeeze())
    if values.ndim == 1 or name.endswith(".bias") or any(one in name for one in _IN_FLOAT32):
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


_SCALES = {".router.scale": "ffn_gate_inp", ".per_expert_scale": "ffn_down_exps"}
_ENDINGS = (".weight", ".bias", ".sinks", ".A_log")


_FURTHER = re.compile(
    r"model\.layers\.(\d+)\.(eh_proj|enorm|hnorm|embed_tokens|shared_head\.norm|shared_head\.head)\.weight"
)
"""Written by later versions of the converter for more architectures than the package gguf knows."""


def _names(gguf: Any, arch: str, config: Config, further: int) -> Callable[[str], str]:
    """From a checkpoint's names to those of the file, which has so many layers that predict further tokens."""
    number = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    table = gguf.get_tensor_name_map(number, _size(config, *_LAYERS) + further)

    def name(of: str) -> str:
        for end, part in _SCALES.items():
            if of.endswith(end):
                return f"blk.{of.split('.')[2]}.{part}.scale"
        if match := _FURTHER.fullmatch(of):
            return f"blk.{match[1]}.nextn.{match[2].replace('.', '_')}.weight"
        of = of if of.endswith(_ENDINGS) else f"{of}.weight"
        found: str | None = table.get_name(of, try_suffixes=(".weight", ".bias"))
        found = f"{found}.weight" if of.endswith(".sinks") else found
        assert found is not None, of
        return found

    return name


_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")


def _size(config: Config, *names: str) -> int:
    """The first of these fields that the config has."""
    return int(next(config[name] for name in names if config.get(name) is not None))


def _turned(name: str, values: NDArray[np.float32], config: Config) -> NDArray[np.float32]:
    """Rows of q and k with the two halves of each head shuffled into each other."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    count = heads.get(name.split(".")[-2])
    if count is None:
        return values
    halves = values.reshape(count, 2, len(values) // count // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _rope(config: Config) -> dict[str, Any]:
    """Of the layers with full attention."""
    found: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = found.get("full_attention", found)
    theta, turned = config.get("rope_theta", 10_000.0), config.get("partial_rotary_factor", 1.0)
    return {"rope_theta": theta, "rope_type": "default", "partial_rotary_factor": turned, **found}


def _head_dim(config: Config) -> int:
    hidden, heads = _size(config, *_HIDDEN), _size(config, *_HEADS)
    return int(config.get("head_dim") or hidden // heads)


def _rope_divisors(config: Config) -> NDArray[np.float32] | None:
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


def _add_sizes(gguf: Any, writer: Any, config: Config, further: int) -> None:
    rope, hidden = _rope(config), _size(config, *_HIDDEN)
    writer.add_context_length(
        _size(config, "max_position_embeddings", "n_positions", "max_seq_len", "hidden_size")
    )
    writer.add_embedding_length(hidden)
    writer.add_block_count(_size(config, *_LAYERS) + further)
    if further:
        writer.add_nextn_predict_layers(further)
    plain = config["model_type"] in ("gpt2", "bloom", "mpt")
    inner = config.get("n_inner") or 4 * hidden if plain else config.get("intermediate_size")
    inner = config.get("intermediate_size_mlp") or config.get("shared_intermediate_size") or inner
    if config["model_type"] == "lfm2" and config["block_auto_adjust_ff_dim"]:
        step = config["block_multiple_of"]
        inner = -(-int(2 * inner / 3) // step) * step
    if inner is not None:
        writer.add_feed_forward_length(inner)
    writer.add_head_count(_size(config, *_HEADS))
    if config.get("num_key_value_heads") and config["model_type"] not in ("gpt_neox", "gpt2", "bloom", "mpt"):
        heads = config["num_key_value_heads"]
        conv = [kind == "conv" for kind in config.get("layer_types") or ()]
        writer.add_head_count_kv([0 if one else heads for one in conv] if any(conv) else heads)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for name in ("layer_norm_eps", "norm_epsilon", "layer_norm_epsilon"):
        if name in config:
            writer.add_layer_norm_eps(config[name])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(_head_dim(config) * rope.get("partial_rotary_factor", 1.0)))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("attention_factor") is not None:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])


def _add_vocabulary(gguf: Any, writer: Any, tokenizer: dict[str, Any], config: Config) -> None:
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
