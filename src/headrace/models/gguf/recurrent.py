"""Architectures whose layers are partly recurrent: what their files say."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.families.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_INTERMEDIATE
from headrace.models.families.reading import FULL
from headrace.models.families.recurrent import CONV, LINEAR, MAX_WIDTH
from headrace.models.gguf.facts import (
    EXPERT_KEYS,
    Architecture,
    Facts,
    Fields,
    experts_of,
    has_sigmoids,
    no_window,
)

_MAX_INNER = MAX_HEADS * MAX_HEAD_DIM


def _delta(facts: Facts) -> Fields:
    """Layers with the gated delta rule. The converter has added one to the norms' weights, and laid q, k and v of all
    heads one after the other."""
    no_window(facts)
    reader, count = facts.reader, facts.config["num_hidden_layers"]
    heads = reader.integer("ssm.time_step_rank", 1, MAX_HEADS)
    inner = reader.integer("ssm.inner_size", 1, _MAX_INNER)
    if inner % heads:
        raise CheckpointError(
            f"ssm.inner_size {inner} in {reader.where} must be a multiple of the {heads} of ssm.time_step_rank"
        )
    recurrent = reader.flags("attention.recurrent_layers", facts.blocks)
    if recurrent is None:
        period = reader.integer("full_attention_interval", 1, 1024, 4)
        recurrent = [(index + 1) % period != 0 for index in range(facts.blocks)]
    return {
        "norm_weight_offset": 0.0,
        "layer_types": [LINEAR if one else FULL for one in recurrent[:count]],
        "attention_bias": facts.has_bias("attn_output"),
        "linear_num_value_heads": heads,
        "linear_num_key_heads": reader.integer("ssm.group_count", 1, MAX_HEADS),
        "linear_key_head_dim": reader.integer("ssm.state_size", 1, MAX_HEAD_DIM),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": reader.integer("ssm.conv_kernel", 2, MAX_WIDTH),
    }


def _qwen_experts(facts: Facts) -> Fields:
    """llama.cpp divides the weights by their sum, whatever the file says."""
    reader = facts.reader
    width = reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE)
    return {
        **experts_of(facts),
        "norm_topk_prob": reader.flag("expert_weights_norm", True),
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": reader.integer(
            "expert_shared_feed_forward_length", 1, MAX_INTERMEDIATE, width
        ),
    }


def _qwen3_next(facts: Facts) -> Fields:
    """Files of 2025 have q, k, v and gate in one tensor, as checkpoints do."""
    return {**_delta(facts), **_qwen_experts(facts), "linear_qkv_apart": not facts.has_tensor("ssm_in")}


def _qwen35(facts: Facts) -> Fields:
    """Heads of values stand in the order in which ggml repeats those of keys."""
    return {**_delta(facts), "linear_heads_tiled": True}


def _qwen35_moe(facts: Facts) -> Fields:
    return {**_qwen35(facts), **_qwen_experts(facts)}


def _lfm2(facts: Facts) -> Fields:
    """Layers that attend are those with KV heads. `feed_forward_length` is what the config's number comes to."""
    no_window(facts)
    reader, config = facts.reader, facts.config
    heads = reader.by_layer(
        "attention.head_count_kv", facts.blocks, 0, MAX_HEADS, config["num_attention_heads"]
    )
    return {
        "norm_eps": config["rms_norm_eps"],
        "layer_types": [FULL if one else CONV for one in heads[: config["num_hidden_layers"]]],
        "conv_L_cache": reader.integer("shortconv.l_cache", 2, MAX_WIDTH),
        "conv_bias": facts.has_bias("shortconv.in_proj"),
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(facts: Facts) -> Fields:
    """llama.cpp divides the weights by their sum, whatever the file says."""
    reader = facts.reader
    if not has_sigmoids(facts):
        raise UnsupportedModel(
            f"{facts.model.name} has a router with softmax, which is not supported with lfm2moe"
        )
    found = experts_of(facts)
    dense = found.pop("mlp_only_layers")
    if dense != [*range(len(dense))]:
        raise UnsupportedModel(f"{facts.model.name} has layers without experts after such with them")
    return {
        **_lfm2(facts),
        **found,
        "num_dense_layers": len(dense),
        "norm_topk_prob": reader.flag("expert_weights_norm", True),
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in facts.model.names()),
        "moe_intermediate_size": reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE),
    }


_POST_NORM = {"post_attention_norm": "ffn_norm"}
_EMBEDDING_NORM = {"token_embd_norm": "output_norm"}

RECURRENT: Mapping[str, Architecture] = {
    "qwen3next": Architecture(
        "Qwen3NextForCausalLM", _qwen3_next, partial=True, reads=EXPERT_KEYS, renamed=_POST_NORM
    ),
    "qwen35": Architecture("Qwen3_5ForCausalLM", _qwen35, partial=True, renamed=_POST_NORM),
    "qwen35moe": Architecture(
        "Qwen3_5MoeForCausalLM", _qwen35_moe, partial=True, reads=EXPERT_KEYS, renamed=_POST_NORM
    ),
    "lfm2": Architecture("Lfm2ForCausalLM", _lfm2, hybrid=True, renamed=_EMBEDDING_NORM),
    "lfm2moe": Architecture(
        "Lfm2MoeForCausalLM", _lfm2_moe, hybrid=True, renamed=_EMBEDDING_NORM,
        reads=EXPERT_KEYS | {"expert_gating_func"},
    ),
}  # fmt: skip
