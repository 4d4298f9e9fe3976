"""Memory that one step needs besides weights and KV."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.models.spec import ModelSpec
from headrace.plan.arena import arena_bytes
from headrace.plan.formats import MemoryFormat
from headrace.plan.units import format_count

LOGITS_BYTES = 4  # logits are float32 whatever the compute type
STATE_BYTES, SUM_BYTES = 4, 8  # embeddings are made of float32 and added up in float64
STATE_ALIGN = 16  # columns: the native path hands states out in whole vectors


@dataclass(frozen=True, slots=True)
class ActivationPart:
    """Bytes of one kind of activation at the widest step."""

    name: str
    bytes: int
    how: str


def activation_parts(
    spec: ModelSpec, tokens: int, rows: int, memory: MemoryFormat
) -> tuple[ActivationPart, ...]:
    """Activations of a step of `tokens` tokens that samples `rows` sequences.

    Layers run one after the other in the same buffers, so the widest layer counts, once. Buffers of attention
    and feed-forward are added up although they are not live together: a bound for a runner without reuse.
    """
    embeddings = _embedding_part(spec, tokens, rows)
    if memory.weights is not None:
        return (*_arena_parts(spec, tokens, rows, memory), embeddings)
    element_bytes = memory.element_bytes
    qkv = max((_qkv_width(spec, index) for index in range(len(spec.layers))), default=0)
    attended = max((layer.mixer.num_heads * layer.mixer.head_dim for layer in spec.layers), default=0)
    inner = max((layer.feed_forward.intermediate_size for layer in spec.layers), default=0)
    shape = f"{format_count(tokens)} tokens x "
    each = f" x {element_bytes} B"
    return (
        ActivationPart(
            "hidden",
            tokens * 3 * spec.hidden_size * element_bytes,
            f"{shape}3 x {spec.hidden_size}{each}: residual, normed input, output",
        ),
        ActivationPart(
            "attention",
            tokens * (qkv + attended) * element_bytes,
            f"{shape}({qkv} q, k, v + {attended} output){each}",
        ),
        ActivationPart(
            "feed-forward",
            tokens * 3 * inner * element_bytes,
            f"{shape}3 x {inner}{each}: gate, up, product",
        ),
        ActivationPart(
            "logits",
            rows * 2 * spec.vocab_size * LOGITS_BYTES,
            f"{format_count(rows)} rows x 2 x {spec.vocab_size} x {LOGITS_BYTES} B: logits and a copy",
        ),
        embeddings,
    )


def _embedding_part(spec: ModelSpec, tokens: int, rows: int) -> ActivationPart:
    """A step may be one of prompts to embed alone, each token of which is asked for its final hidden state."""
    width = -(-spec.hidden_size // STATE_ALIGN) * STATE_ALIGN
    return ActivationPart(
        "embeddings",
        tokens * width * STATE_BYTES + rows * spec.hidden_size * SUM_BYTES,
        f"steps of up to {format_count(tokens)} tokens x {width} x {STATE_BYTES} B: final hidden states; "
        f"{format_count(rows)} sequences x {spec.hidden_size} x {SUM_BYTES} B: their sums",
    )


def _arena_parts(spec: ModelSpec, tokens: int, rows: int, memory: MemoryFormat) -> tuple[ActivationPart, ...]:
    """The native path shares less between layers but never holds a part twice."""
    sizes = arena_bytes(spec, max(1, tokens), rows, memory)
    steps = f"steps of up to {format_count(tokens)} tokens: "
    said = {
        "hidden": "residual stream, normed input",
        "attention": f"q, k, v, output, rotations, scratch of {memory.threads} threads",
        "feed-forward": "gated product",
        "logits": "a row a token, resident only where they are asked for",
    }
    return tuple(ActivationPart(name, sizes[name], steps + how) for name, how in said.items())


def activation_bytes(spec: ModelSpec, tokens: int, rows: int, memory: MemoryFormat) -> int:
    """Sum of the parts; never falls when tokens or rows grow."""
    return sum(part.bytes for part in activation_parts(spec, tokens, rows, memory))


def _qkv_width(spec: ModelSpec, index: int) -> int:
    mixer = spec.layers[index].mixer
    return (mixer.num_heads + 2 * mixer.num_kv_heads) * mixer.head_dim
