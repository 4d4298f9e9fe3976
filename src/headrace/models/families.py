"""The supported model families: each reads a config.json into a ModelSpec. No torch here.

A family holds the differences from the common Llama shape; the decoder does not depend on families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.types import Retention
from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.names import HF_NAMES, WeightNames
from headrace.models.rope_config import MAX_POSITION, read_rope
from headrace.models.spec import Activation, AttentionSpec, LayerSpec, MLPSpec, ModelSpec

MAX_LAYERS = 1024
MAX_HIDDEN = 131_072
MAX_VOCAB = 1 << 22
MAX_HEADS = 4096
MAX_HEAD_DIM = 1024
MAX_INTERMEDIATE = 1 << 20

ACTIVATION_NAMES: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

_DTYPES = ("float32", "float16", "bfloat16")

Windows = Callable[[ConfigReader, int], list[int | None]]
"""From a config and its number of layers to each layer's window in tokens, None for full attention."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one family differs from the common Llama shape."""

    name: str
    windows: Windows
    qkv_bias: Callable[[ConfigReader], bool]
    out_bias: Callable[[ConfigReader], bool]
    mlp_bias: Callable[[ConfigReader], bool]
    qk_norm: bool = False
    default_head_dim: int | None = None  # None: hidden_size / num_attention_heads
    names: WeightNames = HF_NAMES


def _never(config: ConfigReader) -> bool:
    return False


def _always(config: ConfigReader) -> bool:
    return True


def _attention_bias(config: ConfigReader) -> bool:
    return config.flag("attention_bias", False)


def _mlp_bias(config: ConfigReader) -> bool:
    return config.flag("mlp_bias", False)


def _no_windows(config: ConfigReader, num_layers: int) -> list[int | None]:
    return [None] * num_layers


def _one_window(config: ConfigReader, num_layers: int) -> list[int | None]:
    """Mistral: one window for every layer, or none."""
    if config.has("layer_types"):
        raise UnsupportedModel("a Mistral config with layer_types is not supported")
    window = config.integer("sliding_window", 1, MAX_POSITION) if config.has("sliding_window") else None
    return [window] * num_layers


def _layer_windows(config: ConfigReader, num_layers: int) -> list[int | None]:
    """Qwen: `layer_types` says which layers slide; without it, those from `max_window_layers` on."""
    use = config.flag("use_sliding_window", False) and config.has("sliding_window")
    window = config.integer("sliding_window", 1, MAX_POSITION) if use else None
    types = config.texts("layer_types", num_layers)
    if types is None:
        first = config.integer("max_window_layers", 0, 1 << 20, 28)
        return [window if index >= first else None for index in range(num_layers)]
    unknown = sorted(set(types) - {"full_attention", "sliding_attention"})
    if unknown:
        raise UnsupportedModel(f"layer type {unknown[0]!r:.80} in {config.where} is not supported")
    if window is None and "sliding_attention" in types:
        raise CheckpointError(f"{config.where} has sliding_attention layers but no sliding window in use")
    return [window if kind == "sliding_attention" else None for kind in types]


_LLAMA = Family("llama", _no_windows, _attention_bias, _attention_bias, _mlp_bias)
_MISTRAL = Family("mistral", _one_window, _never, _never, _never)
_QWEN2 = Family("qwen2", _layer_windows, _always, _never, _never)
_QWEN3 = Family(
    "qwen3", _layer_windows, _attention_bias, _attention_bias, _never, qk_norm=True, default_head_dim=128
)

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    # model_type, for configs that name no architecture
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
}


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a config.json by its first architecture, or by `model_type` where it names none.

    Raises UnsupportedModel, naming the families that are known.
    """
    architectures = config.get("architectures")
    named = (
        architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    )
    family = FAMILIES.get(named) if isinstance(named, str) else None
    if family is None:
        known = ", ".join(name for name in FAMILIES if name.endswith("ForCausalLM"))
        raise UnsupportedModel(f"model architecture {named!r:.80} is not supported; known are {known}")
    return family


def weight_names(spec: ModelSpec) -> WeightNames:
    """Checkpoint tensor names of a spec's family."""
    return FAMILIES[spec.family].names


