"""Memory of the native path's tape: the buffers that runner.tape asks for, each once.

The arena is allocated for the largest step, and its pages become resident when a step first writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.models.rope import sink_position
from headrace.models.spec import AttentionSpec, LayerSpec, ModelSpec
from headrace.plan.formats import MemoryFormat
from headrace.quant.format import INPUT_ALIGN, PAGE, WeightFormat

_BYTES = {"f32": 4, "bf16": 2, "int8": 1}
_CACHE_LINE = 64

# Attention's scratch memory for each thread, see csrc/isa/attention_plan.h: the most rows of a tile on any instruction
# set, columns of a span, partial results kept at once, and the least room for them in floats.
_TILE_ROWS, _SPAN, _PARTIALS, _POOL_FLOATS = 64, 256, 8, 1 << 18
_MASKED = 32  # columns of values that are copied at once


@dataclass(slots=True)
class _Arena:
    """Buffers by key; `sizes` in bytes, by part of the model."""

    tokens: int
    seen: set[tuple[object, ...]] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)

    def take(self, part: str, *sizes: int) -> None:
        """Arrays of so many bytes, each in whole pages."""
        self.sizes[part] = self.sizes.get(part, 0) + sum(-(-size // PAGE) * PAGE for size in sizes)

    def rows(self, part: str, role: str, kind: str, columns: int, group: int | None = None) -> None:
        """A buffer of one row a token, once for each role and form. int8 rows have a scale and a sum a group."""
        if (role, kind, columns, group) in self.seen:
            return
        self.seen.add((role, kind, columns, group))
        padded = _round(columns, INPUT_ALIGN)
        stride = _round(padded * _BYTES[kind], _CACHE_LINE)
        self.take(part, self.tokens * (stride if stride % PAGE else stride + _CACHE_LINE))
        if kind == "int8":
            groups = 1 if group is None else -(-padded // group)
            self.take(part, *[self.tokens * groups * 4] * 2)

    def once(self, part: str, key: tuple[object, ...], *sizes: int) -> None:
        """Arrays that are not rows, once for each key."""
        if key not in self.seen:
            self.seen.add(key)
            self.take(part, *sizes)


def arena_bytes(spec: ModelSpec, tokens: int, seqs: int, memory: MemoryFormat) -> dict[str, int]:
    """Bytes of hidden, attention, feed-forward and logits for steps of up to `tokens` tokens of `seqs` sequences."""
    weights = memory.weights
    assert weights is not None  # the native path has packed weights
    arena = _Arena(tokens)
    hidden = spec.hidden_size
    arena.rows("hidden", "stream", "f32", hidden)
    arena.rows("hidden", "selected", "f32", hidden)
    arena.rows("hidden", "encoded_norm", weights.activations, hidden, weights.group)
    for index, layer in enumerate(spec.layers):
        last = index == len(spec.layers) - 1
        _attention(arena, layer.mixer, weights, memory, seqs, last=last)
        _feed_forward(arena, layer, weights)
    arena.take("logits", tokens * spec.vocab_size * 4)
    return arena.sizes


def _attention(
    arena: _Arena, mixer: AttentionSpec, weights: WeightFormat, memory: MemoryFormat, seqs: int, *, last: bool
) -> None:
    width = mixer.num_heads * mixer.head_dim
    arena.rows("attention", "qkv", "f32", width + 2 * mixer.num_kv_heads * mixer.head_dim)
    query_bytes = arena.tokens * width * (4 if memory.kv.dtype == "float32" else 2)
    limit = sink_position(mixer)
    for role, position in (("q", None), ("q_sink", limit)):
        if role == "q" or position is not None:
            arena.once("attention", (role, width), query_bytes)
            arena.once("attention", (mixer.rope, position), *[arena.tokens * mixer.rope.dim // 2 * 4] * 2)
    # After the last layer's attention only the rows with logits are computed further: they are gathered from floats.
    arena.rows("attention", "mixed", "f32" if last else _direct(weights), width)
    if last or weights.activations == "int8":
        arena.rows("attention", "encoded_out", weights.activations, width, weights.group)
    scratch = _scratch(mixer, memory, seqs)
    arena.once("attention", ("scratch", scratch), scratch)


def _feed_forward(arena: _Arena, layer: LayerSpec, weights: WeightFormat) -> None:
    wide = layer.feed_forward.intermediate_size
    arena.rows("feed-forward", "wide", _direct(weights), wide)
    if weights.activations == "int8":
        arena.rows("feed-forward", "encoded_down", "int8", wide, weights.group)


def _direct(weights: WeightFormat) -> str:
    """The format of floats between two products; int8 is made from f32."""
    return "f32" if weights.activations == "int8" else weights.activations


def _scratch(mixer: AttentionSpec, memory: MemoryFormat, seqs: int) -> int:
    """A bound: instruction sets cut attention into tiles of different sizes."""
    partial = _round((2 * _round(_TILE_ROWS, 16) + _TILE_ROWS * mixer.head_dim) * 4, _CACHE_LINE)
    columns = _SPAN if memory.kv.dtype == "int8" else _MASKED
    values = (4 if memory.kv.dtype == "float32" else 2) * columns * mixer.head_dim
    results = partial * _PARTIALS
    work = 4 * _TILE_ROWS * (_SPAN + 16) + 2 * partial + values
    tables = 4 * _CACHE_LINE + 32 * _PARTIALS * memory.threads + 8 * (seqs + 1)
    return _round(tables, _CACHE_LINE) + memory.threads * (results + max(4 * _POOL_FLOATS, results) + work)


def _round(count: int, step: int) -> int:
    return -(-count // step) * step
