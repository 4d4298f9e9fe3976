"""What each value of `general.architecture` is: the family, and what its files say in a way of their own.

Keys and layouts are those of llama.cpp's converter, https://github.com/ggml-org/llama.cpp/tree/master/conversion. A
family that arrives later is one more entry in `ARCHITECTURES`.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.families.limits import MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE
from headrace.models.families.reading import FULL, SLIDING
from headrace.models.gguf.facts import (
    EXPERT_KEYS,
    LARGE,
    Architecture,
    Facts,
    Fields,
    experts_of,
    has_sigmoids,
    no_window,
    routed_experts,
    window_of,
)
from headrace.models.gguf.names import GGUF_NAMES, LONG_FACTORS, SHORT_FACTORS
from headrace.models.gguf.recurrent import RECURRENT
from headrace.models.rope_config import MAX_POSITION


def _llama(facts: Facts) -> Fields:
    """Mistral's and Mixtral's files have this name too: they differ in their window and in their experts."""
    if facts.reader.integer("expert_count", 0, MAX_EXPERTS, 0):
        window = window_of(facts)
        experts = {"architectures": ["MixtralForCausalLM"], **experts_of(facts, "num_local_experts")}
        return {**experts, "norm_topk_prob": True, **({"sliding_window": window} if window else {})}
    biases = {"attention_bias": facts.has_bias("attn_output"), "mlp_bias": facts.has_bias("ffn_down")}
    window = window_of(facts)
    if not window:
        return biases
    return {**biases, "architectures": ["MistralForCausalLM"], "sliding_window": window}


def _qwen2_moe(facts: Facts) -> Fields:
    no_window(facts)
    reader = facts.reader
    return {
        **experts_of(facts),
        "norm_topk_prob": reader.flag("expert_weights_norm", False),
        "moe_intermediate_size": reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE),
        "shared_expert_intermediate_size": reader.integer(
            "expert_shared_feed_forward_length", 1, MAX_INTERMEDIATE
        ),
        "qkv_bias": facts.has_bias("attn_q"),
    }


def _qwen3_moe(facts: Facts) -> Fields:
    """llama.cpp divides the weights by their sum, whatever the file says."""
    no_window(facts)
    return {
        **experts_of(facts),
        "attention_bias": facts.has_bias("attn_output"),
        "norm_topk_prob": facts.reader.flag("expert_weights_norm", True),
        "moe_intermediate_size": facts.reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE),
    }


def _deepseek2(facts: Facts) -> Fields:
    """DeepSeek V2, or V3 and GLM-4.7-Flash, whose router has sigmoids. Files of early 2025 and before state the sizes
    of a head, later ones those of the cache, and of a head under names of their own."""
    no_window(facts)
    reader = facts.reader
    rotated = facts.config["head_dim"]
    sizes = {}
    for name in ("key_length", "value_length"):
        own = f"attention.{name}_mla"
        sizes[name] = reader.integer(own if reader.has(own) else f"attention.{name}", 1, MAX_HEAD_DIM)
    if sizes["key_length"] <= rotated:
        raise CheckpointError(
            f"{facts.model.name} has keys of {sizes['key_length']} features, of which {rotated} are rotated"
        )
    found: Fields = {
        "kv_lora_rank": reader.integer("attention.kv_lora_rank", 1, MAX_HEAD_DIM),
        "qk_nope_head_dim": sizes["key_length"] - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": sizes["value_length"],
        "attention_bias": facts.has_bias("attn_output"),
    }
    if facts.has_tensor("attn_q_a"):
        found["q_lora_rank"] = reader.integer("attention.q_lora_rank", 1, MAX_INTERMEDIATE)
    scaling = dict(facts.config.get("rope_scaling") or {})
    if scaling:  # a tenth of it, in float32
        mscale = float(f"{10 * reader.number('rope.scaling.yarn_log_multiplier', 0.0, 1e3, 0.0):.6g}")
        found["rope_scaling"] = scaling | ({"mscale": mscale, "mscale_all_dim": mscale} if mscale else {})
    found |= routed_experts(facts)
    if has_sigmoids(facts):
        return {**found, "architectures": ["DeepseekV3ForCausalLM"]}
    return {**found, "topk_method": "greedy" if found.get("n_group", 1) == 1 else "group_limited_greedy"}


def _llama4(facts: Facts) -> Fields:
    """Chunks of 8192 tokens, every fourth layer without positions, and norms of heads but in the model of 128 experts:
    llama.cpp knows these by heart. A window of 0 stands for full attention with positions everywhere."""
    reader, config = facts.reader, facts.config
    count = config["num_hidden_layers"]
    experts = experts_of(facts, "num_local_experts")
    dense = experts.pop("mlp_only_layers")
    plain = reader.integer("attention.sliding_window", 0, MAX_POSITION, 8192) == 0
    types = {"layer_types": [FULL] * count, "no_rope_layers": [1] * count} if plain else {}
    return {
        **experts,
        **types,
        "use_qk_norm": experts["num_experts"] != 128,
        "moe_layers": [index for index in range(count) if index not in dense],
        "intermediate_size": reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE),
        "intermediate_size_mlp": config["intermediate_size"],
        "attention_bias": facts.has_bias("attn_q"),
    }


def _glm4_moe(facts: Facts) -> Fields:
    no_window(facts)
    if not has_sigmoids(facts):
        raise UnsupportedModel(
            f"{facts.model.name} has a router with softmax, which is not supported with glm4moe"
        )
    return {
        **routed_experts(facts),
        "use_qk_norm": facts.has_tensor("attn_q_norm"),
        "attention_bias": facts.has_bias("attn_q"),
    }


def _qwen2(facts: Facts) -> Fields:
    no_window(facts)
    return {}


def _qwen3(facts: Facts) -> Fields:
    no_window(facts)
    return {"attention_bias": facts.has_bias("attn_output")}


def _mistral3(facts: Facts) -> Fields:
    reader, config = facts.reader, facts.config
    beta = reader.number("attention.temperature_scale", 0.0, 1e3, 0.0)
    scaling = dict(config.get("rope_scaling") or {})
    if scaling:
        mscale = reader.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0)
        scaling |= {"mscale": mscale, "mscale_all_dim": mscale} if mscale else {}
        scaling["llama_4_scaling_beta"] = beta
    window = window_of(facts)
    return {"rope_scaling": scaling, **({"sliding_window": window} if window else {})}


def _gpt_oss(facts: Facts) -> Fields:
    """YaRN without rounding, which files do not say."""
    reader, scaling = facts.reader, facts.config.get("rope_scaling")
    return {
        **experts_of(facts, "num_local_experts"),
        "intermediate_size": reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE),
        "attention_bias": facts.has_bias("attn_q"),
        "sliding_window": reader.integer("attention.sliding_window", 1, MAX_POSITION, 128),
        "layer_types": facts.layer_types(lambda index: index % 2 == 1),
        "rope_scaling": {**scaling, "truncate": False} if scaling else {"rope_type": "default"},
    }


def _smollm3(facts: Facts) -> Fields:
    no_window(facts)
    return {"attention_bias": facts.has_bias("attn_output"), "mlp_bias": facts.has_bias("ffn_down")}


def _granite(facts: Facts) -> Fields:
    no_window(facts)
    reader = facts.reader
    return {
        "attention_bias": facts.has_bias("attn_output"),
        "mlp_bias": facts.has_bias("ffn_down"),
        "attention_multiplier": reader.number(
            "attention.scale", 1e-9, LARGE, facts.config["head_dim"] ** -0.5
        ),
        "embedding_multiplier": reader.number("embedding_scale", 1e-9, LARGE, 1.0),
        "residual_multiplier": reader.number("residual_scale", 1e-9, LARGE, 1.0),
        "logits_scaling": reader.number("logit_scale", 1e-9, LARGE, 1.0),
    }


def _seed_oss(facts: Facts) -> Fields:
    no_window(facts)
    return {
        "attention_bias": facts.has_bias("attn_q"),
        "attention_out_bias": facts.has_bias("attn_output"),
        "mlp_bias": facts.has_bias("ffn_down"),
    }


def _gemma(facts: Facts) -> Fields:
    """The converter has added one to the norms' weights."""
    no_window(facts)
    return {"norm_weight_offset": 0.0}