def read_spec(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelSpec:
    """Translate a HF config.json, and the end-of-sequence ids of a generation_config.json, into a ModelSpec.

    Raises UnsupportedModel for what is not implemented and CheckpointError for missing or absurd values.
    """
    family = find_family(config)
    reader = ConfigReader(config)
    hidden = reader.integer("hidden_size", 1, MAX_HIDDEN)
    num_layers = reader.integer("num_hidden_layers", 1, MAX_LAYERS)
    max_position = reader.integer("max_position_embeddings", 1, MAX_POSITION)
    vocab = reader.integer("vocab_size", 1, MAX_VOCAB)
    mixer, longest = _read_attention(family, reader, hidden, max_position)
    feed_forward = MLPSpec(
        intermediate_size=reader.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        activation=_read_activation(reader),
        bias=family.mlp_bias(reader),
    )
    layers = tuple(
        LayerSpec(_with_window(mixer, window), feed_forward) for window in family.windows(reader, num_layers)
    )
    generation = ConfigReader(generation_config or {}, "generation_config.json")
    eos = (*reader.token_ids("eos_token_id", vocab), *generation.token_ids("eos_token_id", vocab))
    bos = reader.token_ids("bos_token_id", vocab)
    return ModelSpec(
        family=family.name,
        hidden_size=hidden,
        vocab_size=vocab,
        max_position=longest,
        layers=layers,
        norm_eps=reader.number("rms_norm_eps", 1e-30, 1.0, 1e-6),
        tie_embeddings=reader.flag("tie_word_embeddings", False),
        checkpoint_dtype=_read_dtype(reader),
        bos_id=bos[0] if bos else None,
        eos_ids=tuple(dict.fromkeys(eos)),
    )


def _read_attention(
    family: Family, reader: ConfigReader, hidden: int, max_position: int
) -> tuple[AttentionSpec, int]:
    num_heads = reader.integer("num_attention_heads", 1, MAX_HEADS)
    num_kv_heads = reader.integer("num_key_value_heads", 1, MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads {num_heads} must be a multiple of num_key_value_heads {num_kv_heads}"
        )
    if not reader.has("head_dim") and family.default_head_dim is None and hidden % num_heads:
        raise CheckpointError(f"hidden_size {hidden} must be a multiple of num_attention_heads {num_heads}")
    fallback = family.default_head_dim or max(1, hidden // num_heads)
    head_dim = reader.integer("head_dim", 1, MAX_HEAD_DIM, fallback)
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise CheckpointError(f"head_dim must be even and at most {MAX_HEAD_DIM}, got {head_dim}")
    rope, longest = read_rope(reader, head_dim, max_position)
    mixer = AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=rope,
        qkv_bias=family.qkv_bias(reader),
        out_bias=family.out_bias(reader),
        qk_norm=family.qk_norm,
    )
    return mixer, longest


def _with_window(mixer: AttentionSpec, window: int | None) -> AttentionSpec:
    return mixer if window is None else replace(mixer, retention=Retention.WINDOW, window=window)


def _read_activation(reader: ConfigReader) -> Activation:
    name = reader.text("hidden_act", "silu")
    if name not in ACTIVATION_NAMES:
        raise UnsupportedModel(
            f"activation {name!r:.80} is not supported, only {', '.join(ACTIVATION_NAMES)}"
        )
    return ACTIVATION_NAMES[name]


def _read_dtype(reader: ConfigReader) -> str:
    """`dtype` (transformers 5) or `torch_dtype` (before); float32 where neither is given."""
    name = reader.text("dtype", reader.text("torch_dtype", "float32"))
    if name not in _DTYPES:
        raise UnsupportedModel(f"checkpoint dtype {name!r:.80} is not supported, only {', '.join(_DTYPES)}")
    return name
