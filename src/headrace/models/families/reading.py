"""What the families share: fields that most configs have, read into the parts of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.core.types import Retention
from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families.limits import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_VOCAB,
)
from headrace.models.names import HF_NAMES, WeightNames
from headrace.models.rope_config import MAX_POSITION, read_rope
from headrace.models.spec import (
    Activation,
    AttentionSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormPlacement,
    NormSpec,
    RopeSpec,
)

ACTIVATION_NAMES: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}

DTYPES = ("float32", "float16", "bfloat16")

FULL, SLIDING = "full_attention", "sliding_attention"
"""The layer types of HF's `layer_types`."""

Arrangement = Literal["transposed", "qkv-by-head", "flattened"]
"""How a checkpoint's tensor differs from the matrix that the program expects: [columns, rows]; or with the rows of q, k
and v of each head next to each other; or with several axes where the program expects a vector."""


@dataclass(frozen=True, slots=True)
class ExpertTensors:
    """A tensor of all experts, [experts, rows, ...]. `parts`: endings of the names of what it holds for one expert,
    whose rows take turns in it, or with `apart` lie one after the other. transposed: it is [experts, columns, rows]."""

    parts: tuple[str, ...]
    transposed: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """read: from a config to a spec without token ids and types, which the registry adds.

    arranged: endings of tensors' names, and how these tensors are arranged; by_expert: of those that hold all experts.
    renamed: endings that some checkpoints have in place of those of `names`.
    defaults: fields that published configs leave out, as transformers fills them in.
    models, features: for the table of families, what it is and has.
    """

    name: str
    read: Callable[[ConfigReader], ModelSpec]
    names: WeightNames = HF_NAMES
    arranged: Mapping[str, Arrangement] = field(default_factory=dict)
    by_expert: Mapping[str, ExpertTensors] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    models: str = ""
    features: str = ""


def decoder(
    config: ConfigReader,
    family: str,
    layers: Sequence[LayerSpec],
    norm: NormSpec,
    longest: int,
    *,
    tied: bool = False,
    **differences: Any,
) -> ModelSpec:
    """The spec of a model with these layers. `tied`: whether embeddings are tied where the config does not say."""
    return ModelSpec(
        family=family,
        hidden_size=read_hidden(config),
        vocab_size=read_vocab(config),
        max_position=longest,
        layers=tuple(layers),
        norm=norm,
        tie_embeddings=config.flag("tie_word_embeddings", tied),
        checkpoint_dtype="float32",  # the registry knows
        **differences,
    )


def read_hidden(config: ConfigReader, name: str = "hidden_size") -> int:
    return config.integer(name, 1, MAX_HIDDEN)


def read_vocab(config: ConfigReader) -> int:
    return config.integer("vocab_size", 1, MAX_VOCAB)


def read_layer_count(config: ConfigReader) -> int:
    return config.integer("num_hidden_layers", 1, MAX_LAYERS)


def rms_norm(config: ConfigReader, offset: float = 0.0) -> NormSpec:
    return NormSpec(config.number("rms_norm_eps", 1e-30, 1.0, 1e-6), offset=offset)


def offset_norm(config: ConfigReader) -> NormSpec:
    """Of families that store its weights less one. Files whose weights are whole say so: those of llama.cpp are."""
    return rms_norm(config, config.number("norm_weight_offset", 0.0, 1.0, 1.0))


def layer_norm(config: ConfigReader, name: str, *, bias: bool) -> NormSpec:
    return NormSpec(config.number(name, 1e-30, 1.0, 1e-5), "layer", bias)


def read_attention(
    config: ConfigReader,
    *,
    default_head_dim: int | None = None,
    layer_type: str | None = None,
    rotated: float | None = None,
    theta: float = 10_000.0,
    **differences: Any,
) -> tuple[AttentionSpec, int]:
    """Full attention with rope, and the longest context in tokens.

    default_head_dim: where the config does not say; None: hidden_size / num_attention_heads. layer_type: whose rope
    settings are meant, where they differ. rotated, theta: see `read_rope`.
    """
    hidden = read_hidden(config)
    num_heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    num_kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS, num_heads)
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads {num_heads} must be a multiple of num_key_value_heads {num_kv_heads}"
        )
    if not config.has("head_dim") and default_head_dim is None and hidden % num_heads:
        raise CheckpointError(f"hidden_size {hidden} must be a multiple of num_attention_heads {num_heads}")
    head_dim = config.integer("head_dim", 1, MAX_HEAD_DIM, default_head_dim or max(1, hidden // num_heads))
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise CheckpointError(f"head_dim must be even and at most {MAX_HEAD_DIM}, got {head_dim}")
    max_position = config.integer("max_position_embeddings", 1, MAX_POSITION)
    rope, longest = read_rope(
        config, head_dim, max_position, layer_type=layer_type, rotated=rotated, theta=theta
    )
    mixer = AttentionSpec(num_heads, num_kv_heads, head_dim, scale=head_dim**-0.5, rope=rope)
    return replace(mixer, **differences), longest


def read_mlp(
    config: ConfigReader,
    *,
    bias: bool = False,
    activation: str = "silu",
    field: str = "hidden_act",
    gated: bool = True,
) -> MLPSpec:
    """`activation`: where the config does not say."""
    wide = config.integer("intermediate_size", 1, MAX_INTERMEDIATE)
    return MLPSpec(wide, read_activation(config, field, activation), bias, gated)


def read_activation(config: ConfigReader, field: str = "hidden_act", default: str = "silu") -> Activation:
    name = config.text(field, default)
    if name not in ACTIVATION_NAMES:
        raise UnsupportedModel(
            f"activation {name!r:.80} is not supported, only {', '.join(ACTIVATION_NAMES)}"
        )
    return ACTIVATION_NAMES[name]


def read_layer_types(
    config: ConfigReader, default: Callable[[int], str], known: Sequence[str] = (FULL, SLIDING)
) -> list[str]:
    """The type of each layer; `default` by its number where the config does not say."""
    count = read_layer_count(config)
    types = config.texts("layer_types", count)
    if types is None:
        return [default(index) for index in range(count)]
    unknown = sorted(set(types) - set(known))
    if unknown:
        raise UnsupportedModel(f"layer type {unknown[0]!r:.80} in {config.where} is not supported")
    return types


def read_window(config: ConfigReader, default: int | None = None) -> int | None:
    """Tokens of a sliding window, if there is one."""
    if not config.has("sliding_window"):
        return default
    return config.integer("sliding_window", 1, MAX_POSITION)


def with_window(mixer: AttentionSpec, window: int | None) -> AttentionSpec:
    return mixer if window is None else replace(mixer, retention=Retention.WINDOW, window=window)


def with_windows(config: ConfigReader, types: Sequence[str], window: int | None) -> list[int | None]:
    """The window of each layer."""
    if window is None and SLIDING in types:
        raise CheckpointError(f"{config.where} has sliding_attention layers but no sliding window in use")
    return [window if kind == SLIDING else None for kind in types]


def stacked(
    mixers: Sequence[AttentionSpec], feed_forward: MLPSpec, norms: NormPlacement = "pre"
) -> list[LayerSpec]:
    """Layers that differ in their mixer alone."""
    return [LayerSpec(mixer, feed_forward, norms) for mixer in mixers]


def interleaved(rope: RopeSpec | None) -> RopeSpec | None:
    return None if rope is None else replace(rope, interleaved=True)
