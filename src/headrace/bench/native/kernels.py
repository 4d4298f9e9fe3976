"""Single kernels at the shapes of a model: time, bytes and operations a second, and the fraction of the roofline.

Weights and KV caches are laid out several times, as the layers of a model are, until they are far larger than the
caches: operands are read from memory, as in a real step. Times are those of the tape's profile, without
Python.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from headrace.bench.model.latency import Progress
from headrace.bench.native.op_tapes import KV_TYPES, ROWS, OpTapes, Product, one_layer
from headrace.bench.native.roofline import Roofline, buffer_bytes
from headrace.bench.native.sampling import sampling_times
from headrace.bench.native.tape_step import TapeStep
from headrace.bench.report import Label, Row
from headrace.models.spec import ModelSpec
from headrace.ops.cpu_features import detect
from headrace.plan.hardware import this_machine
from headrace.program.lower import lower
from headrace.program.records import Attention
from headrace.quant.format import WeightFormat
from headrace.runner.sampling.native import NativeSampler
from headrace.sim.work import SliceShape, Work, visible

OPS = ("linear", "attention", "encode", "sample")
DECODE_ROWS = 64
"""Up to this many rows are one token each of as many sequences; more rows are one prompt."""
HOT_COPIES = 2
LEAST_SECONDS = 0.15
"""Least time of a case, besides `repeats` runs."""


def products_of(spec: ModelSpec) -> tuple[Product, ...]:
    """The products of a model's first layer, and its head."""
    return tuple(
        Product(op.name, weight.rows, weight.columns, weight.gated)
        for op in lower(spec).ops
        for weight in op.weights
        if op.kind in ("linear", "logits") and op.layer in (0, None)
    )


def _attention_products(mixer: Attention, kv_type: str) -> tuple[str, str]:
    """The types that queries meet keys in, and probabilities values. Beside int8 values these have 15 bits, which
    multiply as fast as bfloat16."""
    wide = "f32" if kv_type == "f32" else "bf16"
    return ("i8" if kv_type == "int8" and mixer.value_in_key is None else wide), wide


def _first_attention(spec: ModelSpec) -> Attention:
    attends: Attention = lower(spec).of_kind("attention")[0].attributes
    return attends


