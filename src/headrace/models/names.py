"""Which checkpoint tensor holds which weight of the decoder."""

from __future__ import annotations

from dataclasses import dataclass

LAYER = "model.layers.{i}."
"""What the names of a layer's tensors begin with."""


@dataclass(frozen=True, slots=True)
class MTPNames:
    """Tensors of a layer that predicts the token after the next one, as `models.draft_layers.DraftLayers` has them; {n}
    stands for the number of layers before it. layer: what its tensors' names begin with where the names of others begin
    with model.layers.{i}."""

    layer: str
    join: str
    state_norm: str
    embedding_norm: str
    final_norm: str


@dataclass(frozen=True, slots=True)
class WeightNames:
    """Tensor names of a checkpoint, without the endings ".weight" and ".bias"; the text {i} in a layer's names stands
    for the layer's number, and {e} for the expert's.

    qkv, gate_up: where the checkpoint has one tensor for these, else empty. WHOLE lists those that are whole names.
    ignored: endings of tensors that no model uses; ignored_prefixes: beginnings of such tensors, such as those of an
    image encoder; {n} in them stands for the number of layers. mtp: of the layer after the last one, where it may have
    one that predicts further tokens.
    """

    embed: str = "model.embed_tokens"
    positions: str = ""
    embed_norm: str = ""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    input_norm: str = "model.layers.{i}.input_layernorm"
    mixer_post_norm: str = ""
    post_norm: str = "model.layers.{i}.post_attention_layernorm"  # before the feed-forward half
    feed_forward_post_norm: str = ""
    query: str = "model.layers.{i}.self_attn.q_proj"
    key: str = "model.layers.{i}.self_attn.k_proj"
    value: str = "model.layers.{i}.self_attn.v_proj"
    qkv: str = ""
    query_down: str = "model.layers.{i}.self_attn.q_a_proj"  # latent attention
    query_down_norm: str = "model.layers.{i}.self_attn.q_a_layernorm"
    query_up: str = "model.layers.{i}.self_attn.q_b_proj"
    latent: str = "model.layers.{i}.self_attn.kv_a_proj_with_mqa"
    latent_norm: str = "model.layers.{i}.self_attn.kv_a_layernorm"
    latent_up: str = "model.layers.{i}.self_attn.kv_b_proj"
    out: str = "model.layers.{i}.self_attn.o_proj"
    query_norm: str = "model.layers.{i}.self_attn.q_norm"
    key_norm: str = "model.layers.{i}.self_attn.k_norm"
    sinks: str = "model.layers.{i}.self_attn.sinks"
    delta_qkv: str = "model.layers.{i}.linear_attn.in_proj_qkv"
    delta_gate: str = "model.layers.{i}.linear_attn.in_proj_z"
    delta_beta: str = "model.layers.{i}.linear_attn.in_proj_b"
    delta_decay: str = "model.layers.{i}.linear_attn.in_proj_a"
    delta_qkv_gate: str = "model.layers.{i}.linear_attn.in_proj_qkvz"  # see DeltaSpec.fused
    delta_beta_decay: str = "model.layers.{i}.linear_attn.in_proj_ba"
    delta_conv: str = "model.layers.{i}.linear_attn.conv1d"
    delta_rate: str = "model.layers.{i}.linear_attn.A_log"
    delta_time: str = "model.layers.{i}.linear_attn.dt_bias"
    delta_norm: str = "model.layers.{i}.linear_attn.norm"
    delta_out: str = "model.layers.{i}.linear_attn.out_proj"
    conv_in: str = "model.layers.{i}.conv.in_proj"
    conv: str = "model.layers.{i}.conv.conv"
    conv_out: str = "model.layers.{i}.conv.out_proj"
    layer_scale: str = "model.layers.{i}.layer_scalar"
    per_layer_embed: str = "model.embed_tokens_per_layer"
    per_layer_input: str = "model.per_layer_model_projection"
    per_layer_input_norm: str = "model.per_layer_projection_norm"
    per_layer_gate: str = "model.layers.{i}.per_layer_input_gate"
    per_layer_out: str = "model.layers.{i}.per_layer_projection"
    per_layer_post_norm: str = "model.layers.{i}.post_per_layer_input_norm"
    gate: str = "model.layers.{i}.mlp.gate_proj"
    up: str = "model.layers.{i}.mlp.up_proj"
    gate_up: str = ""
    down: str = "model.layers.{i}.mlp.down_proj"
    router: str = "model.layers.{i}.mlp.gate"
    router_norm: str = "model.layers.{i}.router.scale"
    choice_bias: str = "model.layers.{i}.mlp.gate.e_score_correction_bias"
    expert_scale: str = "model.layers.{i}.router.per_expert_scale"
    experts_norm: str = "model.layers.{i}.pre_feedforward_layernorm_2"  # of experts beside a dense half
    experts_post_norm: str = "model.layers.{i}.post_feedforward_layernorm_2"
    dense_post_norm: str = "model.layers.{i}.post_feedforward_layernorm_1"
    expert_gate: str = "model.layers.{i}.mlp.experts.{e}.gate_proj"
    expert_up: str = "model.layers.{i}.mlp.experts.{e}.up_proj"
    expert_down: str = "model.layers.{i}.mlp.experts.{e}.down_proj"
    shared_router: str = "model.layers.{i}.mlp.shared_expert_gate"
    shared_gate: str = "model.layers.{i}.mlp.shared_expert.gate_proj"
    shared_up: str = "model.layers.{i}.mlp.shared_expert.up_proj"
    shared_down: str = "model.layers.{i}.mlp.shared_expert.down_proj"
    ignored: tuple[str, ...] = (".rotary_emb.inv_freq",)
    ignored_prefixes: tuple[str, ...] = ()
    mtp: MTPNames | None = None

    def ignores(self, tensor: str, num_layers: int) -> bool:
        """Whether no part of a model with so many layers is a tensor of that name."""
        prefixes = tuple(prefix.replace("{n}", str(num_layers)) for prefix in self.ignored_prefixes)
        return tensor.endswith(self.ignored) or tensor.startswith(prefixes)


WHOLE = frozenset(
    {"sinks", "delta_rate", "delta_time", "layer_scale", "router_norm", "choice_bias", "expert_scale"}
)
"""Fields of `WeightNames` whose tensors' names have no ending."""

HF_NAMES = WeightNames()
"""The names that Llama, Mistral, Qwen2 and Qwen3 share."""
