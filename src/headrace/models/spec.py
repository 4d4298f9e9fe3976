"""The frozen description of a model, used by the decoder, memory planning and KV groups.

Standard library only, so that planning and the server never need torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.types import Retention
from headrace.quant.code_format import CodeFormat
from headrace.quant.format import Activations, WeightFormats

NormPlacement = Literal["pre", "post", "both", "parallel"]
"""Where a layer's norms stand. pre: before each half, whose result is added to the residual stream. post: after each
half, before its result is added (OLMo 2). both: before and after (Gemma 2). parallel: both halves read the same stream,
and both results are added to it (GPT-NeoX; Cohere, whose two halves share one norm).
"""

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_oai"]
"""relu2: the square of max(x, 0) (So et al. 2021). swiglu_oai (gpt-oss) is not a function of the gate alone: with the
gate g limited to at most 7 and up u to -7..7 it gives (u + 1) * g * sigmoid(1.702 g)."""

RouterScores = Literal["softmax", "sigmoid", "softmax_chosen"]

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "factors", "longrope", "proportional"]


@dataclass(frozen=True, slots=True)
class NormSpec:
    """rms: x / root of the mean square (Zhang and Sennrich 2019). layer: the mean is subtracted first (Ba et al. 2016).

    offset: what is added to the checkpoint's weights (Gemma: 1). weighted: False where there are no weights (Llama 4).
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    offset: float = 0.0
    weighted: bool = True


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (Su et al. 2021).

    interleaved: pairs are neighbouring features (GPT-J); else features half of `dim` apart, as in most HF checkpoints.
    `factor` and `original_max_position` belong to the scalings: linear (Chen et al. 2023), dynamic NTK, YaRN
    (Peng et al. 2023), llama3 (Meta 2024), longrope (Ding et al. 2024). `factors`: a divisor for each frequency,
    dim / 2 of them; for longrope those of contexts longer than the original one, and `short_factors` the others.
    proportional: only the first `angles` pairs of features turn, at the frequencies that they have where all do
    (Gemma 4).
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
    short_factors: tuple[float, ...] = ()
    interleaved: bool = False
    angles: int = 0


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries at position p are multiplied by 1 + beta * log(1 + floor((p + shift) / length)) (Llama 4, Ministral)."""

    beta: float
    length: int
    shift: int = 0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Grouped-query attention; MHA is num_kv_heads == num_heads, MQA is num_kv_heads == 1.

    rope: None for a layer without positions. chunked: the window begins at the last multiple of its length, so that
    positions attend within their chunk (Llama 4). qk_norm: over each head of q and k before rope (Qwen3), or over all
    heads together if `qk_norm_whole` (OLMo 2). learned_sinks: each head has a logit that takes part in the softmax and
    has no value (gpt-oss). output_gate: the query's product gives each head a query and a gate, whose sigmoid
    multiplies what the head gives (Qwen3-Next). alibi: the scores of head h of n get 2^(-alibi * (h + 1) / n) less for
    each position to the key (Press et al. 2022); 0: none. See `models.rope.alibi_slopes`.

    Gemma 4: value_norm: the heads of v are normalised like those of k, without weights. keys_are_values: v is k before
    its norm. shares: the earlier layer whose keys and values it attends to; it has none of its own, nor memory for
    them. Layers that share are the last ones, and equal to that layer in all that its keys and values depend on.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec | None
    retention: Retention = Retention.FULL
    window: int | None = None  # tokens, the query's own position included
    chunked: bool = False
    sinks: int = 0
    soft_cap: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: NormSpec | None = None
    qk_norm_whole: bool = False
    learned_sinks: bool = False
    temperature: Temperature | None = None
    output_gate: bool = False
    alibi: float = 0.0
    value_norm: bool = False
    keys_are_values: bool = False
    shares: int | None = None

    @property
    def value_in_key(self) -> int | None:
        """See `KVLayout`."""
        return None


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a recurrent layer keeps of a sequence, in float32: the inputs of a convolution at the last `taps` positions,
    [taps, channels], and a matrix a head, [heads, key_dim, value_dim]."""

    taps: int
    channels: int
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0

    @property
    def conv_elements(self) -> int:
        return self.taps * self.channels

    @property
    def matrix_elements(self) -> int:
        return self.heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class DeltaSpec:
    """The gated delta rule (Yang et al. 2024) after a short convolution: see `ops.reference.recurrent`.

    num_heads: of values; a multiple of num_key_heads. width: positions that the convolution sees. norm: of each head's
    output, which is then multiplied by the SiLU of a gate. fused: the checkpoint has one tensor for q, k, v and gate
    with the rows of a key head next to each other; fused_numbers: and one for the two numbers of a head (Qwen3-Next).
    tiled: head h of the values belongs to key head h modulo num_key_heads, as in GGUF files of Qwen3.5; else those of
    a key head stand next to each other.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    width: int
    norm: NormSpec
    fused: bool = False
    fused_numbers: bool = False
    tiled: bool = False

    @property
    def channels(self) -> int:
        """Of the convolution: q, k and v."""
        return 2 * self.num_key_heads * self.key_dim + self.num_heads * self.value_dim

    @property
    def state(self) -> StateShape:
        return StateShape(self.width - 1, self.channels, self.num_heads, self.key_dim, self.value_dim)


@dataclass(frozen=True, slots=True)
class ConvSpec:
    """A gated short convolution (LFM2): one product gives b, c and x; its output is c * conv(b * x).

    width: positions that the convolution sees. bias: of the products and of the convolution.
    """

    channels: int
    width: int
    bias: bool = False

    @property
    def state(self) -> StateShape:
        return StateShape(self.width - 1, self.channels)


RecurrentSpec = DeltaSpec | ConvSpec


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-AI 2024). A token's cache is one latent and one rotated key, which all
    heads share: each head has matrices that make its key and its value of the latent.

    latent: features of it (HF kv_lora_rank). key_dim, rope_dim, value_dim: features of a head's key that come from the
    latent, of the shared key with rope, and of a head's value. query_rank: queries come from so many features, which
    have a norm (HF q_lora_rank); None: from the hidden state. norm: of those and of the latent. bias: of the products
    that make those and the latent, and of the output.
    """

    num_heads: int
    latent: int
    key_dim: int
    rope_dim: int
    value_dim: int
    query_rank: int | None
    scale: float
    rope: RopeSpec
    norm: NormSpec
    bias: bool = False

    @property
    def num_kv_heads(self) -> int:
        """Of what is cached."""
        return 1

    @property
    def head_dim(self) -> int:
        """Of what is cached, and of the queries that meet it: `latent` features, then the rotated ones."""
        return self.latent + self.rope_dim

    @property
    def value_in_key(self) -> int:
        return self.latent

    @property
    def retention(self) -> Retention:
        return Retention.FULL

    @property
    def window(self) -> int | None:
        return None

    @property
    def sinks(self) -> int:
        return 0

    @property
    def shares(self) -> int | None:
        return None