def _gemma_scale(facts: Facts, largest: int) -> Fields:
    """Queries are scaled by the size of a head, but in the largest model, which has so many layers."""
    config = facts.config
    size = config["head_dim"]
    if config["num_hidden_layers"] == largest:
        size = config["hidden_size"] // config["num_attention_heads"]
    return {"query_pre_attn_scalar": size, "norm_weight_offset": 0.0}


def _gemma2(facts: Facts) -> Fields:
    reader = facts.reader
    return {
        **_gemma_scale(facts, 46),
        "attn_logit_softcapping": reader.number("attn_logit_softcapping", 1e-3, LARGE, 50.0),
        "final_logit_softcapping": reader.number("final_logit_softcapping", 1e-3, LARGE, 30.0),
        "sliding_window": reader.integer("attention.sliding_window", 1, MAX_POSITION, 4096),
        "layer_types": facts.layer_types(lambda index: index % 2 == 1),
    }


def _gemma3(facts: Facts) -> Fields:
    reader = facts.reader
    cap = reader.number("final_logit_softcapping", 0.0, LARGE, 0.0)
    window = reader.integer("attention.sliding_window", 0, MAX_POSITION, 0)
    types = facts.layer_types(lambda index: index % 6 == 5 or not window)
    return {
        **_gemma_scale(facts, 62),
        **({"final_logit_softcapping": cap} if cap else {}),
        **({"sliding_window": window} if window else {}),
        "rope_local_base_freq": reader.number("rope.freq_base_swa", 1.5, 1e15, 10_000.0),
        "layer_types": types,
    }


