"""Memory that one step needs besides weights and KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.ops.scratch import CHUNK_ELEMENTS, MAX_GATHERED, MAX_TILE_ROWS
from headrace.plan.arena import arena_bytes
from headrace.plan.formats import MemoryFormat
from headrace.plan.kv import KVDemand
from headrace.plan.units import format_count
from headrace.program.records import Combine, Op, Program

LOGITS_BYTES = 4  # logits are float32 whatever the compute type
_LATENT = ("query_down", "query", "latent", "absorbed", "head_values")
"""Buffers of latent attention."""
FLOAT_BYTES = 4  # torch attends in float32
MASK_BYTES = 12  # of a pair of query and key: their distance as int64, and masks
LOGPROB_CHUNK_BYTES = 16  # of a logit: its log-probability, whether it is greater, and what ranking sorts
STATE_BYTES, SUM_BYTES = 4, 8  # embeddings come from float32 states and are summed in float64
STATE_ALIGN = 16  # columns: the native path writes states in whole vectors


@dataclass(frozen=True, slots=True)
class ActivationPart:
    """Bytes of one kind of activation at the widest step."""

    name: str
    bytes: int
    how: str


def activation_parts(
    program: Program, tokens: int, rows: int, memory: MemoryFormat, demands: Sequence[KVDemand]
) -> tuple[ActivationPart, ...]:
    """Activations of a step of `tokens` tokens that samples `rows` sequences, whose KV `demands` describes.

    Layers run one after the other in the same buffers, so the widest layer counts, once. Buffers of attention
    and feed-forward are added up although they are not live together: a bound for a runner without reuse.
    """
    embeddings = _embedding_part(program, tokens, rows)
    if memory.weights is not None:
        return (*_arena_parts(program, tokens, rows, memory), embeddings)
    element_bytes = memory.element_bytes
    per_layer = 3 * _widest(program, "per_layer")  # the embeddings of all layers, a product, and its norm
    routed = max((_routed(program, op) for op in program.of_kind("combine")), default=0)
    qkv, attended, inner = (_widest(program, name) for name in ("qkv", "mixed", "wide"))
    latent = sum(_widest(program, name) for name in _LATENT)
    recurrent = max((_recurrent(op) for op in program.ops if op.kind in ("conv", "delta")), default=0)
    shape = f"{format_count(tokens)} tokens x "
    each = f" x {element_bytes} B"
    return (
        ActivationPart(
            "hidden",
            tokens * (3 * program.hidden_size + per_layer) * element_bytes,
            f"{shape}3 x {program.hidden_size}{each}: residual, normed input, output"
            + (f"; {per_layer}{each}: embeddings of each layer" if per_layer else ""),
        ),
        ActivationPart(
            "attention",
            tokens * (qkv + latent + attended) * element_bytes + tokens * recurrent * FLOAT_BYTES,
            f"{shape}({qkv + latent} q, k, v + {attended} output){each}"
            + (f"; {recurrent} x {FLOAT_BYTES} B: recurrent layers" if recurrent else ""),
        ),
        ActivationPart(
            "feed-forward",
            tokens * (3 * inner + routed) * element_bytes,
            f"{shape}3 x {inner}{each}: gate, up, product"
            + (f"; {routed}{each}: routed rows of experts" if routed else ""),
        ),
        _scratch_part(program, tokens, rows, memory, demands),
        *(_logits_parts(program, tokens, rows, memory) if program.of_kind("logits") else ()),
        embeddings,
    )


def _scratch_part(
    program: Program, tokens: int, rows: int, memory: MemoryFormat, demands: Sequence[KVDemand]
) -> ActivationPart:
    """Temporaries of attention in the widest layer. A bound; see ops.torch_fast."""
    most, how = 0, "no layer attends"
    by_cache = {op.attributes.cache: op.attributes for op in program.of_kind("attention")}
    for demand in demands:
        layout = demand.layout
        if layout.state is not None:
            continue
        mixers = [by_cache[index] for index in layout.layers]
        heads = max(mixer.num_heads for mixer in mixers)
        columns = demand.most // demand.max_num_seqs * demand.block_size  # keys of the longest sequence
        width = layout.num_kv_heads * layout.head_dim
        # One sequence, or as many as fit; every bound rises with each of its sizes.
        gathered = min(rows * columns * width, max(columns * width, MAX_GATHERED))
        # Keys and values as float32, one of them as it is stored, and of values the last blocks twice more.
        stored = memory.element_bytes if memory.element_bytes < FLOAT_BYTES else 0
        ends = min(rows * demand.block_size * width, gathered)
        bytes_ = gathered * (2 * FLOAT_BYTES + stored) + ends * 2 * FLOAT_BYTES
        tile = min(tokens, MAX_TILE_ROWS) if memory.tiled else tokens
        limit = max(columns, MAX_GATHERED // heads) if memory.tiled else tokens * columns
        pairs = max(min(tile * columns, limit), gathered // width)  # (query, key) pairs computed together
        copies = 2 + any(mixer.soft_cap for mixer in mixers) + bool(layout.sinks)
        bytes_ += pairs * (heads * copies * FLOAT_BYTES + MASK_BYTES)
        if bytes_ > most:
            most = bytes_
            how = (
                f"keys and values of {format_count(gathered)} elements, {format_count(pairs)} pairs of query and key x "
                f"{heads} heads x {copies} x {FLOAT_BYTES} B, and their masks"
            )
    return ActivationPart("attention scratch", most, how)


def _logits_parts(
    program: Program, tokens: int, rows: int, memory: MemoryFormat
) -> tuple[ActivationPart, ActivationPart]:
    """Of the rows that are sampled, and of all positions of prompts whose log-probabilities are asked for."""
    each = LOGITS_BYTES + (memory.element_bytes if memory.element_bytes < LOGITS_BYTES else 0)
    each += 2 * LOGITS_BYTES if program.ops[-1].attributes.soft_cap is not None else 0
    scored = max(rows, tokens)
    made = scored * program.vocab_size * each
    chunk = min(scored * program.vocab_size, max(CHUNK_ELEMENTS, program.vocab_size)) * LOGPROB_CHUNK_BYTES
    return (
        ActivationPart(
            "logits",
            rows * 2 * program.vocab_size * LOGITS_BYTES,
            f"{format_count(rows)} rows x 2 x {program.vocab_size} x {LOGITS_BYTES} B: a copy, temporaries of sampling",
        ),
        ActivationPart(
            "prompt logprobs",
            made + chunk,
            f"{format_count(scored)} positions x {program.vocab_size} x {each} B, "
            f"and {format_count(chunk)} B to rank them: logits of every token of a step, where they are asked for",
        ),
    )


def _embedding_part(program: Program, tokens: int, rows: int) -> ActivationPart:
    """A step may hold only prompts to embed, and then the final hidden state of every token is needed."""
    width = -(-program.hidden_size // STATE_ALIGN) * STATE_ALIGN
    return ActivationPart(
        "embeddings",
        tokens * width * STATE_BYTES + rows * program.hidden_size * SUM_BYTES,
        f"steps of up to {format_count(tokens)} tokens x {width} x {STATE_BYTES} B: final hidden states; "
        f"{format_count(rows)} sequences x {program.hidden_size} x {SUM_BYTES} B: their sums",
    )


def _arena_parts(
    program: Program, tokens: int, rows: int, memory: MemoryFormat
) -> tuple[ActivationPart, ...]:
    """The native path shares fewer buffers between layers but holds each once."""
    sizes = arena_bytes(program, max(1, tokens), rows, memory)
    steps = f"steps of up to {format_count(tokens)} tokens: "
    said = {
        "hidden": "residual stream, normed input",
        "attention": f"q, k, v, output, rotations, scratch of {memory.threads} threads",
        "feed-forward": "gated product",
        "logits": "a row a token, resident only where they are asked for",
    }
    return tuple(ActivationPart(name, sizes.get(name, 0), steps + how) for name, how in said.items())


def activation_bytes(
    program: Program, tokens: int, rows: int, memory: MemoryFormat, demands: Sequence[KVDemand]
) -> int:
    """Sum of the parts; never falls when tokens or rows grow."""
    return sum(part.bytes for part in activation_parts(program, tokens, rows, memory, demands))


def _routed(program: Program, op: Op[Combine]) -> int:
    """Elements of a token's routed rows, of their products, of what they give, once more in order, and of the sum."""
    each, hidden = op.attributes.top_k, program.hidden_size
    return each * (3 * _widest(program, "wide_routed") + 4 * hidden) + 2 * hidden


def _recurrent(op: Op[Any]) -> int:
    """Elements of a token that a recurrent op and the products before it hold as float32."""
    return 4 * sum(buffer.columns for buffer in (*op.inputs, *op.outputs))


def _widest(program: Program, name: str) -> int:
    """Columns of the widest buffer of that name."""
    return max((buffer.columns for buffer in program.buffers if buffer.name == name), default=0)