class KernelBench:
    """Measures the kernels of one instruction set. `native` is headrace._native."""

    def __init__(
        self, native: ModuleType, kernels: str, roofline: Roofline, *, repeats: int, pin: bool = False
    ) -> None:
        self._name = kernels
        self._tapes = OpTapes(native, kernels, roofline.threads, pin=pin)
        self._roofline = roofline
        self._repeats = repeats
        self._cold_bytes = buffer_bytes(detect().caches.l3 or 0, this_machine().memory_available)

    # ---- linear ----

    def linear(
        self, product: Product, formats: Sequence[WeightFormat], row_counts: Sequence[int], progress: Progress
    ) -> Iterator[Row]:
        """A row for each number of rows and format. Formats take turns, since what memory gives changes from second to
        second on many machines. The encoding of activations is not in the time."""
        counts = [count for count in row_counts if product.name != "head" or count <= DECODE_ROWS]
        if not counts:
            return
        cold = []
        for weights in formats:
            progress(f"{self._name} {product.name} {weights.name}")
            first = self._tapes.pack(product, weights)
            others = min(511, self._cold_bytes // len(formats) // first.nbytes)
            cold.append([first, *(self._tapes.pack(product, weights) for _ in range(others))])
        for count in counts:
            progress(f"{self._name} {product.name} {count}")
            tapes = [
                self._tapes.linear(
                    product, weights, used if count <= DECODE_ROWS else used[:HOT_COPIES], count
                )
                for weights, used in zip(formats, cold, strict=True)
            ]
            times = self._turns(tapes, "linear", self._one_prompt(count))
            for weights, used, seconds in zip(formats, cold, times, strict=True):
                operations = 2.0 * count * product.rows * product.cols
                labels: dict[str, Label] = {
                    "op": product.name, "format": weights.name, "shape": f"{product.rows}x{product.cols}", "rows": count
                }  # fmt: skip
                yield self._row(
                    labels, seconds, Work(used[0].nbytes, {ROWS[weights.activations]: operations})
                )

    # ---- encode ----

    def encode(self, cols: int, weights: WeightFormat, row_counts: Sequence[int]) -> Iterator[Row]:
        """RMSNorm and encoding of activations; they stay in caches, so there is no roofline to hold them against."""
        for count in row_counts:
            tape = self._tapes.encode(cols, weights, count)
            seconds = self._time(tape, "encode", self._one_prompt(count))
            width = {"f32": 4, "bf16": 2, "int8": 1}[weights.activations]
            work = Work(count * cols * (4.0 + width))
            labels: dict[str, Label] = {
                "op": "encode", "format": weights.activations, "shape": f"{cols}", "rows": count
            }  # fmt: skip
            yield self._row(labels, seconds, work, against_roofline=False)

    # ---- attention ----

    def attention(
        self, spec: ModelSpec, kv_type: str, row_counts: Sequence[int], context: int, computed: int = 0
    ) -> Iterator[Row]:
        """Decoding `count` sequences that hold `context` tokens each, or `count` tokens of a prompt after its first
        `computed` ones."""
        mixer = _first_attention(spec)
        shape = f"{mixer.num_heads}/{mixer.num_kv_heads}x{mixer.head_dim}"
        layout = one_layer(mixer)
        scale = 0 if kv_type != "int8" else 4
        token_bytes = layout.rows_per_token * (mixer.head_dim * KV_TYPES[kv_type][1] + scale)
        for count in row_counts:
            decoding = count <= DECODE_ROWS
            step = self._decode(count, context) if decoding else self._one_prompt(count, computed)
            slices = [SliceShape(1, context - 1, 1)] * count if decoding else [SliceShape(count, computed, 1)]
            pairs, keys = (
                sum(numbers) for numbers in zip(*(visible(s, layout) for s in slices), strict=True)
            )
            tape = self._attention_tape(mixer, kv_type, step)
            seconds = self._time(tape, "attention", step)
            scores, mixes = (2.0 * pairs * mixer.num_heads * dim for dim in (mixer.head_dim, mixer.value_dim))
            products = _attention_products(mixer, kv_type)
            work = Work(keys * token_bytes, {products[0]: scores}) + Work(0, {products[1]: mixes})
            labels: dict[str, Label] = {
                "op": "attention", "format": kv_type, "shape": shape, "rows": count,
                "context": context if decoding else computed + count,
            }  # fmt: skip
            yield self._row(labels, seconds, work)

    def _attention_tape(self, mixer: Attention, kv_type: str, step: TapeStep) -> Any:
        size = self._tapes.kv_bytes(mixer, kv_type, step)
        copies = min(64, 1 + self._cold_bytes // (one_layer(mixer).parts * size))
        return self._tapes.attention(mixer, kv_type, step, copies if step.seqs == step.tokens else HOT_COPIES)

    # ---- sampling ----

    def sample(self, vocab_size: int, row_counts: Sequence[int]) -> Iterator[Row]:
        """A row for each kind of logits and sampling parameters, and number of sequences."""
        sampler = NativeSampler(vocab_size, self._tapes.kernels, self._tapes.team)
        for count in (count for count in row_counts if count <= DECODE_ROWS):
            work = Work(4.0 * count * vocab_size)
            for logits, settings, seconds in sampling_times(sampler, count, self._repeats, LEAST_SECONDS):
                labels: dict[str, Label] = {
                    "op": "sample", "format": f"{logits} {settings}", "shape": f"{vocab_size}", "rows": count
                }  # fmt: skip
                yield self._row(labels, seconds, work)

    # ---- steps and times ----

    def _one_prompt(self, tokens: int, computed: int = 0) -> TapeStep:
        return TapeStep.of([tokens], [computed])

    def _decode(self, seqs: int, context: int) -> TapeStep:
        return TapeStep.of([1] * seqs, [context - 1] * seqs)

    def _time(self, tape: Any, name: str, step: TapeStep) -> list[float]:
        """Seconds of one call of that name, a median for each run of the tape; the first run warms up."""
        (seconds,) = self._turns([tape], name, step)
        return seconds

    def _turns(self, tapes: Sequence[Any], name: str, step: TapeStep) -> list[list[float]]:
        """`_time` of several tapes, which take turns."""
        medians: list[list[float]] = [[] for _ in tapes]
        for tape in tapes:
            tape.profile(True)
        begin = 0.0
        while len(medians[0]) <= self._repeats or time.monotonic() - begin < LEAST_SECONDS * len(tapes):
            for tape, of_tape in zip(tapes, medians, strict=True):
                tape.clear_costs()
                step.run(tape, paged=name == "attention")
                of_tape.append(statistics.median(cost[2] for cost in tape.costs() if cost[0] == name))
            begin = begin or time.monotonic()
        return [of_tape[1:] for of_tape in medians]

    def _row(
        self, labels: dict[str, Label], seconds: list[float], work: Work, *, against_roofline: bool = True
    ) -> Row:
        middle = statistics.median(seconds)
        values = {
            "seconds": middle,
            "bytes_per_s": work.bytes / middle,
            "operations_per_s": work.all_operations / middle,
        }
        if not work.operations:
            del values["operations_per_s"]
        if against_roofline:
            limit = self._roofline.limit(work)
            labels = {**labels, "bound": limit.bound}
            values["fraction"] = limit.seconds / middle
        return Row({"kernels": self._name, **labels}, values, {"seconds": tuple(seconds)})


def kernel_rows(
    native: ModuleType,
    spec: ModelSpec,
    rooflines: Sequence[Roofline],
    *,
    ops: Sequence[str],
    formats: Sequence[WeightFormat],
    row_counts: Sequence[int],
    context: int,
    computed: int,
    repeats: int,
    pin: bool,
    progress: Progress,
) -> Iterator[Row]:
    """Rows of every op for every instruction set of `rooflines`, at the shapes of a model's first layer.

    KV caches are of the types that go with the activations: f32 with f32, bf16 with bf16, int8 with codes.
    """
    kinds = dict.fromkeys("int8" if one.quantized else one.activations for one in formats)
    encodings = {one.activations: one for one in formats}
    for roofline in rooflines:
        bench = KernelBench(native, roofline.kernels, roofline, repeats=repeats, pin=pin)
        if "linear" in ops:
            for product in products_of(spec):
                yield from bench.linear(product, formats, row_counts, progress)
        if "attention" in ops:
            for kind in kinds:
                progress(f"{roofline.kernels} attention {kind}")
                yield from bench.attention(spec, kind, row_counts, context, computed)
        if "encode" in ops:
            for weights in encodings.values():
                progress(f"{roofline.kernels} encode {weights.activations}")
                yield from bench.encode(spec.hidden_size, weights, row_counts)
        if "sample" in ops:
            progress(f"{roofline.kernels} sample")
            yield from bench.sample(spec.vocab_size, row_counts)
