"""The frozen description of a model, used by the decoder, memory planning and KV groups.

Standard library only, so that planning and the server never need torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.types import Retention
from headrace.quant.code_format import CodeFormat
from headrace.quant.format import Activations, WeightFormats

NormPlacement = Literal["pre"]
Activation = Literal["silu", "gelu", "gelu_tanh"]
RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "factors"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021), half-split layout as in HF checkpoints.

    `factor` and `original_max_position` belong to the scalings: linear (Chen et al. 2023), dynamic NTK, YaRN
    (Peng et al. 2023), llama3 (Meta 2024). `factors`: a divisor for each frequency, dim / 2 of them, as GGUF files give
    in place of llama3's settings.
    """

    theta: float
    dim: int  # rotated dimensions of a head
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention; MHA is num_kv_heads == num_heads, MQA is num_kv_heads == 1."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec
    retention: Retention = Retention.FULL
    window: int | None = None  # tokens, the query's own position included
    sinks: int = 0
    soft_cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False  # RMSNorm over each head of q and k before rope (Qwen3)


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """Gated feed-forward: down(act(gate(x)) * up(x))."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class LayerSpec:
    mixer: AttentionSpec
    feed_forward: MLPSpec
    norm: NormPlacement = "pre"


@dataclass(frozen=True, slots=True)
class StoredCodes:
    """The matrices that a checkpoint stores as codes.

    method: the name of its quantisation. formats: (name of the tensor that it would be as floats, format) pairs.
    activations: how the method's own runs encode activations, where it says so.
    """

    method: str
    formats: tuple[tuple[str, CodeFormat], ...]
    activations: Activations | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer. Sizes are counts of elements, never bytes."""

    family: str
    hidden_size: int
    vocab_size: int
    max_position: int  # longest context in tokens after rope scaling
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tie_embeddings: bool
    checkpoint_dtype: str  # "float32" | "float16" | "bfloat16": from the config
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    final_soft_cap: float | None = None
    matrix_dtype: str | None = (
        None  # type of all matrices that are stored as floats, where the files were read
    )
    codes: StoredCodes | None = None  # the others
    packed: WeightFormats | None = None  # how a packed folder holds all matrices
    packed_names: tuple[str, ...] = ()  # of those matrices, which say whether q, k and v are one

    @property
    def stored_dtype(self) -> str:
        """The narrowest type that holds every matrix exactly."""
        return self.matrix_dtype or self.checkpoint_dtype

    @property
    def kv_shapes(self) -> tuple[KVLayout, ...]:
        """KV groups in order of first appearance; layer i belongs to the group whose `layers` holds i."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, layer in enumerate(self.layers):
            mixer = layer.mixer
            key = (mixer.retention, mixer.window, mixer.sinks, mixer.num_kv_heads, mixer.head_dim)
            groups.setdefault(key, []).append(index)
        layouts = []
        for members in groups.values():
            mixer = self.layers[members[0]].mixer
            layouts.append(
                KVLayout(
                    name=mixer.retention.value
                    if mixer.window is None
                    else f"{mixer.retention.value}-{mixer.window}",
                    layers=tuple(members),
                    retention=mixer.retention,
                    window=mixer.window,
                    sinks=mixer.sinks,
                    num_kv_heads=mixer.num_kv_heads,
                    head_dim=mixer.head_dim,
                )
            )
        return tuple(layouts)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Layers whose keys and values have one shape and one retention: one block table serves them all."""

    name: str
    layers: tuple[int, ...]
    retention: Retention
    window: int | None
    sinks: int
    num_kv_heads: int
    head_dim: int

    @property
    def elements_per_token(self) -> int:
        """Key and value elements of one token over all layers of the group."""
        return 2 * len(self.layers) * self.num_kv_heads * self.head_dim
