"""What a GGUF file says of a model, by the architecture that its config names: the converse of `models.gguf.config`.

Keys are those of llama.cpp's converter. What is written is read back and compared with the model before any weight is
quantised, so a config with something that no key can say is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, UnsupportedModel
from headrace.gguf.writer import Value
from headrace.models.families import read_spec
from headrace.models.families.registry import text_part
from headrace.models.gguf.checkpoint import GGUFCheckpoint
from headrace.models.rope import inverse_frequencies
from headrace.models.spec import AttentionSpec, ExpertsSpec, ModelSpec

Config = Mapping[str, Any]
Keys = dict[str, Value]
Metadata = Callable[[Config, ModelSpec], Keys]


@dataclass(frozen=True, slots=True)
class Layout:
    """name: the value of `general.architecture`. metadata: keys, after that name, besides those that all have.
    normalizes: whether llama.cpp divides the weights of the chosen experts by their sum, whatever the file says."""

    name: str
    metadata: Metadata = lambda config, spec: {}
    normalizes: bool | None = None


def _window(config: Config, spec: ModelSpec) -> Keys:
    found = {mixer.window for mixer in _mixers(spec)} - {None}
    return {"attention.sliding_window": max(one for one in found if one is not None)} if found else {}


def _windows(config: Config, spec: ModelSpec) -> Keys:
    slides = [mixer.window is not None for mixer in _mixers(spec)]
    return _window(config, spec) | ({"attention.sliding_window_pattern": slides} if any(slides) else {})


def _experts(config: Config, spec: ModelSpec) -> Keys:
    mixtures = [one.feed_forward for one in spec.layers if isinstance(one.feed_forward, ExpertsSpec)]
    if not mixtures:
        return {}
    one = mixtures[0]
    found: Keys = {
        "expert_count": one.num_experts,
        "expert_used_count": one.router.top_k,
        "expert_feed_forward_length": one.expert.intermediate_size,
        "expert_weights_norm": one.router.normalize,
    }
    if one.shared is not None:
        found["expert_shared_feed_forward_length"] = one.shared.intermediate_size
    return found


def _mistral(config: Config, spec: ModelSpec) -> Keys:
    return _window(config, spec) | _experts(config, spec)


def _granite(config: Config, spec: ModelSpec) -> Keys:
    return {
        "attention.scale": float(config["attention_multiplier"]),
        "embedding_scale": float(config["embedding_multiplier"]),
        "residual_scale": float(config["residual_multiplier"]),
        "logit_scale": float(config["logits_scaling"]),
    }


def _gemma2(config: Config, spec: ModelSpec) -> Keys:
    caps = {
        "attn_logit_softcapping": _mixers(spec)[0].soft_cap,
        "final_logit_softcapping": spec.final_soft_cap,
    }
    return {**_window(config, spec), **{name: float(cap) for name, cap in caps.items() if cap is not None}}


def _gemma3(config: Config, spec: ModelSpec) -> Keys:
    local = [mixer.rope for mixer in _mixers(spec) if mixer.window is not None]
    found = _windows(config, spec)
    if local and local[0] is not None:
        found["rope.freq_base_swa"] = float(local[0].theta)
    if spec.final_soft_cap is not None:
        found["final_logit_softcapping"] = float(spec.final_soft_cap)
    return found


def _cohere2(config: Config, spec: ModelSpec) -> Keys:
    return {
        **_windows(config, spec),
        "logit_scale": float(config["logit_scale"]),
        "rope.scaling.type": "none",
    }


LAYOUTS: Mapping[str, Layout] = {
    "LlamaForCausalLM": Layout("llama"),
    "MistralForCausalLM": Layout("llama", _mistral),
    "MixtralForCausalLM": Layout("llama", _mistral),
    "Qwen2ForCausalLM": Layout("qwen2"),
    "Qwen3ForCausalLM": Layout("qwen3"),
    "Qwen2MoeForCausalLM": Layout("qwen2moe", _experts, normalizes=False),
    "Qwen3MoeForCausalLM": Layout("qwen3moe", _experts, normalizes=True),
    "SmolLM3ForCausalLM": Layout("smollm3"),
    "GraniteForCausalLM": Layout("granite", _granite),
    "SeedOssForCausalLM": Layout("seed_oss"),
    "GemmaForCausalLM": Layout("gemma"),
    "Gemma2ForCausalLM": Layout("gemma2", _gemma2),
    "Gemma3ForCausalLM": Layout("gemma3", _gemma3),
    "Phi3ForCausalLM": Layout("phi3", _window),
    "Olmo2ForCausalLM": Layout("olmo2"),
    "Olmo3ForCausalLM": Layout("olmo2", _windows),
    "Cohere2ForCausalLM": Layout("cohere2", _cohere2),
    "GlmForCausalLM": Layout("chatglm"),
    "Glm4ForCausalLM": Layout("glm4"),
    "Starcoder2ForCausalLM": Layout("starcoder2", _window),
}
"""By the architecture that a config.json names."""

_COMPARED = (
    "hidden_size", "vocab_size", "norm", "tie_embeddings", "layers", "final_soft_cap", "learned_positions",
    "embedding_norm", "embedding_scale", "residual_scale", "logit_scale",
)  # fmt: skip
_PLAIN_ROPE = ("default", "linear", "yarn", "llama3")


def layout_of(config: Config, name: str) -> Layout:
    """Raises UnsupportedModel, naming the model's architecture, for one whose files are not written."""
    architectures = text_part(config).get("architectures") or ["none"]
    found = LAYOUTS.get(architectures[0])
    if found is None:
        raise UnsupportedModel(
            f"{name} is a model of {architectures[0]!r:.80}, which is not written as GGUF; those that are: "
            f"{', '.join(LAYOUTS)}"
        )
    return found