def _gemma4(facts: Facts) -> Fields:
    """Sizes of heads by layer. Features that rope leaves as they are have divisors so large that they do not turn."""
    reader, config = facts.reader, facts.config
    count, size = config["num_hidden_layers"], reader.integer("attention.key_length_swa", 1, MAX_HEAD_DIM)
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        reader.only(key, (size,), size)
    types = facts.layer_types(lambda index: index % 6 == 5)
    heads = reader.by_layer("attention.head_count_kv", count, 1, MAX_HEADS)
    own = {
        str(index): {"head_dim": size if kind == SLIDING else config["head_dim"], "num_key_value_heads": kv}
        for index, (kind, kv) in enumerate(zip(types, heads, strict=True))
    }
    shared = reader.integer("attention.shared_kv_layers", 0, count - 1, 0)
    wide = reader.by_layer("feed_forward_length", count, 1, MAX_INTERMEDIATE)
    doubled = wide == [wide[0]] * (count - shared) + [2 * wide[0]] * shared
    if not doubled and wide != [wide[0]] * count:
        raise UnsupportedModel(
            f"feed_forward_length in {facts.model.name} differs between layers otherwise than is known of this family"
        )
    full = next((index for index, kind in enumerate(types) if kind == FULL), 0)
    cap = reader.number("final_logit_softcapping", 0.0, LARGE, 0.0)
    window = reader.integer("attention.sliding_window", 0, MAX_POSITION, 0)
    theta = reader.number("rope.freq_base_swa", 1.5, 1e15, 10_000.0)
    found: Fields = {
        "layer_types": types,
        "per_layer_config": own,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": doubled and shared > 0,
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in facts.model,
        "hidden_size_per_layer_input": reader.integer("embedding_length_per_layer_input", 0, MAX_HIDDEN, 0),
        "rope_scaling": None,
        "rope_parameters": {
            FULL: {"rope_theta": config["rope_theta"], **(config.get("rope_scaling") or {})},
            SLIDING: {"rope_type": "default", "rope_theta": theta},
        },
        **({"final_logit_softcapping": cap} if cap else {}),
        **({"sliding_window": window} if window else {}),
    }
    if found["hidden_size_per_layer_input"]:
        table = facts.model.tensor(f"{GGUF_NAMES.per_layer_embed}.weight")
        if table is None or len(table.shape) != 2:
            raise CheckpointError(f"{facts.model.name} lacks the matrix {GGUF_NAMES.per_layer_embed}.weight")
        found["vocab_size_per_layer_input"] = table.shape[0]
    if reader.integer("expert_count", 0, MAX_EXPERTS, 0):
        experts = experts_of(facts)
        found |= {
            "enable_moe_block": True,
            "num_experts": experts["num_experts"],
            "top_k_experts": experts["num_experts_per_tok"],
            "moe_intermediate_size": reader.integer("expert_feed_forward_length", 1, MAX_INTERMEDIATE),
        }
    return found


