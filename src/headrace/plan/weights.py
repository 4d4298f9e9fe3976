"""Exact parameter counts of a model, by part."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import LayerSpec, ModelSpec
from headrace.plan.units import format_count


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Parameters of one part of the model, all layers together."""

    name: str
    parameters: int
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