def metadata_of(layout: Layout, config: Config, spec: ModelSpec, name: str) -> Keys:
    """All keys of a model but those of its tokenizer. Raises UnsupportedModel where there is no key for a setting."""
    config = text_part(config)
    if not all(isinstance(layer.mixer, AttentionSpec) for layer in spec.layers):
        raise UnsupportedModel(f"{name} has layers that GGUF files are not written for")
    mixers = _mixers(spec)
    first = next((one for one in mixers if one.rope is not None and one.window is None), mixers[0])
    dense = [layer.feed_forward for layer in spec.layers if not isinstance(layer.feed_forward, ExpertsSpec)]
    sizes: Keys = {
        "context_length": spec.max_position,
        "embedding_length": spec.hidden_size,
        "block_count": len(spec.layers),
        "attention.head_count": first.num_heads,
        "attention.head_count_kv": first.num_kv_heads,
        "attention.key_length": first.head_dim,
        "attention.value_length": first.head_dim,
        "vocab_size": spec.vocab_size,
        "attention.layer_norm_rms_epsilon"
        if spec.norm.kind == "rms"
        else "attention.layer_norm_epsilon": float(spec.norm.eps),
    }
    inner = dense[0].intermediate_size if dense else config.get("intermediate_size")
    if inner is not None:
        sizes["feed_forward_length"] = int(inner)
    sizes |= _rope(first, name) | layout.metadata(config, spec)
    if (
        layout.normalizes is not None
        and sizes.get("expert_weights_norm", layout.normalizes) != layout.normalizes
    ):
        raise UnsupportedModel(
            f"{name} cannot be written as GGUF: llama.cpp runs every model of {layout.name} as if its norm_topk_prob "
            f"were {str(layout.normalizes).lower()}"
        )
    general: Keys = {
        "general.architecture": layout.name,
        "general.type": "model",
        "general.name": Path(name).name,
        "general.alignment": 32,
        "general.quantization_version": 2,
    }
    return general | {f"{layout.name}.{key}": value for key, value in sizes.items()}


