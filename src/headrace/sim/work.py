"""The minimum work of a step: the bytes that it must read, and the operations of its products.

Counted from the model's program and the plan of its memory, so the numbers are the same for every implementation.
Weights are read once a step, keys and values once a sequence. Activations, norms and the sampler are left out:
they stay in caches and are comparatively small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from headrace.core.types import StepPlan
from headrace.models.draft_layers import DraftLayers
from headrace.models.families import weight_names
from headrace.models.spec import KVLayout, ModelSpec
from headrace.plan.formats import CODED, MemoryFormat
from headrace.plan.kv import streaming_spec
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.weights import held_bytes
from headrace.program.lower import lower
from headrace.program.lower_layers import lower_layers
from headrace.program.records import Op, Program, Rows, WeightRef
from headrace.program.work import operations_per_pair, operations_per_row, touched

CPU_PRODUCTS: Mapping[str, str] = MappingProxyType({"int8": "i8", "bfloat16": "bf16", "bf16": "bf16"})
"""The type that the native kernels and torch multiply in on a CPU; everything else is f32."""
GPU_PRODUCTS: Mapping[str, str] = MappingProxyType(
    {"int8": "i8", "bfloat16": "bf16", "bf16": "bf16", "float16": "f16", "f16": "f16", "fp8": "fp8"}
)
"""The type that tensor cores multiply in."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes that must come from memory, and operations by type of product; a multiplication and an addition are two."""

    bytes: float = 0.0
    operations: Mapping[str, float] = field(default_factory=dict)

    @property
    def all_operations(self) -> float:
        return sum(self.operations.values())

    def __add__(self, other: Work) -> Work:
        types = {**self.operations, **other.operations}
        added = {name: self.operations.get(name, 0.0) + other.operations.get(name, 0.0) for name in types}
        return Work(self.bytes + other.bytes, added)

    def times(self, count: float) -> Work:
        """The same work `count` times."""
        return Work(self.bytes * count, {name: number * count for name, number in self.operations.items()})


@dataclass(frozen=True, slots=True)
class Limit:
    """The lower bound of a piece of work's time, in seconds: the larger one of the two."""

    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def bound(self) -> str:
        """The limiting resource: "memory" or "compute"."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


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
        SliceShape(len(work.tokens), work.start - work.evicted, 1 + work.num_draft if work.sample else 0)
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
    weights with another one, by name. spec, memory: what it was made of, for `sim.cost`, if known; layers: those that
    draft for a model, where it is their work and no whole model's.
    """

    program: Program  # lowered with narrow=False: implementations differ in what they leave out
    layer_bytes: int
    head_bytes: int
    groups: tuple[tuple[KVLayout, int], ...]
    weight_product: str
    attention_product: str
    other_products: Mapping[str, str] = field(default_factory=dict)
    experts: tuple[tuple[int, int, int], ...] = ()
    spec: ModelSpec | None = None
    memory: MemoryFormat | None = None
    layers: DraftLayers | None = None

    def product(self, op: Op[Any]) -> str:
        """The type that an op with a weight multiplies in."""
        return self.product_of(op.weights[0])

    def product_of(self, weight: WeightRef) -> str:
        """The type that a weight is multiplied in."""
        return self.other_products.get(weight.name, self.weight_product)

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
    """The work of a model under a config of this machine."""
    streaming = streaming_spec(spec, resolved.attention_sinks, resolved.sliding_window)
    return work_in(streaming, resolved.memory_format)


def work_in(
    spec: ModelSpec,
    memory: MemoryFormat,
    products: Mapping[str, str] = CPU_PRODUCTS,
    layers: DraftLayers | None = None,
) -> ModelWork:
    """The work of a model whose weights and KV are stored in `memory`, on any machine; with `layers`, whose spec this
    is, that of layers that draft.

    products: the type that factors of a type are multiplied in, by the name of the compute type, of the activations
    (`WeightFormat.activations`) or of the KV; what is missing is multiplied in f32.
    """
    program = lower_work(spec, layers, narrow=False)
    sizes: Counter[str] = Counter()
    for weight in program.weights:
        sizes.update(held_bytes(weight, memory))
    multiplied = {
        weight.name: products.get(
            memory.dtype if memory.weights is None else memory.weights.of(weight.name).activations, "f32"
        )
        for weight in program.weights
        if weight.kind in ("matrix", "tied")
    }
    usual = Counter(multiplied.values()).most_common(1)[0][0]
    mixtures = tuple(
        (sum(held_bytes(op.weights[0], memory).values()), op.attributes.num_experts, op.attributes.top_k)
        for op in program.of_kind("experts")
    )
    keys = "bfloat16" if memory.kv.dtype in CODED else memory.kv.dtype
    return ModelWork(
        program=program,
        experts=mixtures,
        layer_bytes=sizes.total() - sizes["embeddings"] - sizes["head"],
        head_bytes=sizes["head"] or sizes["embeddings"],  # a tied head that is not packed is the embeddings
        groups=tuple((layout, memory.kv.token_bytes(layout)) for layout in program.kv),
        weight_product=usual,
        attention_product=products.get(keys, "f32"),
        other_products={name: product for name, product in multiplied.items() if product != usual},
        spec=spec,
        memory=memory,
        layers=layers,
    )


def lower_work(spec: ModelSpec, layers: DraftLayers | None, *, narrow: bool) -> Program:
    """The program of a model, or of layers of this spec that draft."""
    if layers is None:
        return lower(spec, weight_names(spec), narrow=narrow)
    return lower_layers(layers, 1, narrow=narrow)
