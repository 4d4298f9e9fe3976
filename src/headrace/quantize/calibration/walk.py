"""Runs calibration texts through a program layer by layer, with the weights of one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from headrace.core.types import NOWHERE, StateSlots
from headrace.models.spec import KVLayout
from headrace.models.weights import Weights
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.program.records import Buffer, Op, Program, WeightRef
from headrace.quantize.calibration.hessians import PRODUCTS
from headrace.runner.batch import Batch, GroupBatch, LayerCache, LayerKV, LayerState, StateBatch
from headrace.runner.kv_storage import state_memory
from headrace.runner.torch_decoder import KINDS, Decoder, last_uses

BLOCK_SIZE = 64
BATCH_TOKENS = 4096
"""Tokens that run through an op at once: the activations of one layer are made for so many."""

Watch = Callable[[Op[Any], Sequence[Any]], None]
"""Called before an op with its inputs."""
Progress = Callable[[int, int], None]
"""Called with the steps done and the steps in all; a step is one batch of texts through one layer, or without texts one
layer; in GGUF files also some rows of the embedding and the head."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive ops: those before the layers, or those of one layer. layer: None for the former.

    dead: after each op the buffers that nothing reads any more. weights: each once.
    """

    layer: int | None
    ops: tuple[Op[Any], ...]
    dead: tuple[tuple[Buffer, ...], ...]

    @property
    def weights(self) -> tuple[WeightRef, ...]:
        return tuple(dict.fromkeys(weight for op in self.ops for weight in op.weights))


def segments(program: Program) -> list[Segment]:
    """The ops up to the last layer's end. Those of no layer between layers count to the layer before them."""
    found: list[tuple[int | None, list[Op[Any]], list[tuple[Buffer, ...]]]] = [(None, [], [])]
    last = max(at for at, op in enumerate(program.ops) if op.layer is not None)
    for op, dead in zip(program.ops[: last + 1], last_uses(program), strict=False):
        if op.layer is not None and op.layer != found[-1][0]:
            found.append((op.layer, [], []))
        found[-1][1].append(op)
        found[-1][2].append(tuple(dead))
    return [Segment(layer, tuple(ops), tuple(dead)) for layer, ops, dead in found]


@dataclass(slots=True)
class _Texts:
    """Some texts on their way: what is computed of them, and the caches that later layers read."""

    batch: Batch
    lengths: tuple[int, ...]
    values: dict[Buffer, Any] = field(default_factory=dict)
    caches: dict[int, LayerCache] = field(default_factory=dict)


