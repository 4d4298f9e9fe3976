"""GLM-4.5 and 4.6: grouped-query attention with half of each head rotated, and the experts of DeepSeek V3."""

from __future__ import annotations

from headrace.models.config_reader import ConfigReader
from headrace.models.families.latent import experts_of_layers, first_dense, shared_names, sigmoid_router
from headrace.models.families.reading import Family, decoder, read_attention, read_mlp, rms_norm
from headrace.models.spec import LayerSpec, ModelSpec


def _glm4_moe(config: ConfigReader) -> ModelSpec:
    norm = rms_norm(config)
    mixer, longest = read_attention(
        config,
        rotated=0.5,
        qkv_bias=config.flag("attention_bias", False),
        qk_norm=norm if config.flag("use_qk_norm", False) else None,
    )
    parts = experts_of_layers(
        config, read_mlp(config), first_dense(config, 1), sigmoid_router(config, 1.0), 8
    )
    return decoder(config, "glm4_moe", [LayerSpec(mixer, part) for part in parts], norm, longest)


GLM_MOE = {
    "Glm4MoeForCausalLM": Family(
        "glm4_moe",
        _glm4_moe,
        shared_names(),
        models="GLM-4.5, GLM-4.6",
        features="grouped experts with a corrected choice, shared experts, half of a head rotated",
    )
}
