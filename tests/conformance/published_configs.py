"""config.json files in the forms in which families are published: the keys of those files, small sizes.

They leave out what the family's class in transformers fills in, spell ropes as transformers 4 did, and hold keys that
nobody reads. By name.
"""

from __future__ import annotations

from typing import Any

YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 8.0, "original_max_position_embeddings": 64}
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "initializer_range": 0.02, "hidden_act": "silu", "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": True, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def config(architecture: str, model_type: str, without: str = "", **fields: Any) -> dict[str, Any]:
    """A config of these sizes; `without`: names that this family's files do not have."""
    made = {**SIZES, "architectures": [architecture], "model_type": model_type, **fields}
    return {key: value for key, value in made.items() if key not in without.split()}


def text_of(architecture: str, model_type: str, text: dict[str, Any], **outer: Any) -> dict[str, Any]:
    """A checkpoint of text and images."""
    text = {key: value for key, value in text.items() if key not in ("architectures", "transformers_version")}
    return {
        "architectures": [architecture], "model_type": model_type, "text_config": text, "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 32, "model_type": "siglip_vision_model", "num_hidden_layers": 2}, **outer,
    }  # fmt: skip


PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma": config("GemmaForCausalLM", "gemma", hidden_act="gelu", head_dim=16, hidden_activation=None),
    "gemma-2": config(
        "Gemma2ForCausalLM", "gemma2", hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
        head_dim=16, sliding_window=64, sliding_window_size=64, query_pre_attn_scalar=24, attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0, cache_implementation="hybrid", rope_theta=10000.0,
    ),
    "gemma-3-1b": config(
        "Gemma3ForCausalLM", "gemma3_text", "hidden_act", hidden_activation="gelu_pytorch_tanh", head_dim=16,
        attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=16, rope_local_base_freq=10000,
        rope_scaling=None, rope_theta=1000000, sliding_window=64, sliding_window_pattern=6,
        cache_implementation="hybrid", num_hidden_layers=8,
    ),
    "gemma-3-4b": text_of(
        "Gemma3ForConditionalGeneration", "gemma3",
        {"hidden_size": 64, "intermediate_size": 96, "model_type": "gemma3_text", "num_hidden_layers": 8,
         "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 64},
        boi_token_index=255999, eos_token_id=[1, 106], mm_tokens_per_image=256,
    ),
    "mistral-small-3.1": text_of(
        "Mistral3ForConditionalGeneration", "mistral3",
        config("", "mistral", head_dim=24, rope_theta=1e9, sliding_window=None), projector_hidden_act="gelu",
        spatial_merge_size=2,
    ),
    "smollm3": config(
        "SmolLM3ForCausalLM", "smollm3", no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0, 1, 1],
        layer_types=["full_attention"] * 6, max_window_layers=6, mlp_bias=False, rope_scaling=None,
        rope_theta=5000000.0, sliding_window=None, use_sliding_window=False, attention_bias=False,
    ),
    "granite-3": config(
        "GraniteForCausalLM", "granite", attention_multiplier=0.25, embedding_multiplier=12.0, logits_scaling=8.0,
        residual_multiplier=0.22, mlp_bias=False, attention_bias=False, rope_scaling=None, rope_theta=5000000.0,
        tie_word_embeddings=True,
    ),
    "granite-4-micro": config(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", attention_multiplier=0.25, embedding_multiplier=12,
        logits_scaling=10, residual_multiplier=0.22, layer_types=["attention"] * 6, num_local_experts=0,
        num_experts_per_tok=0, shared_intermediate_size=96, position_embedding_type="rope", rope_theta=10000000,
        rope_scaling=None, mamba_chunk_size=256, mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=32,
        mamba_d_state=16, mamba_expand=2, mamba_n_groups=1, mamba_n_heads=4, mamba_proj_bias=False,
        normalization_function="rmsnorm", output_router_logits=False, router_aux_loss_coef=0.01,
        tie_word_embeddings=True, init_method="mup", attention_bias=False,
    ),
    "seed-oss": config(
        "SeedOssForCausalLM", "seed_oss", attention_bias=True, attention_out_bias=False, head_dim=16, mlp_bias=False,
        residual_dropout=0.1, rope_scaling={"rope_type": "default"}, rope_theta=10000000.0, tie_word_embeddings=False,
    ),
    "phi-4-mini": config(
        "Phi3ForCausalLM", "phi3", "head_dim", hidden_size=96, partial_rotary_factor=0.75, sliding_window=262144,
        original_max_position_embeddings=64, full_attn_mod=1, interpolate_factor=1, lm_head_bias=False, mlp_bias=False,
        attention_bias=False, embd_pdrop=0.0, resid_pdrop=0.0, rope_theta=10000.0, tie_word_embeddings=True,
        rope_scaling={"long_factor": [1.0 + i / 4 for i in range(9)], "short_factor": [1.0] * 9, "type": "longrope"},
        auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
    ),
    "phi-3-mini": config(
        "Phi3ForCausalLM", "phi3", original_max_position_embeddings=512, rope_scaling=None, rope_theta=10000.0,
        sliding_window=47, embd_pdrop=0.0, resid_pdrop=0.0, tie_word_embeddings=False, attention_bias=False,
    ),
    "olmo-3": config(
        "Olmo3ForCausalLM", "olmo3", attention_bias=False, rope_theta=500000, sliding_window=48,
        rope_scaling={**YARN, "attention_factor": 1.2079441541679836, "rope_type": "yarn"}, tie_word_embeddings=False,
        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2,
        num_hidden_layers=8,
    ),
    "command-r7b": config(
        "Cohere2ForCausalLM", "cohere2", "rms_norm_eps", layer_norm_eps=1e-5, logit_scale=0.25, layer_switch=4,
        order_of_interleaved_layers="local_attn_first", position_embedding_type="rope_gptj", rotary_pct=1.0,
        rope_scaling=None, rope_theta=50000, sliding_window=48, sliding_window_pattern=4, use_embedding_sharing=True,
        use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=True, use_qk_norm=False,
        attention_bias=False, head_dim=16, cache_implementation="hybrid", num_hidden_layers=8,
    ),
    "glm-4-0414": config(
        "Glm4ForCausalLM", "glm4", attention_bias=False, head_dim=16, partial_rotary_factor=0.5, rope_theta=10000.0,
        eos_token_id=[2, 3, 4], pad_token_id=2, tie_word_embeddings=False,
    ),
    "starcoder2": config(
        "Starcoder2ForCausalLM", "starcoder2", "rms_norm_eps", hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-5,
        norm_type="layer_norm", mlp_type="default", use_bias=True, rope_theta=999999.4420358813, sliding_window=48,
        embedding_dropout=0.1, residual_dropout=0.1,
    ),
    "pythia": config(
        "GPTNeoXForCausalLM", "gpt_neox", "rms_norm_eps num_key_value_heads", hidden_act="gelu", layer_norm_eps=1e-5,
        rotary_emb_base=10000, rotary_pct=0.25, use_parallel_residual=True, tie_word_embeddings=False,
        classifier_dropout=0.1,
    ),
    "gpt2": {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 256,
        "embd_pdrop": 0.1, "eos_token_id": 256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2", "n_ctx": 128, "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 128,
        "resid_pdrop": 0.1, "summary_activation": None, "task_specific_params": {"text-generation": {"max_length": 50}},
        "vocab_size": 300,
    },
    "bloom": {
        "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
        "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "bos_token_id": 1, "eos_token_id": 2,
        "layer_norm_epsilon": 1e-05, "model_type": "bloom", "n_embed": 64, "n_inner": None, "n_layer": 3,
        "num_attention_heads": 4, "offset_alibi": 100, "pretraining_tp": 1, "seq_length": 128, "skip_bias_add": True,
        "unk_token_id": 0, "vocab_size": 300,
    },
    "mpt": {
        "architectures": ["MPTForCausalLM"], "model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 3,
        "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "clip_qkv": None,
                        "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "prefix_lm": False,
                        "qk_ln": False, "softmax_scale": None},
        "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "emb_pdrop": 0, "embedding_fraction": 1.0,
        "expansion_ratio": 4, "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 128,
        "no_bias": True, "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "tokenizer_name": "neox",
        "torch_dtype": "bfloat16", "use_cache": False, "verbose": 0, "vocab_size": 300,
    },
    "mixtral": config(
        "MixtralForCausalLM", "mixtral", num_experts_per_tok=2, num_local_experts=4, output_router_logits=False,
        rope_theta=1000000.0, router_aux_loss_coef=0.02, sliding_window=None, tie_word_embeddings=False,
    ),
    "qwen1.5-moe": config(
        "Qwen2MoeForCausalLM", "qwen2_moe", decoder_sparse_step=1, max_window_layers=21, moe_intermediate_size=32,
        norm_topk_prob=False, num_experts=6, num_experts_per_tok=4, shared_expert_intermediate_size=64,
        sliding_window=48, use_sliding_window=False, tie_word_embeddings=False, rope_theta=1000000.0,
    ),
    "qwen3-30b-a3b": config(
        "Qwen3MoeForCausalLM", "qwen3_moe", attention_bias=False, decoder_sparse_step=1, head_dim=32,
        max_window_layers=6, mlp_only_layers=[], moe_intermediate_size=32, norm_topk_prob=True, num_experts=6,
        num_experts_per_tok=2, rope_scaling=None, rope_theta=1000000.0, sliding_window=None, use_sliding_window=False,
        tie_word_embeddings=False,
    ),
    "qwen3-next": config(
        "Qwen3NextForCausalLM", "qwen3_next", decoder_sparse_step=1, full_attention_interval=4, head_dim=32,
        linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_value_head_dim=16, mlp_only_layers=[], moe_intermediate_size=32, norm_topk_prob=True, num_experts=6,
        num_experts_per_tok=2, output_router_logits=False, partial_rotary_factor=0.25, rope_scaling=None,
        rope_theta=10000000, router_aux_loss_coef=0.001, shared_expert_intermediate_size=32, tie_word_embeddings=False,
        use_sliding_window=False,
    ),
    "qwen3.5": text_of(
        "Qwen3_5ForConditionalGeneration", "qwen3_5",
        config("", "qwen3_5_text", "rope_theta torch_dtype", attention_bias=False, attn_output_gate=True,
               dtype="bfloat16", full_attention_interval=4, head_dim=32,
               layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
               linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
               linear_value_head_dim=16, mamba_ssm_dtype="float32", mlp_only_layers=[], mtp_num_hidden_layers=1,
               mtp_use_dedicated_embeddings=False, num_hidden_layers=8,
               partial_rotary_factor=0.25, tie_word_embeddings=True,
               rope_parameters={"mrope_interleaved": True, "mrope_section": [2, 1, 1], "rope_type": "default",
                                "rope_theta": 10000000, "partial_rotary_factor": 0.25}),
        image_token_id=250, tie_word_embeddings=True, video_token_id=251, vision_end_token_id=252,
    ),
    "gpt-oss": config(
        "GptOssForCausalLM", "gpt_oss", "torch_dtype", attention_bias=True, experts_per_token=2, head_dim=16,
        hidden_act="silu", initial_context_length=64, layer_types=["sliding_attention", "full_attention"] * 3,
        num_experts_per_tok=2, num_local_experts=4, output_router_logits=False, rope_theta=150000,
        rope_scaling={**YARN, "rope_type": "yarn", "truncate": False}, router_aux_loss_coef=0.9, sliding_window=48,
        swiglu_limit=7.0, tie_word_embeddings=False,
    ),
    "deepseek-v2-lite": config(
        "DeepseekV2ForCausalLM", "deepseek_v2", num_key_value_heads=4, attention_bias=False, aux_loss_alpha=0.001,
        ep_size=1, first_k_dense_replace=1, kv_lora_rank=32, moe_intermediate_size=32, moe_layer_freq=1, n_group=1,
        n_routed_experts=8, n_shared_experts=2, norm_topk_prob=False, num_experts_per_tok=3, pretraining_tp=1,
        q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8, rope_theta=10000, routed_scaling_factor=1.0,
        rope_scaling={**YARN, "mscale": 0.707, "mscale_all_dim": 0.707, "type": "yarn"}, scoring_func="softmax",
        seq_aux=True, tie_word_embeddings=False, topk_group=1, topk_method="greedy", v_head_dim=16,
        auto_map={"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    ),
    "deepseek-v3": config(
        "DeepseekV3ForCausalLM", "deepseek_v3", num_key_value_heads=4, attention_bias=False, ep_size=1,
        first_k_dense_replace=3, kv_lora_rank=32, moe_intermediate_size=32, moe_layer_freq=1, n_group=4,
        n_routed_experts=16, n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=4,
        num_nextn_predict_layers=1, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, rope_theta=10000,
        rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"}, routed_scaling_factor=2.5,
        scoring_func="sigmoid", tie_word_embeddings=False, topk_group=2, topk_method="noaux_tc", v_head_dim=16,
    ),
    "glm-4.5-air": config(
        "Glm4MoeForCausalLM", "glm4_moe", attention_bias=True, eos_token_id=[2, 3, 4], first_k_dense_replace=1,
        head_dim=16, moe_intermediate_size=32, n_group=1, n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True,
        num_experts_per_tok=3, num_nextn_predict_layers=1, partial_rotary_factor=0.5, rope_scaling=None,
        rope_theta=1000000, routed_scaling_factor=1.0, tie_word_embeddings=False, topk_group=1, use_qk_norm=False,
    ),
    "glm-4.7-flash": config(
        "Glm4MoeLiteForCausalLM", "glm4_moe_lite", num_key_value_heads=4, attention_bias=False,
        eos_token_id=[2, 3, 4], first_k_dense_replace=1, kv_lora_rank=32, moe_intermediate_size=32, n_group=1,
        n_routed_experts=8, n_shared_experts=1, norm_topk_prob=True, num_experts_per_tok=3, num_nextn_predict_layers=1,
        partial_rotary_factor=1.0, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, rope_scaling=None,
        rope_theta=1000000, routed_scaling_factor=1.8, tie_word_embeddings=False, topk_group=1, topk_method="noaux_tc",
        v_head_dim=16,
    ),
    "lfm2": config(
        "Lfm2ForCausalLM", "lfm2", "intermediate_size hidden_act rms_norm_eps", block_auto_adjust_ff_dim=True,
        block_dim=64, block_ff_dim=112, block_ffn_dim_multiplier=1.0, block_mlp_init_scale=1.0, block_multiple_of=16,
        block_norm_eps=1e-5, block_out_init_scale=1.0, block_use_swiglu=True, block_use_xavier_init=True,
        conv_L_cache=3, conv_bias=False, conv_dim=64, conv_dim_out=64, conv_use_xavier_init=True,
        full_attn_idxs=[2, 5], norm_eps=1e-5, num_heads=4, rope_theta=1000000.0, use_pos_enc=True,
    ),
    "lfm2-8b-a1b": config(
        "Lfm2MoeForCausalLM", "lfm2_moe", "hidden_act rms_norm_eps", conv_L_cache=3, conv_bias=False,
        layer_types=["conv", "conv", "full_attention", "conv", "conv", "full_attention"], moe_intermediate_size=32,
        norm_eps=1e-5, norm_topk_prob=True, num_dense_layers=2, num_experts=6, num_experts_per_tok=2,
        rope_theta=1000000.0, routed_scaling_factor=1.0, use_expert_bias=True,
    ),
}  # fmt: skip