Mixer = AttentionSpec | LatentSpec | RecurrentSpec


@dataclass(frozen=True, slots=True)
class MLPSpec:
    """down(act(gate(x)) * up(x)) if gated (Shazeer 2020), else down(act(up(x)))."""

    intermediate_size: int
    activation: Activation = "silu"
    bias: bool = False
    gated: bool = True


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """How a mixture chooses the experts of a token, from one logit an expert. All of it is computed in float32.

    scores: what becomes a weight: softmax over all experts, the sigmoid of each logit (DeepSeek V3), or softmax over
    the chosen ones only (gpt-oss). bias: of the logits. choice_bias: a number an expert, added to its score for the
    choice only. groups, top_groups: the experts in groups of equal size, of which the best ones are considered;
    group_score: a group's largest score (DeepSeek V2), or the sum of its two largest (V3). normalize: weights are
    divided by their sum. scale: they are multiplied by it. expert_scale: and by a learned number of the expert.
    own_norm: the router reads the stream after a norm of its own, divided by the root of the hidden size (Gemma 4).
    """

    top_k: int
    scores: RouterScores = "softmax"
    normalize: bool = False
    scale: float = 1.0
    bias: bool = False
    choice_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"
    expert_scale: bool = False
    own_norm: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Mixture of experts (Shazeer et al. 2017): the weighted sum of what a token's `router.top_k` experts give.

    expert: each of them. shared: one that every token has besides, for how many a config may count it;
    shared_gate: its output is multiplied by the sigmoid of a product with the token (Qwen2-MoE). scaled_inputs: weights
    multiply what the experts read instead of what they give (Llama 4).
    """

    num_experts: int
    router: RouterSpec
    expert: MLPSpec
    shared: MLPSpec | None = None
    shared_gate: bool = False
    scaled_inputs: bool = False


FeedForward = MLPSpec | ExpertsSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """scaled: the residual stream is multiplied by a learned number after the layer (Gemma 4).

    beside: experts that read the same stream as a dense feed-forward half, after a norm of their own. What each of the
    two gives has a norm, and their sum is the half's result (Gemma 4; norms "both" only).
    """

    mixer: Mixer
    feed_forward: FeedForward
    norms: NormPlacement = "pre"
    scaled: bool = False
    beside: ExpertsSpec | None = None


@dataclass(frozen=True, slots=True)
class PerLayerSpec:
    """Embeddings of `size` for each pair of a token and a layer (Gemma 3n, Gemma 4): the token's own, of a table with
    `vocab_size` rows, plus the norm of a product with the embedding; both divided by the root of two.

    After the two halves of layer l comes a third one: the stream is brought to `size` features, their activation is
    multiplied by the embedding of l, and the product with a matrix is added after a norm.
    """

    size: int
    vocab_size: int
    activation: Activation


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
    """A decoder-only transformer. Sizes are counts of elements, never bytes.

    learned_positions: embeddings of so many positions are added to those of the tokens. embedding_norm: the embeddings
    have a norm (Bloom). The scales multiply the
    embeddings, what each half of a layer adds to the residual stream, and the logits.
    """

    family: str
    hidden_size: int
    vocab_size: int
    max_position: int  # longest context in tokens after rope scaling
    layers: tuple[LayerSpec, ...]
    norm: NormSpec
    tie_embeddings: bool
    checkpoint_dtype: str  # "float32" | "float16" | "bfloat16": from the config
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    final_soft_cap: float | None = None
    learned_positions: int = 0
    embedding_norm: bool = False
    per_layer: PerLayerSpec | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    matrix_dtype: str | None = (
        None  # type of all matrices that are stored as floats, where the files were read
    )
    exact_dtype: str | None = None  # the same of those that are multiplied in float32, as routers are
    codes: StoredCodes | None = None  # the others
    packed: WeightFormats | None = None  # how a packed folder holds all matrices
    packed_names: tuple[str, ...] = ()  # of those matrices, which say whether q, k and v are one

    @property
    def stored_dtype(self) -> str:
        """The narrowest type that holds every matrix exactly."""
        return self.matrix_dtype or self.checkpoint_dtype

    @property
    def kv_shapes(self) -> tuple[KVLayout, ...]:
        """KV groups in order of first appearance; layer i belongs to the group whose `layers` holds i, unless it shares
        another one's."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, layer in enumerate(self.layers):
            mixer = layer.mixer
            key: tuple[object, ...]
            if isinstance(mixer, RecurrentSpec):
                key = (mixer.state,)
            elif mixer.shares is not None:
                continue
            else:
                key = (
                    mixer.retention, mixer.window, mixer.sinks, mixer.num_kv_heads, mixer.head_dim, mixer.value_in_key
                )  # fmt: skip
            groups.setdefault(key, []).append(index)
        layouts = []
        for members in groups.values():
            mixer = self.layers[members[0]].mixer
            if isinstance(mixer, RecurrentSpec):
                layouts.append(
                    KVLayout("state", tuple(members), Retention.STATE, None, 0, 0, 0, state=mixer.state)
                )
                continue
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
                    value_in_key=mixer.value_in_key,
                )
            )
        return tuple(layouts)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Layers whose keys and values have one shape and one retention: one block table serves them all.

    value_in_key: values are not stored, as they are the first so many features of the keys; None: they are as wide.
    state: of recurrent layers, which keep no keys and values.
    recent: of the blocks that sequences are writing, beside another group of the same layers (program.recent).
    """

    name: str
    layers: tuple[int, ...]
    retention: Retention
    window: int | None
    sinks: int
    num_kv_heads: int
    head_dim: int
    value_in_key: int | None = None
    state: StateShape | None = None
    recent: bool = False

    @property
    def slot_elements(self) -> int:
        """Float32 elements of one sequence's state over all layers of the group."""
        if self.state is None:
            return 0
        return len(self.layers) * (self.state.conv_elements + self.state.matrix_elements)

    @property
    def parts(self) -> int:
        """2: keys and values. 1: keys alone."""
        return 2 if self.value_in_key is None else 1

    @property
    def rows_per_token(self) -> int:
        """Keys and values of one token over all layers of the group."""
        return self.parts * len(self.layers) * self.num_kv_heads

    @property
    def elements_per_token(self) -> int:
        """Key and value elements of one token over all layers of the group."""
        return self.rows_per_token * self.head_dim