def _phi3(facts: Facts) -> Fields:
    """Divisors of longrope are tensors. A window of 0 is none."""
    window = window_of(facts)
    found: Fields = {"sliding_window": window} if window else {}
    if LONG_FACTORS not in facts.model or SHORT_FACTORS not in facts.model:
        return found
    original = facts.reader.integer("rope.scaling.original_context_length", 1, MAX_POSITION)
    scaling: Fields = {
        "rope_type": "longrope",
        "long_factor": facts.floats(LONG_FACTORS),
        "short_factor": facts.floats(SHORT_FACTORS),
        "original_max_position_embeddings": original,
    }
    if facts.reader.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = facts.reader.number("rope.scaling.attn_factor", 0.0, 1e3)
    return {**found, "original_max_position_embeddings": original, "rope_scaling": scaling}


def _olmo2(facts: Facts) -> Fields:
    """OLMo 3's files have this name too, and a window."""
    window = window_of(facts)
    biases = {"attention_bias": facts.has_bias("attn_output")}
    if not window:
        return biases
    types = facts.layer_types(lambda index: index % 4 == 3)
    return {
        **biases,
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": window,
        "layer_types": types,
    }


def _cohere2(facts: Facts) -> Fields:
    reader = facts.reader
    return {
        "logit_scale": reader.number("logit_scale", 1e-9, LARGE, 1.0),
        "sliding_window": reader.integer("attention.sliding_window", 1, MAX_POSITION, 4096),
        "layer_types": facts.layer_types(lambda index: index % 4 == 3),
        "attention_bias": facts.has_bias("attn_output"),
    }


def _glm(facts: Facts) -> Fields:
    no_window(facts)
    return {"attention_bias": facts.has_bias("attn_q")}


def _starcoder2(facts: Facts) -> Fields:
    window = window_of(facts)
    return {"use_bias": facts.has_bias("ffn_down"), **({"sliding_window": window} if window else {})}


def _neox(facts: Facts) -> Fields:
    no_window(facts)
    return {
        "use_parallel_residual": facts.reader.flag("use_parallel_residual", True),
        "attention_bias": facts.has_bias("attn_qkv"),
    }


def _gpt2(facts: Facts) -> Fields:
    """The config has names of its own for most sizes."""
    no_window(facts)
    names = {
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
    }  # fmt: skip
    return {name: facts.config[other] for name, other in names.items()}


def _bloom(facts: Facts) -> Fields:
    no_window(facts)
    config = facts.config
    return {
        "n_head": config["num_attention_heads"],
        "n_layer": config["num_hidden_layers"],
        "seq_length": config["max_position_embeddings"],
    }


