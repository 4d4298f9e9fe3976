"""Exact parameter counts of a model, by part, and the bytes that they take."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import LayerSpec, ModelSpec
from headrace.plan.formats import MemoryFormat
from headrace.plan.units import format_count
from headrace.quant.format import WeightFormat

_NORM_BYTES = 4  # beside packed matrices norms are float32


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Parameters of one part of the model, all layers together."""

    name: str
    parameters: int
    how: str


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Memory of one part of the model."""

    name: str
    bytes: int
    how: str


def weight_parts(spec: ModelSpec) -> tuple[WeightPart, ...]:
    """Embeddings, attention, feed-forward, norms, head. A tied head counts with the embeddings."""
    hidden, vocab, layers = spec.hidden_size, spec.vocab_size, len(spec.layers)
    attention = sum(_attention(spec, layer) for layer in spec.layers)
    feed_forward = sum(_feed_forward(spec, layer) for layer in spec.layers)
    norms = hidden + sum(_norms(spec, layer) for layer in spec.layers)
    matrix = f"{format_count(vocab)} x {format_count(hidden)}"
    return (
        WeightPart("embeddings", vocab * hidden, matrix),
        WeightPart("attention", attention, f"q, k, v and output projections of {layers} layers"),
        WeightPart("feed-forward", feed_forward, f"gate, up and down projections of {layers} layers"),
        WeightPart("norms", norms, f"{layers} layers and the final norm"),
        WeightPart(
            "head",
            0 if spec.tie_embeddings else vocab * hidden,
            "shares the embeddings" if spec.tie_embeddings else matrix,
        ),
    )


def parameter_count(spec: ModelSpec) -> int:
    """Parameters of the model, each tied one once."""
    return sum(part.parameters for part in weight_parts(spec))


def weight_bytes(spec: ModelSpec, memory: MemoryFormat) -> tuple[WeightBytes, ...]:
    """The parts of `weight_parts` with the bytes that they take in `memory`."""
    parts = weight_parts(spec)
    if memory.weights is None:
        return tuple(_dense(part, memory.element_bytes) for part in parts)
    return _packed(spec, parts, memory.weights, memory.table_bytes)


def total_weight_bytes(spec: ModelSpec, memory: MemoryFormat) -> int:
    """Bytes of all weights."""
    return sum(part.bytes for part in weight_bytes(spec, memory))


def _dense(part: WeightPart, element: int) -> WeightBytes:
    how = f"{format_count(part.parameters)} x {element} B: {part.how}" if part.parameters else part.how
    return WeightBytes(part.name, part.parameters * element, how)


def _packed(
    spec: ModelSpec, parts: tuple[WeightPart, ...], weights: WeightFormat, element: int
) -> tuple[WeightBytes, ...]:
    sizes = {
        "attention": sum(_attention_bytes(spec, layer, weights) for layer in spec.layers),
        "feed-forward": sum(_feed_forward_bytes(spec, layer, weights) for layer in spec.layers),
        "head": weights.packed_bytes(spec.vocab_size, spec.hidden_size),
    }
    if spec.tie_embeddings and not weights.quantized:  # one packed matrix is both
        sizes["embeddings"], sizes["head"] = sizes["head"], 0
    lines = []
    for part in parts:
        if sizes.get(part.name) == 0:
            lines.append(WeightBytes(part.name, 0, part.how))
        elif part.name in sizes:
            count = part.parameters or spec.vocab_size * spec.hidden_size
            what = "the embeddings once more, in fewer bits" if part.parameters == 0 else part.how
            how = f"{format_count(count)} in {weights.name}: {what}"
            lines.append(WeightBytes(part.name, sizes[part.name], how))
        else:
            lines.append(_dense(part, _NORM_BYTES if part.name == "norms" else element))
    return tuple(lines)


def _attention_bytes(spec: ModelSpec, layer: LayerSpec, weights: WeightFormat) -> int:
    mixer = layer.mixer
    q_width, kv_width = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    qkv = weights.packed_bytes(q_width + 2 * kv_width, spec.hidden_size, bias=mixer.qkv_bias)
    return qkv + weights.packed_bytes(spec.hidden_size, q_width, bias=mixer.out_bias)


def _feed_forward_bytes(spec: ModelSpec, layer: LayerSpec, weights: WeightFormat) -> int:
    mlp = layer.feed_forward
    wide = mlp.intermediate_size
    gate_up = weights.packed_bytes(2 * wide, spec.hidden_size, gated=True, bias=mlp.bias)
    return gate_up + weights.packed_bytes(spec.hidden_size, wide, bias=mlp.bias)


def _attention(spec: ModelSpec, layer: LayerSpec) -> int:
    mixer = layer.mixer
    q_width, kv_width = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    count = 2 * spec.hidden_size * (q_width + kv_width)
    if mixer.qkv_bias:
        count += q_width + 2 * kv_width
    if mixer.out_bias:
        count += spec.hidden_size
    return count


def _feed_forward(spec: ModelSpec, layer: LayerSpec) -> int:
    mlp = layer.feed_forward
    count = 3 * spec.hidden_size * mlp.intermediate_size
    if mlp.bias:
        count += 2 * mlp.intermediate_size + spec.hidden_size
    return count


def _norms(spec: ModelSpec, layer: LayerSpec) -> int:
    return 2 * spec.hidden_size + (2 * layer.mixer.head_dim if layer.mixer.qk_norm else 0)
