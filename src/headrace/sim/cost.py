"""The time of a step: over the ops of a program, the slower one of operations and bytes, and what each call and step
costs besides.

An op with a matrix takes as long as its elements do at this number of rows (`Profile.products`), where that was
measured, else max(operations / rate, bytes / bandwidth). Equal ops of different layers count as one with a number of
calls, and what depends on the number of tokens alone is remembered: a step takes some microseconds to price.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError
from headrace.models.spec import KVLayout
from headrace.plan.arena import calls
from headrace.plan.weights import matrix_bytes
from headrace.program.records import Attention, Op, Program, Rows
from headrace.program.work import operations_per_pair, operations_per_row, touched
from headrace.sim.profile import Profile, SampleCost, StepCost
from headrace.sim.work import ModelWork, SliceShape, StepShape, decode_shape, lower_work, visible

_PRODUCTS = ("linear", "logits", "heads_linear", "experts")
_EXCHANGED_BYTES = 2
"""Of a partial sum that devices exchange: 16-bit floats."""
CHOOSE_S = 40e-9
"""Of a key of a KV head in one layer, where tokens are chosen that stay: as measured with `shape:smollm2-135m` and 320
keys on both cores of an AMD EPYC (Zen 4) that other programs used too."""
FLOAT_BYTES = 4
DRAWN = "sampling"
ENGINE = "engine"
EXCHANGE = "all-reduce"


@dataclass(frozen=True, slots=True)
class OpTime:
    """One op of a step, over all layers. `bound`: "memory" or "compute" where the op reads a matrix or a cache, else
    "fixed"."""

    op: str
    seconds: float
    bytes: float
    operations: float
    bound: str


@dataclass(frozen=True, slots=True)
class _Product:
    """A matrix on one device. experts: their number, and those of a token; `elements` and `bytes` are those of all."""

    name: str
    rows: Rows
    elements: float
    bytes: float
    format: str
    product: str
    outputs: float
    columns: int
    experts: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Rowwise:
    """An op without a matrix, over `elements` of each row. type: what it writes, if a matrix reads that next; of
    rope the width of a head."""

    name: str
    kind: str
    rows: Rows
    elements: int
    type: str


@dataclass(frozen=True, slots=True)
class _Attends:
    """The attention of the layers of one KV group that are alike, on one device.

    elements: of keys and values of a token in one layer, over the KV heads; heads: query heads of a KV head; width:
    features of a query head.
    """

    layout: KVLayout
    layers: int
    elements: float
    kv_heads: float
    heads: int
    width: int
    token_bytes: float  # in one layer
    pair_operations: float  # in one layer


class CostModel:
    """Prices the steps of one model on one machine.

    tp: devices that share every layer; the profile's `link` says what exchanging sums costs. sampling: the key of
    `Profile.samples`. step: what the engine adds to a step, in place of `Profile.step`.
    """

    def __init__(
        self,
        work: ModelWork,
        profile: Profile,
        *,
        tp: int = 1,
        sampling: str = "greedy",
        step: StepCost | None = None,
    ) -> None:
        """Raises ConfigError for work that does not name its model, or devices that nothing links."""
        if work.spec is None or work.memory is None:
            raise ConfigError("the cost model needs work made by `model_work` or `work_in`")
        if tp > 1 and profile.link is None:
            raise ConfigError(f"the profile of {profile.name} has no link for {tp} devices")
        self.work, self.profile, self.tp = work, profile, tp
        self._step_cost = profile.step if step is None else step
        memory = work.memory
        native = memory.weights is not None and profile.source == "measured"
        self._program = lower_work(work.spec, work.layers, narrow=native)
        if memory.weights is not None:
            ops = tuple(call.op for call in calls(self._program, memory.weights, memory.kv.dtype))
        else:  # of one type: nothing is encoded
            ops = tuple(op for op in self._program.ops if op.kind != "encode")
        products = [self._product(op) for op in ops if op.kind in _PRODUCTS]
        self._products = Counter(products)
        self._rowwise = Counter(
            self._row(op) for op in ops if op.kind not in (*_PRODUCTS, "attention", "delta")
        )
        self._attends = tuple(self._attention(self._program))
        self._recurrent = tuple(layout for layout, _ in work.groups if layout.state is not None)
        self._exchanged = Counter(
            op.weights[0].rows
            for op in ops
            if tp > 1 and op.kind in _PRODUCTS and op.weights[0].shard == "column"
        )
        self._kv_type = memory.kv.dtype
        self._weight_bytes = sum(one.bytes * count for one, count in self._products.items())
        self._sample = profile.samples.get(sampling, SampleCost())
        self._token_s: dict[int, float] = {}
        self._logit_s: dict[int, float] = {}

    @property
    def weight_bytes(self) -> float:
        """Of all matrices, on one device."""
        return self._weight_bytes

    # ---- a step ----

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step; nothing for one without slices."""
        if not shape:
            return 0.0
        tokens, logits = 0, 0
        decoding: list[SliceShape] = []
        prompts: list[SliceShape] = []
        for part in shape:
            tokens += part.tokens
            logits += part.logits
            (decoding if part.tokens == 1 else prompts).append(part)
        return self._step(
            tokens, logits, len(shape), len(decoding), self._decode_keys(decoding), tuple(prompts)
        )

    def decode_s(self, batch: int, context: int) -> float:
        """Seconds of a step that decodes one token for each of `batch` sequences of `context` tokens."""
        return self.step_s(decode_shape(batch, context))

    def decoding_s(self, batch: int, keys: float) -> float:
        """`decode_s` where the sequences hold `keys` tokens together, their new ones included: for simulations that
        keep this sum. Exact unless a layer has a window, which is then applied to the mean."""
        return self._step(batch, batch, batch, batch, self._seen(batch, keys), ())

    def mixed_s(self, batch: int, keys: float, prompts: StepShape) -> float:
        """The same with `prompts` beside, each of several tokens."""
        tokens = batch + sum([part.tokens for part in prompts])
        logits = batch + sum([part.logits for part in prompts])
        return self._step(tokens, logits, batch + len(prompts), batch, self._seen(batch, keys), prompts)

    def _seen(self, batch: int, keys: float) -> tuple[float, ...]:
        """Keys that each group's layers visit for `batch` sequences, which hold so many together."""
        mean = keys / batch if batch else 0.0
        return tuple([batch * min(mean, _reach(one.layout) or mean) for one in self._attends])

    def prefill_s(self, tokens: int, start: int = 0, chunk: int | None = None) -> float:
        """Seconds of computing `tokens` tokens of a prompt after its first `start` ones, `chunk` tokens a step."""
        size = chunk or tokens
        total, end = 0.0, start + tokens
        for at in range(start, end, size):
            count = min(size, end - at)
            total += self.step_s((SliceShape(count, at, 1 if at + count == end else 0),))
        return total

    def verifying_s(self, batch: int, context: int, drafts: int) -> float:
        """Seconds of a step that verifies so many drafts of each of `batch` sequences of `context` tokens."""
        if not drafts:
            return self.decode_s(batch, context)
        part, rows = SliceShape(1 + drafts, context, 1 + drafts), batch * (1 + drafts)
        total = self._tokens(rows) + self._logits(rows) + self._engine_s(rows, batch, 0)
        total += batch * sum(self._prompt_attention_s(one, part) for one in self._attends)
        return total + sum(self._state_s(layout, rows, batch)[0] for layout in self._recurrent)

    def head_s(self, rows: int) -> float:
        """Seconds of the head alone, for so many rows."""
        return self._matrices(("logits",), rows)

    def draw_s(self, logits: int) -> float:
        """Seconds of drawing a token from each of so many rows."""
        if not logits:
            return 0.0
        cost = self._sample
        return cost.call_s + logits * (cost.row_s + cost.element_s * self._program.vocab_size)

    def evicting_s(self, rows: int, keys: int, kept: int = 0) -> float:
        """Seconds of evicting KV tokens of one sequence that holds `keys` tokens, in the layers that keep all: its last
        `rows` queries meet the keys once more; where `kept` is not 0, so many tokens are chosen and moved."""
        total = 0.0
        for one in self._attends:
            if _reach(one.layout) is None:
                read = keys * one.token_bytes
                total += one.layers * self._visit_s(one, 1, rows, float(keys), read, read)
                if kept:
                    moved = 2.0 * kept * one.token_bytes / self.profile.bandwidth()
                    total += one.layers * (moved + CHOOSE_S * keys * one.kv_heads)
        return total

    def formula_s(self, shape: StepShape) -> float:
        """The plain roofline's time of a step: all of its bytes, or all of its operations, at the full rates."""
        work = self.work.step(shape)
        compute = sum(count / self.profile.peak(name) for name, count in work.operations.items())
        return max(work.bytes / self.profile.bandwidth(), compute) / self.tp

    def breakdown(self, shape: StepShape) -> tuple[OpTime, ...]:
        """The step by op; the seconds add up to `step_s`."""
        if not shape:
            return ()
        rows = _rows(shape)
        working_set = self._weight_bytes
        found: dict[str, OpTime] = {}

        def add(name: str, seconds: float, bytes: float, operations: float, bound: str) -> None:
            old = found.get(name)
            if old is not None:
                seconds, bytes, operations = (
                    seconds + old.seconds, bytes + old.bytes, operations + old.operations,
                )  # fmt: skip
                bound = bound if seconds > 2 * old.seconds else old.bound
            found[name] = OpTime(name, seconds, bytes, operations, bound)

        for product, count in self._products.items():
            number = rows[product.rows]
            if not number:
                continue
            used, read = self._used(product, number)
            operations = 2.0 * used * product.elements * read
            bound = "memory" if self._memory_bound(product, used) else "compute"
            seconds = count * self._product_s(product, number, working_set)
            add(product.name, seconds, count * product.bytes * read, count * operations, bound)
        for op, count in self._rowwise.items():
            size = count * rows[op.rows] * op.elements
            add(op.name, count * self._rowwise_s(op, rows[op.rows]), 2.0 * FLOAT_BYTES * size, 0.0, "fixed")
        for one in self._attends:
            decoding = [part for part in shape if part.tokens == 1]
            keys = self._keys(one, decoding)
            seconds = self._decode_attention_s(one, len(decoding), keys)
            bytes, pairs = keys * one.layers * one.token_bytes, keys
            for part in shape:
                if part.tokens > 1:
                    seen, read = visible(part, one.layout)
                    seconds += self._prompt_attention_s(one, part)
                    bytes, pairs = bytes + read * one.layers * one.token_bytes, pairs + seen
            operations = pairs * one.layers * one.pair_operations
            slow = (
                operations / self.profile.peak(self.work.attention_product) > bytes / self.profile.bandwidth()
            )
            add("attention", seconds, bytes, operations, "compute" if slow else "memory")
        for layout in self._recurrent:
            seconds, bytes, operations = self._state_s(layout, rows["tokens"], len(shape))
            add("recurrent", seconds, bytes, operations, "memory")
        if self._exchanged:
            size = sum(count * width for width, count in self._exchanged.items())
            exchanged = float(rows["tokens"] * size * _EXCHANGED_BYTES)
            add(EXCHANGE, self._exchange_s(rows["tokens"]), exchanged, 0.0, "fixed")
        add(DRAWN, self.draw_s(rows["logits"]), rows["logits"] * 4.0 * self._program.vocab_size, 0.0, "fixed")
        first = sum(part.tokens > 1 and _ends_prompt(part) for part in shape)
        add(ENGINE, self._engine_s(rows["tokens"], len(shape), first), 0.0, 0.0, "fixed")
        return tuple(found.values())

    # ---- parts of a step ----

    def _step(
        self, tokens: int, logits: int, sequences: int, decoding: int, keys: tuple[float, ...],
        prompts: tuple[SliceShape, ...],
    ) -> float:  # fmt: skip
        total = self._tokens(tokens) + self._logits(logits)
        for one, seen in zip(self._attends, keys, strict=True):
            if decoding:
                total += self._decode_attention_s(one, decoding, seen)
            for part in prompts:
                total += self._prompt_attention_s(one, part)
        for layout in self._recurrent:
            total += self._state_s(layout, tokens, sequences)[0]
        first = sum(map(_ends_prompt, prompts))
        return total + self._engine_s(tokens, sequences, first)

    def _tokens(self, tokens: int) -> float:
        """Everything that depends on the number of tokens alone."""
        known = self._token_s.get(tokens)
        if known is None:
            known = self._matrices(("tokens",), tokens) + self._exchange_s(tokens)
            self._token_s[tokens] = known
        return known

    def _logits(self, logits: int) -> float:
        """Everything that depends on the number of sampled rows alone."""
        known = self._logit_s.get(logits)
        if known is None:
            known = self._matrices(("selected", "logits"), logits) + self.draw_s(logits)
            self._logit_s[logits] = known
        return known

    def _matrices(self, kinds: tuple[Rows, ...], rows: int) -> float:
        if not rows:
            return 0.0
        products = sum(
            count * self._product_s(one, rows, self._weight_bytes)
            for one, count in self._products.items()
            if one.rows in kinds
        )
        others = sum(
            count * self._rowwise_s(one, rows) for one, count in self._rowwise.items() if one.rows in kinds
        )
        return products + others

    def _used(self, one: _Product, rows: int) -> tuple[float, float]:
        """(rows of each matrix that is read, the share of the elements that is read)."""
        if one.experts is None:
            return float(rows), 1.0
        experts, top_k = one.experts
        share = touched(experts, top_k, rows)
        return rows * top_k / (experts * share), share

    def _product_s(self, one: _Product, rows: int, working_set: float) -> float:
        used, read = self._used(one, rows)
        elements = one.elements * read
        bits = 8.0 * one.bytes / one.elements
        cost = self.profile.product_cost(one.format, one.product, bits)
        if cost is not None:
            other = 0.0 if one.format in self.profile.products else bits
            return self.profile.call_s + cost(
                working_set, used, elements, one.outputs * read, one.columns, other
            )
        reach = self.profile.reach
        memory = one.bytes * read / (self.profile.bandwidth(working_set) * reach.memory)
        compute = 2.0 * used * elements / (self.profile.peak(one.product) * reach.products)
        return self.profile.call_s + max(memory, compute)

    def _memory_bound(self, one: _Product, rows: float) -> bool:
        """Whether reading this matrix takes longer than multiplying, at the full rates."""
        return one.bytes / self.profile.bandwidth() >= 2.0 * rows * one.elements / self.profile.peak(
            one.product
        )

    def _rowwise_s(self, one: _Rowwise, rows: int) -> float:
        if not rows:
            return 0.0
        for name in (f"{one.kind}:{one.type}", one.kind, "other"):
            known = self.profile.rowwise.get(name)
            if known is not None:
                return known(rows * one.elements)
        # Read once and written once, in floats. Rows stay in caches, but of which size nobody knows here.
        return self.profile.call_s + 2.0 * FLOAT_BYTES * rows * one.elements / self.profile.bandwidth()

    def _decode_keys(self, decoding: list[SliceShape]) -> tuple[float, ...]:
        return tuple(self._keys(one, decoding) for one in self._attends)

    def _keys(self, one: _Attends, decoding: Iterable[SliceShape]) -> float:
        reach = _reach(one.layout)
        if reach is None:
            return float(sum([part.start + 1 for part in decoding]))
        return float(sum([min(part.start + 1, reach) for part in decoding]))

    def _decode_attention_s(self, one: _Attends, decoding: int, keys: float) -> float:
        """Of one token for each of `decoding` sequences, which see `keys` keys together."""
        if not decoding:
            return 0.0
        working_set = self._weight_bytes + keys * one.layers * one.token_bytes
        return one.layers * self._visit_s(one, decoding, 1, keys, working_set, keys * one.token_bytes)

    def _prompt_attention_s(self, one: _Attends, part: SliceShape) -> float:
        pairs, keys = visible(part, one.layout)
        read = keys * one.token_bytes
        return one.layers * self._visit_s(one, 1, part.tokens, pairs / part.tokens, read, read)

    def _visit_s(
        self, one: _Attends, sequences: int, tokens: int, keys: float, working_set: float, bytes: float
    ) -> float:
        """Of `tokens` tokens of each sequence, in one layer; each visits `keys` keys, summed over the sequences."""
        rows = float(tokens * one.heads)
        cost = self.profile.attention.get(self._kv_type)
        if cost is not None:
            return self.profile.call_s + cost(
                working_set, rows, sequences, keys, one.kv_heads, one.width, one.elements, tokens
            )
        reach = self.profile.reach
        memory = bytes / (self.profile.bandwidth() * reach.memory)
        operations = keys * tokens * one.pair_operations
        compute = operations / (self.profile.peak(self.work.attention_product) * reach.attention)
        return self.profile.call_s + max(memory, compute)

    def _state_s(self, layout: KVLayout, tokens: int, sequences: int) -> tuple[float, float, float]:
        """(seconds, bytes, operations) of the recurrent layers of one group: as `ModelWork` counts them."""
        assert layout.state is not None
        bytes = 2.0 * layout.slot_elements * FLOAT_BYTES * sequences / self.tp
        operations = 7.0 * tokens * len(layout.layers) * layout.state.matrix_elements / self.tp
        reach = self.profile.reach
        memory = bytes / (self.profile.bandwidth() * reach.memory)
        compute = operations / (self.profile.peak("f32") * reach.attention)
        return len(layout.layers) * self.profile.call_s + max(memory, compute), bytes, operations

    def _exchange_s(self, tokens: int) -> float:
        """A sum over all devices after every matrix that is cut by columns: in a ring each device sends its part of it
        2 (tp - 1) / tp times."""
        link = self.profile.link
        if link is None or not self._exchanged:
            return 0.0
        around = 2.0 * (self.tp - 1) / self.tp
        return sum(
            count * (link.latency_s + around * tokens * width * _EXCHANGED_BYTES / link.bytes_per_s)
            for width, count in self._exchanged.items()
        )

    def _engine_s(self, tokens: int, sequences: int, prompts: int) -> float:
        return self._step_cost(tokens, sequences, self._weight_bytes, prompts)

    # ---- ops as classes ----

    def _product(self, op: Op[Any]) -> _Product:
        weight, memory = op.weights[0], self.work.memory
        assert memory is not None
        cut = self.tp if weight.shard is not None else 1
        elements = weight.rows * weight.columns * (weight.experts or 1)
        if op.kind == "heads_linear":
            elements = operations_per_row(op) // 2
        dense = "f32" if memory.dtype == "float32" else "bf16" if memory.dtype == "bfloat16" else memory.dtype
        return _Product(
            op.name,
            op.rows,
            elements / cut,
            matrix_bytes(weight, memory) / cut,
            dense if memory.weights is None else memory.weights.of(weight.name).name,
            self.work.product(op),
            elements / weight.columns / cut,
            weight.columns,
            (op.attributes.num_experts, op.attributes.top_k) if op.kind == "experts" else None,
        )

    def _row(self, op: Op[Any]) -> _Rowwise:
        sides = [
            sum(buffer.columns * buffer.each for buffer in side) for side in (op.inputs[:1], op.outputs[:1])
        ]
        type = "" if op.reader is None else self.work.product_of(op.reader)
        if op.kind == "rope":
            type = str(op.attributes.head_dim)
        return _Rowwise(op.name, op.kind, op.rows, max(sides), type)

    def _attention(self, program: Program) -> Iterable[_Attends]:
        """The KV groups of the ops that attend, those of equal shape as one."""
        by_layer = {op.attributes.cache: op for op in program.of_kind("attention")}
        users = Counter(op.attributes.cache for op in program.of_kind("attention"))
        for layout, token_bytes in self.work.groups:
            if layout.state is not None:
                continue
            layers = [layer for layer in layout.layers if layer in by_layer]
            alike = Counter((by_layer[layer].attributes.num_heads, users[layer]) for layer in layers)
            for (heads, used), count in alike.items():
                op = next(by_layer[one] for one in layers if by_layer[one].attributes.num_heads == heads)
                yield self._attends_of(op, layout, count * used, token_bytes / len(layout.layers))

    def _attends_of(self, op: Op[Attention], layout: KVLayout, layers: int, token_bytes: float) -> _Attends:
        spec = op.attributes
        cut = min(self.tp, spec.num_kv_heads) if self.tp > 1 else 1
        group = spec.num_heads // spec.num_kv_heads
        heads = group if cut == self.tp else max(1, group * cut // self.tp)
        return _Attends(
            layout,
            layers,
            spec.num_kv_heads * (spec.head_dim + spec.value_dim) / cut,
            spec.num_kv_heads / cut,
            heads,
            spec.head_dim,
            token_bytes / cut,
            operations_per_pair(op) / self.tp,
        )


def _ends_prompt(part: SliceShape) -> bool:
    """Where a prompt begins says nothing: it may hit the prefix cache. Each has one slice that samples once; one that
    verifies drafts samples after every token."""
    return 0 < part.logits < part.tokens


def _reach(layout: KVLayout) -> int | None:
    return None if layout.window is None else layout.window + layout.sinks


def _rows(shape: StepShape) -> dict[Rows, int]:
    logits = sum(part.logits for part in shape)
    return {"tokens": sum(part.tokens for part in shape), "selected": logits, "logits": logits}
