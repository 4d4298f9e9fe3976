"""Runs a decoder over a paged cache the way a scheduler would, but on one screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from headrace.core.types import NOWHERE, StateSlots
from headrace.models.families import read_spec, weight_names
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.models.spec import ModelSpec
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.program.lower import lower
from headrace.runner.batch import Batch, GroupBatch, LayerCache, LayerKV, LayerState, StateBatch
from headrace.runner.torch_decoder import Decoder


class PagedRun:
    """Sequences of one decoder with shuffled blocks; blocks outside a window are dropped as soon as possible.

    The cache starts out as NaN, so that a read of anything unwritten shows.
    """

    def __init__(self, decoder: Decoder, block_size: int = 8, blocks: int = 96, seed: int = 0) -> None:
        self.decoder = decoder
        self.block_size = block_size
        self.layouts = decoder.program.kv
        dtype = decoder.weights.dtype
        self.kv: list[LayerCache] = []
        group_of = {layer: layout for layout in self.layouts for layer in layout.layers}
        for index in sorted(group_of):  # not the last layers, if these share
            state = group_of[index].state
            if state is not None:
                conv = torch.full((blocks, state.taps, state.channels), torch.nan)
                heads = (blocks, state.heads, state.key_dim, state.value_dim)
                self.kv.append(LayerState(conv, torch.full(heads, torch.nan)))
                continue
            shape = (blocks, group_of[index].num_kv_heads, block_size, group_of[index].head_dim)
            self.kv.append(
                LayerKV(torch.full(shape, torch.nan, dtype=dtype), torch.full(shape, torch.nan, dtype=dtype))
            )
        generator = torch.Generator().manual_seed(seed)
        self.free = [torch.randperm(blocks, generator=generator).tolist() for _ in self.layouts]
        self.length: dict[int, int] = {}
        self.tables: dict[
            tuple[int, int], list[int]
        ] = {}  # (sequence, group) -> block of every logical block
        self.total_dropped = 0

    def step(self, slices: Mapping[int, list[int]]) -> dict[int, torch.Tensor]:
        """Append tokens to sequences in one batch; gives logits [n, V] after every token of each."""
        starts = {s: self.length.get(s, 0) for s in slices}
        counts = [len(tokens) for tokens in slices.values()]
        cu_q = torch.tensor([0, *counts]).cumsum(0)
        positions = torch.cat([torch.arange(starts[s], starts[s] + len(t)) for s, t in slices.items()])
        for s, tokens in slices.items():
            self.length[s] = starts[s] + len(tokens)
        batch = Batch(
            tokens=torch.tensor([token for tokens in slices.values() for token in tokens]),
            positions=positions,
            cu_q=cu_q.int(),
            kv_lens=torch.tensor([self.length[s] for s in slices], dtype=torch.int32),
            groups=tuple(self._group(index, starts) for index in range(len(self.layouts))),
            logits_rows=torch.arange(len(positions)),
        )
        with torch.inference_mode():
            logits = self.decoder.forward(batch, self.kv)
        return dict(zip(slices, logits.split(counts), strict=True))

    def _moves(self, group: int, s: int, start: int) -> StateSlots:
        """Each slice leaves the state in another slot."""
        source = self.tables[s, group][-1] if start else NOWHERE
        self.tables.setdefault((s, group), []).append(self.free[group].pop())
        return StateSlots(source, ((self.length[s] - start, self.tables[s, group][-1]),))

    def _group(self, group: int, starts: dict[int, int]) -> GroupBatch | StateBatch:
        layout, size = self.layouts[group], self.block_size
        if layout.state is not None:
            return tuple(self._moves(group, s, start) for s, start in starts.items())
        sink_blocks = -(-layout.sinks // size)
        rows, dropped, slots = [], [], []
        for s, start in starts.items():
            table = self.tables.setdefault((s, group), [])
            while len(table) * size < self.length[s]:
                table.append(self.free[group].pop())
            gone = 0
            if (
                layout.window is not None
            ):  # a block is dropped once its last position is before the window of `start`
                gone = max(0, (start - layout.window + 1) // size - sink_blocks)
            rows.append(table[:sink_blocks] + table[sink_blocks + gone :])
            dropped.append(gone)
            slots += [table[p // size] * size + p % size for p in range(start, self.length[s])]
        self.total_dropped += sum(dropped)
        width = max(len(row) for row in rows)
        return GroupBatch(
            block_tables=torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int32),
            dropped=torch.tensor(dropped, dtype=torch.int32),
            slots=torch.tensor(slots),
            sink_blocks=sink_blocks,
            block_size=size,
        )


@pytest.fixture
def paged_run() -> type[PagedRun]:
    return PagedRun


@pytest.fixture
def open_decoder() -> Callable[..., Decoder]:
    """Load a folder or a shape through the whole loading path."""

    def load(
        folder: Path | str,
        dtype: str = "float32",
        force: str | None = None,
        change: Callable[[ModelSpec], ModelSpec] | None = None,
    ) -> Decoder:
        source = resolve_model(str(folder))
        spec = read_spec(source.config, source.generation_config)
        if change is not None:
            spec = change(spec)
        weights = load_weights(source, spec, dtype=getattr(torch, dtype))
        ops = DEFAULT_TABLE.bind(device="cpu", dtype=dtype, formats=weights.formats, force=force)
        return Decoder(lower(spec, weight_names(spec), narrow=False), weights, ops, "cpu")

    return load