def rope_divisors(spec: ModelSpec) -> list[float] | None:
    """What each frequency is divided by, where a tensor says it (Llama 3)."""
    rope = next((one.rope for one in _mixers(spec) if one.rope is not None), None)
    if rope is None or rope.kind != "llama3":
        return None
    plain, _ = inverse_frequencies(replace(rope, kind="default"))
    scaled, _ = inverse_frequencies(rope)
    return [one / other for one, other in zip(plain, scaled, strict=True)]


def check_header(path: Path, spec: ModelSpec, name: str) -> None:
    """Raises UnsupportedModel where the file, whose weights may be missing, is not read as the same model."""
    try:
        opened = GGUFCheckpoint(path)
        found = read_spec(opened.config, opened.generation_config)
    except HeadraceError as error:
        raise UnsupportedModel(f"{name} cannot be written as GGUF: {error}") from error
    ours, theirs = _comparable(spec), _comparable(found)
    for field in _COMPARED:
        if getattr(ours, field) != getattr(theirs, field):
            raise UnsupportedModel(
                f"{name} cannot be written as GGUF: no key of the format holds its {field}"
            )


def _comparable(spec: ModelSpec) -> ModelSpec:
    """Numbers as float32 holds them, and scalings of rope as their frequencies."""

    def rounded(number: float) -> float:
        return float(f"{number:.5g}")

    layers = []
    for layer in spec.layers:
        mixer = layer.mixer
        assert isinstance(mixer, AttentionSpec)
        rope = mixer.rope
        if rope is not None:
            frequencies, factor = inverse_frequencies(rope)
            rope = replace(
                rope, kind="factors", theta=rounded(factor), factor=1.0, original_max_position=0, low_freq_factor=1.0,
                high_freq_factor=1.0, beta_fast=0.0, beta_slow=0.0, attention_factor=None, mscale=None,
                mscale_all_dim=None, truncate=True, factors=tuple(map(rounded, frequencies)), short_factors=(),
                interleaved=rope.interleaved, angles=0,
            )  # fmt: skip
        norm = (
            None
            if mixer.qk_norm is None
            else replace(mixer.qk_norm, eps=rounded(mixer.qk_norm.eps), offset=0.0)
        )
        cap = None if mixer.soft_cap is None else rounded(mixer.soft_cap)
        mixer = replace(mixer, rope=rope, scale=rounded(mixer.scale), qk_norm=norm, soft_cap=cap)
        layers.append(replace(layer, mixer=mixer))
    cap = None if spec.final_soft_cap is None else rounded(spec.final_soft_cap)
    return replace(
        spec, layers=tuple(layers), norm=replace(spec.norm, eps=rounded(spec.norm.eps), offset=0.0), final_soft_cap=cap,
        embedding_scale=rounded(spec.embedding_scale), residual_scale=rounded(spec.residual_scale),
        logit_scale=rounded(spec.logit_scale),
    )  # fmt: skip


def _mixers(spec: ModelSpec) -> list[AttentionSpec]:
    return [layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)]


def _rope(mixer: AttentionSpec, name: str) -> Keys:
    rope = mixer.rope
    if rope is None:
        return {}
    if rope.kind not in _PLAIN_ROPE:
        raise UnsupportedModel(f"{name} has rope scaling of kind {rope.kind}, which is not written as GGUF")
    found: Keys = {"rope.freq_base": float(rope.theta), "rope.dimension_count": rope.dim}
    if rope.kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope.kind, "rope.scaling.factor": float(rope.factor)}
    if rope.kind == "yarn":
        found |= {
            "rope.scaling.original_context_length": rope.original_max_position,
            "rope.scaling.yarn_beta_fast": float(rope.beta_fast),
            "rope.scaling.yarn_beta_slow": float(rope.beta_slow),
        }
        if rope.attention_factor is not None:
            found["rope.scaling.yarn_attn_factor"] = float(rope.attention_factor)
    return found
