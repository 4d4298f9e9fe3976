"""The minimum work of a step: the bytes that it must read, and the operations of its products.

Counted from the model's program and the plan of its memory, so the numbers are the same for every implementation.
Weights are read once a step, keys and values once a sequence. Activations, norms and the sampler are left out:
they stay in caches and are comparatively small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.roofline import Work
from headrace.core.types import StepPlan
from headrace.models.families import weight_names
from headrace.models.spec import KVLayout, ModelSpec
from headrace.plan.ledger import Ledger, ledger
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.weights import held_bytes
from headrace.program.lower import lower
from headrace.program.records import Op, Program, Rows
from headrace.program.work import operations_per_pair, operations_per_row, touched

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
    experts: of `layer_bytes`, each mixture's (bytes, experts, experts of a token): a step reads those that it needs.
    groups: each KV group's layout with the bytes of one token in it, over all of its layers.
    weight_product, attention_product: the type that products run in, as in roofline.PRODUCTS; other_products: that of
    weights with another one, by name.
    """

    program: Program  # lowered with narrow=False: implementations differ in what they leave out
    layer_bytes: int
    head_bytes: int
    groups: tuple[tuple[KVLayout, int], ...]
    weight_product: str
    attention_product: str
    other_products: Mapping[str, str] = field(default_factory=dict)
    experts: tuple[tuple[int, int, int], ...] = ()

    def product(self, op: Op[Any]) -> str:
        """The type that an op with a weight multiplies in."""
        return self.other_products.get(op.weights[0].name, self.weight_product)

    def step(self, shape: StepShape) -> Work:
        """The work of one step."""
        if not shape:
            return Work()
        tokens, logits = sum(part.tokens for part in shape), sum(part.logits for part in shape)
        rows: dict[Rows, int] = {"tokens": tokens, "selected": logits, "logits": logits}
        operations: Counter[str] = Counter()
        for op in self.program.ops:
            if count := operations_per_row(op):
                operations[self.product(op)] += count * rows[op.rows]
        idle = sum(size * (1 - touched(count, top_k, tokens)) for size, count, top_k in self.experts)
        read = self.layer_bytes - idle + (self.head_bytes if logits else 0)
        weights = Work(read, {product: float(count) for product, count in operations.items()})
        return sum((self._attention(part) for part in shape), weights)

    def _attention(self, part: SliceShape) -> Work:
        """Keys and values read once and the new ones written; two products with every visible key."""
        moved, operations = 0.0, 0.0
        attention = {op.attributes.cache: op for op in self.program.of_kind("attention")}
        other = 0.0
        for layout, token_bytes in self.groups:
            if (
                layout.state is not None
            ):  # read and written once; decay, two products and the update of each element
                moved += 2 * layout.slot_elements * 4
                other += 7.0 * part.tokens * len(layout.layers) * layout.state.matrix_elements
                continue
            pairs, keys = visible(part, layout)
            moved += (keys + part.tokens) * token_bytes
            operations += pairs * sum(operations_per_pair(attention[layer]) for layer in layout.layers)
        return Work(moved, {self.attention_product: operations}) + Work(0, {"f32": other} if other else {})

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
    formats = resolved.weight_formats
    program = lower(spec, weight_names(spec), narrow=False)
    products = {
        weight.name: _PRODUCT.get(
            resolved.dtype if formats is None else formats.of(weight.name).activations, "f32"
        )
        for weight in program.weights
        if weight.kind in ("matrix", "tied")
    }
    usual = Counter(products.values()).most_common(1)[0][0]
    mixtures = tuple(
        (
            sum(held_bytes(op.weights[0], resolved.memory_format).values()),
            op.attributes.num_experts,
            op.attributes.top_k,
        )
        for op in program.of_kind("experts")
    )
    return ModelWork(
        program=program,
        experts=mixtures,
        layer_bytes=weights["attention"] + weights["feed-forward"] + weights["norms"],
        head_bytes=weights["head"]
        or weights["embeddings"],  # a tied head that is not packed is the embeddings
        groups=tuple(zip(program.kv, (line.bytes for line in memory.kv_per_token), strict=True)),
        weight_product=usual,
        attention_product=_PRODUCT.get(
            "bfloat16" if resolved.kv_cache_dtype == "int8" else resolved.kv_cache_dtype, "f32"
        ),
        other_products={name: product for name, product in products.items() if product != usual},
    )