class Walk:
    """The calibration texts at the beginning of one segment. Segments are run in order; `step` may run often, `advance`
    once."""

    def __init__(self, program: Program, texts: Sequence[Sequence[int]]) -> None:
        """texts: token ids of each."""
        self._program = program
        self._ops = DEFAULT_TABLE.bind(device="cpu", dtype="float32", force="torch")
        self._layout_of = {layer: layout for layout in program.kv for layer in layout.layers}
        self._texts = [_start(batch, program.kv) for batch in _batches(texts)]
        self._segments = segments(program)
        self._readers = {
            (at, cache) for at, one in enumerate(self._segments) for op in one.ops for cache in _caches(op)
        }
        self._at = 0

    @property
    def batches(self) -> int:
        return len(self._texts)

    @torch.inference_mode()
    def observe(self, weights: Weights, watch: Watch, shown: Callable[[], None] | None = None) -> None:
        """Run the next segment for what `watch` sees of it: up to its last product, which is not computed."""
        for texts in self._texts:
            self._run(texts, weights, dict(texts.values), watch)
            if shown is not None:
                shown()

    @torch.inference_mode()
    def advance(self, weights: Weights, shown: Callable[[], None] | None = None) -> None:
        """Run the next segment, and go on to the one after it."""
        later = {cache for at, cache in self._readers if at > self._at}
        for texts in self._texts:
            self._run(texts, weights, texts.values, None)
            texts.caches = {layer: cache for layer, cache in texts.caches.items() if layer in later}
            if shown is not None:
                shown()
        self._at += 1

    def fork(self) -> Walk:
        """The same texts at the same segment, which run on by themselves."""
        other = copy(self)
        other._texts = [
            _Texts(one.batch, one.lengths, dict(one.values), dict(one.caches)) for one in self._texts
        ]
        return other

    @torch.inference_mode()
    def states(self, weights: Weights) -> torch.Tensor:
        """After the last segment: what the head multiplies, [T, H]."""
        decoder = Decoder(self._program, weights, self._ops, "cpu")
        first = sum(len(one.ops) for one in self._segments)
        found = []
        for texts in self._texts:
            rows = torch.arange(len(texts.batch.tokens))
            step = decoder.step(replace(texts.batch, logits_rows=rows), texts.caches)
            values = dict(texts.values)
            for op in self._program.ops[first:-1]:
                inputs = [values[buffer] for buffer in op.inputs]
                values.update(zip(op.outputs, KINDS[op.kind](step, op, *inputs), strict=True))
            found += [values[buffer] for buffer in self._program.ops[-1].inputs]
        return torch.cat(found)

    @torch.inference_mode()
    def log_probabilities(self, states: torch.Tensor, weights: Weights) -> torch.Tensor:
        """[N, V] of rows of `states`."""
        return Decoder(self._program, weights, self._ops, "cpu").head(states).log_softmax(-1)

    @property
    def last_weights(self) -> tuple[WeightRef, ...]:
        """Of the ops after the last segment, which `states` and `log_probabilities` need."""
        first = sum(len(one.ops) for one in self._segments)
        return tuple(dict.fromkeys(weight for op in self._program.ops[first:] for weight in op.weights))

    def _run(self, texts: _Texts, weights: Weights, values: dict[Buffer, Any], watch: Watch | None) -> None:
        segment = self._segments[self._at]
        decoder = Decoder(self._program, weights, self._ops, "cpu")
        for layer in dict.fromkeys(cache for op in segment.ops for cache in _caches(op)):
            if layer not in texts.caches or layer == segment.layer:
                texts.caches[layer] = _memory(self._layout_of[layer], texts.lengths)
        step = decoder.step(texts.batch, texts.caches)
        last = max((at for at, op in enumerate(segment.ops) if op.kind in PRODUCTS), default=None)
        for at, (op, dead) in enumerate(zip(segment.ops, segment.dead, strict=True)):
            inputs = [values[buffer] for buffer in op.inputs]
            if watch is not None:
                watch(op, inputs)
                if at == last:
                    break
            values.update(zip(op.outputs, KINDS[op.kind](step, op, *inputs), strict=True))
            for buffer in dead:
                values.pop(buffer, None)


def _caches(op: Op[Any]) -> Iterator[int]:
    """The layers whose KV cache or state an op uses."""
    cache = getattr(op.attributes, "cache", None)
    if cache is not None:
        yield cache


def _batches(texts: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    for one in texts:
        if batch and sum(map(len, batch)) + len(one) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _start(texts: Sequence[Sequence[int]], layouts: Sequence[KVLayout]) -> _Texts:
    lengths = tuple(map(len, texts))
    counts = torch.tensor(lengths, dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    blocks = [_blocks(length) for length in lengths]
    starts = torch.tensor(blocks).cumsum(0) - torch.tensor(blocks)  # the first block of each text
    firsts = torch.repeat_interleave(starts * BLOCK_SIZE, counts.long())
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for row, start, count in zip(table, starts.tolist(), blocks, strict=True):
        row[:count] = torch.arange(start, start + count)
    attends = GroupBatch(table, torch.zeros_like(counts), firsts + positions, 0, BLOCK_SIZE)
    states: StateBatch = tuple(StateSlots(NOWHERE, ((length, at),)) for at, length in enumerate(lengths))
    batch = Batch(
        tokens=torch.tensor([token for one in texts for token in one]),
        positions=positions,
        cu_q=torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32))),
        kv_lens=counts,
        groups=tuple(attends if layout.state is None else states for layout in layouts),
        logits_rows=torch.empty(0, dtype=torch.int64),
    )
    return _Texts(batch, lengths)


def _blocks(length: int) -> int:
    """That a text of so many tokens fills."""
    return -(-length // BLOCK_SIZE)


def _memory(layout: KVLayout, lengths: Sequence[int]) -> LayerCache:
    if layout.state is not None:
        return LayerState(
            *(part[0] for part in state_memory(layout.state, 1, len(lengths), torch.device("cpu")))
        )
    shape = (sum(map(_blocks, lengths)), layout.num_kv_heads, BLOCK_SIZE, layout.head_dim)
    keys = torch.zeros(shape)
    return LayerKV(keys, keys if layout.parts == 1 else torch.zeros(shape))


class Steps:
    """Counts those of `Progress`."""

    def __init__(self, shown: Progress | None, total: int) -> None:
        self._shown, self._total, self._done = shown, total, 0

    def advance(self) -> None:
        self.skip(1)

    def skip(self, steps: int) -> None:
        self._done += steps
        if self._shown is not None:
            self._shown(self._done, self._total)