def _mpt(facts: Facts) -> Fields:
    no_window(facts)
    config = facts.config
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    if wide % hidden:
        raise UnsupportedModel(
            f"feed_forward_length {wide} in {facts.reader.where} is not a multiple of {hidden}"
        )
    return {
        "d_model": hidden,
        "n_heads": config["num_attention_heads"],
        "n_layers": config["num_hidden_layers"],
        "max_seq_len": config["max_position_embeddings"],
        "expansion_ratio": wide // hidden,
        "attn_config": {"alibi_bias_max": facts.reader.number("attention.max_alibi_bias", 1e-3, 64.0)},
    }


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        "LlamaForCausalLM", _llama, permuted=True, reads=EXPERT_KEYS,
        others=("MistralForCausalLM", "InternLM3ForCausalLM", "MixtralForCausalLM"),
    ),
    "mistral3": Architecture(
        "Ministral3ForCausalLM", _mistral3, permuted=True,
        reads=frozenset({"attention.temperature_scale", "rope.scaling.yarn_log_multiplier"}),
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", _qwen2),
    "qwen3": Architecture("Qwen3ForCausalLM", _qwen3),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", _qwen2_moe, reads=EXPERT_KEYS),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", _qwen3_moe, reads=EXPERT_KEYS),
    "gpt-oss": Architecture(
        "GptOssForCausalLM", _gpt_oss, reads=EXPERT_KEYS, renamed={"post_attention_norm": "ffn_norm"}
    ),
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM", _deepseek2, latent=True, others=("DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"),
        reads=EXPERT_KEYS | {
            "expert_gating_func", "expert_group_count", "expert_weights_scale", "rope.scaling.yarn_log_multiplier"
        },
    ),
    "llama4": Architecture("Llama4ForCausalLM", _llama4, reads=EXPERT_KEYS),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM", _glm4_moe, partial=True, renamed={"post_attention_norm": "ffn_norm"},
        reads=EXPERT_KEYS | {"expert_gating_func", "expert_group_count", "expert_weights_scale"},
    ),
    **RECURRENT,
    "smollm3": Architecture("SmolLM3ForCausalLM", _smollm3, permuted=True),
    "granite": Architecture(
        "GraniteForCausalLM", _granite, permuted=True, others=("GraniteMoeHybridForCausalLM",),
        reads=frozenset({"attention.scale", "embedding_scale", "residual_scale", "logit_scale"}),
    ),
    "seed_oss": Architecture("SeedOssForCausalLM", _seed_oss, renamed={"post_attention_norm": "ffn_norm"}),
    "gemma": Architecture("GemmaForCausalLM", _gemma),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", _gemma2, reads=frozenset({"attn_logit_softcapping", "final_logit_softcapping"})
    ),
    "gemma3": Architecture("Gemma3ForCausalLM", _gemma3, reads=frozenset({"final_logit_softcapping"})),
    "gemma4": Architecture(
        "Gemma4ForCausalLM", _gemma4, reads=EXPERT_KEYS | {"final_logit_softcapping"},
        others=("Gemma4UnifiedForCausalLM",),
        by_layer=frozenset({"attention.head_count_kv", "feed_forward_length"}),
    ),
    "phi3": Architecture("Phi3ForCausalLM", _phi3, partial=True, reads=frozenset({"rope.scaling.attn_factor"})),
    "olmo2": Architecture("Olmo2ForCausalLM", _olmo2, others=("Olmo3ForCausalLM",)),
    "cohere2": Architecture(
        "Cohere2ForCausalLM", _cohere2, eps="layer_norm_eps", reads=frozenset({"logit_scale"})
    ),
    "glm4": Architecture("Glm4ForCausalLM", _glm, partial=True),
    "chatglm": Architecture("GlmForCausalLM", _glm, partial=True),
    "starcoder2": Architecture("Starcoder2ForCausalLM", _starcoder2, eps="norm_epsilon"),
    "gptneox": Architecture(
        "GPTNeoXForCausalLM", _neox, eps="layer_norm_eps", partial=True,
        reads=frozenset({"use_parallel_residual"}),
    ),
    "bloom": Architecture("BloomForCausalLM", _bloom, eps="layer_norm_epsilon"),
    "mpt": Architecture(
        "MptForCausalLM", _mpt, eps="layer_norm_epsilon", reads=frozenset({"attention.max_alibi_bias"})
    ),
    "gpt2": Architecture("GPT2LMHeadModel", _gpt2, eps="layer_norm_epsilon"),
}  # fmt: skip
