"""The minimum work of a step: the bytes that it must read, and the operations of its products.

Counted from the model's spec and the plan of its memory, so the numbers are the same for every implementation.
Weights are read once a step, keys and values once a sequence. Activations, norms and the sampler are left out:
they stay in caches and are comparatively small.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.bench.roofline import Work
from headrace.core.types import StepPlan
from headrace.models.spec import KVLayout, ModelSpec
from headrace.plan.ledger import Ledger, ledger
from headrace.plan.resolved import ResolvedConfig

_PRODUCT = {
    "int8": "i8",
    "bfloat16": "bf16",
    "bf16": "bf16",
}  # by type of activations; everything else is f32


@dataclass(frozen=True, slots=True)
class SliceShape:
    """`tokens` of one sequence from position `start` on; `logits` of them need the head."""

    tokens: int
    start: int
    logits: int


StepShape = tuple[SliceShape, ...]


def step_shape(plan: StepPlan) -> StepShape:
    """The shape of a scheduler's plan."""
    return tuple(
        SliceShape(len(work.tokens), work.start, 1 + work.num_draft if work.sample else 0)
        for work in plan.slices
    )


def decode_shape(batch: int, context: int) -> StepShape:
    """One new token for each of `batch` sequences that hold `context` tokens already."""
    return (SliceShape(1, context, 1),) * batch


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work of one model's steps.

    layer_bytes, head_bytes: packed weights that every step reads, and those that a step with logits reads.
    groups: each KV group's layout with the bytes of one token in it, over all of its layers.
    weight_product, attention_product: the type that products run in, as in roofline.PRODUCTS.
    """

    spec: ModelSpec
    layer_bytes: int
    head_bytes: int
    groups: tuple[tuple[KVLayout, int], ...]
    weight_product: str
    attention_product: str

    def step(self, shape: StepShape) -> Work:
        """The work of one step."""
        if not shape:
            return Work()
        tokens, logits = sum(part.tokens for part in shape), sum(part.logits for part in shape)
        spec = self.spec
        weights = Work(
            self.layer_bytes + (self.head_bytes if logits else 0),
            {
                self.weight_product: 2.0 * _layer_parameters(spec) * tokens
                + 2.0 * spec.vocab_size * spec.hidden_size * logits
            },
        )
        return sum((self._attention(part) for part in shape), weights)

    def _attention(self, part: SliceShape) -> Work:
        """Keys and values read once and the new ones written; two products with every visible key."""
        moved, operations = 0.0, 0.0
        for layout, token_bytes in self.groups:
            pairs, keys = visible(part, layout)
            moved += (keys + part.tokens) * token_bytes
            widths = sum(self.spec.layers[index].mixer.num_heads * layout.head_dim for index in layout.layers)
            operations += 4.0 * pairs * widths
        return Work(moved, {self.attention_product: operations})

    def steps(self, shapes: Iterable[StepShape]) -> Work:
        """The work of several steps together."""
        return sum((self.step(shape) for shape in shapes), Work())


def visible(part: SliceShape, layout: KVLayout) -> tuple[int, int]:
    """(pairs of a query and a visible key, distinct keys visible to any query) of one slice in one layer."""
    most = None if layout.window is None else layout.window + layout.sinks
    end = part.start + part.tokens
    if most is None or end <= most:
        return _sum_to(end) - _sum_to(part.start), end
    growing = max(0, most - part.start)  # queries whose window holds everything before them
    pairs = _sum_to(part.start + growing) - _sum_to(part.start) + (part.tokens - growing) * most
    return pairs, min(end, most + part.tokens - 1)


def _sum_to(count: int) -> int:
    return count * (count + 1) // 2


def model_work(spec: ModelSpec, resolved: ResolvedConfig) -> ModelWork:
    """The work of a model under a config: bytes from the memory ledger, products from the types of activations."""
    return from_ledger(spec, resolved, ledger(spec, resolved))


def from_ledger(spec: ModelSpec, resolved: ResolvedConfig, memory: Ledger) -> ModelWork:
    """`model_work` where the ledger is already known."""
    weights = {line.name: line.bytes for line in memory.weights}
    packed = resolved.weight_format
    activations = resolved.dtype if packed is None else packed.activations
    return ModelWork(
        spec=spec,
        layer_bytes=weights["attention"] + weights["feed-forward"] + weights["norms"],
        head_bytes=weights["head"]
        or weights["embeddings"],  # a tied head that is not packed is the embeddings
        groups=tuple(zip(spec.kv_shapes, (line.bytes for line in memory.kv_per_token), strict=True)),
        weight_product=_PRODUCT.get(activations, "f32"),
        attention_product=_PRODUCT.get(
            "bfloat16" if resolved.kv_cache_dtype == "int8" else resolved.kv_cache_dtype, "f32"
        ),
    )


def _layer_parameters(spec: ModelSpec) -> int:
    """Weights of all projections of all layers, without the head."""
    total = 0
    for layer in spec.layers:
        mixer = layer.mixer
        attention = 2 * spec.hidden_size * (mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim
        total += attention + 3 * spec.hidden_size * layer.feed_forward.intermediate_size
    return total
