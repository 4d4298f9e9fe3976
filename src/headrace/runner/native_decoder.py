"""The native decoder: a whole model's step in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from headrace._native import Kernels, PackedMatrix, Tape, Team, embed, linear
from headrace.core.types import BlockCopy, KVGroupSpec
from headrace.models.weights import Weights
from headrace.program.records import Program
from headrace.runner.native_kv import NativeKV
from headrace.runner.step import StateTables, Step
from headrace.runner.tape import compile_tape
from headrace.runner.tape_memory import TapeLimits


class NativeTape:
    """A program on the kernels of one instruction set, with its KV storage.

    Weights are packed (`models.packed_loader`). Its rows are bitwise the same in any batch, in one
    piece or in chunks, with one thread or many.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        kv: NativeKV,
        groups: Sequence[KVGroupSpec],
        kernels: Kernels,
        team: Team,
        limits: TapeLimits,
    ) -> None:
        self.program = program
        self.tape: Tape
        self.tape, self._stream = compile_tape(program, weights, kv, groups, kernels, team, limits)
        final = program.final_norm
        self._final_norm: list[NDArray[np.float32]] = [weights.vectors[one.name] for one in final.weights]
        self._norm = final.attributes
        self._kv = kv
        self._hidden = np.empty((0, program.hidden_size), dtype=np.float32)
        self._kernels, self._team = kernels, team

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._kv.copy(copies)

    def forward(self, step: Step) -> NDArray[np.float32]:
        """Logits [R, V] of `logits_rows`, valid until the next call; writes the KV of the step's tokens.

        Raises ValueError for a step larger than the limits, before anything is run.
        """
        groups = [
            (group.block_tables, group.dropped, group.slots)
            for group in step.groups
            if not isinstance(group, StateTables)
        ]
        states = [group.arrays() for group in step.groups if isinstance(group, StateTables)]
        more = None if step.more is None else (step.more, _more_slots(step))
        evicted, observed = _evicted(step), _observed(step)
        if step.hidden_rows is None:
            return self.tape.run(
                step.ids,
                step.positions,
                step.cu_q,
                step.kv_lens,
                groups,
                step.logits_rows,
                states=states,
                more=more,
                evicted=evicted,
                observed=observed,
            )
        self._hidden = self._hidden[:0].copy()  # free the last states before new ones are allocated
        width = -(-self.program.hidden_size // 16) * 16
        hidden = np.empty((len(step.hidden_rows), width), dtype=np.float32)
        selected = np.concatenate((step.logits_rows, step.hidden_rows))
        final = (self._stream, self._final_norm, self._norm.kind == "layer", self._norm.eps, hidden)
        logits = self.tape.run(
            step.ids,
            step.positions,
            step.cu_q,
            step.kv_lens,
            groups,
            selected,
            hidden=final,
            states=states,
            more=more,
            evicted=evicted,
            observed=observed,
        )
        self._hidden = hidden[:, : self.program.hidden_size]
        return logits

    def hidden(self) -> NDArray[np.float32]:
        """Final hidden states [P, H] of the last step with `hidden_rows`."""
        return self._hidden


class NativeDecoder(NativeTape):
    """A whole model; a `runner.model.StepModel`."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        kv: NativeKV,
        groups: Sequence[KVGroupSpec],
        kernels: Kernels,
        team: Team,
        limits: TapeLimits,
    ) -> None:
        super().__init__(program, weights, kv, groups, kernels, team, limits)
        self.vocab_size = program.vocab_size
        self._head = cast(PackedMatrix, weights.matrices[program.head.weights[0].name].weight)
        embeds = program.ops[0]
        self._embedding = weights.tables[embeds.weights[0].name]
        self._embedding_scale = float(embeds.attributes.scale)

    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `runner.model.StepModel`."""
        rows = np.empty((len(ids), self.program.hidden_size), dtype=np.float32)
        embed(self._kernels, self._team, ids, self._embedding, rows)
        return rows if self._embedding_scale == 1.0 else rows * np.float32(self._embedding_scale)

    def head(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `runner.model.StepModel`."""
        logits = cast(
            NDArray[np.float32],
            linear(self._kernels, self._team, np.ascontiguousarray(states, dtype=np.float32), self._head),
        )
        head = self.program.head.attributes
        if head.scale != 1.0:
            logits *= np.float32(head.scale)
        if head.soft_cap is not None:
            logits = np.float32(head.soft_cap) * np.tanh(logits / np.float32(head.soft_cap))
        return logits


def _more_slots(step: Step) -> list[NDArray[np.int64]]:
    groups = [group for group in step.groups if not isinstance(group, StateTables)]
    return [group.more_slots for group in groups if group.more_slots is not None]


def _evicted(step: Step) -> list[NDArray[np.int32] | None] | None:
    groups = [group for group in step.groups if not isinstance(group, StateTables)]
    if all(group.evicted is None for group in groups):
        return None
    return [group.evicted for group in groups]


def _observed(step: Step) -> tuple[NDArray[np.int32], list[NDArray[np.int32] | None]] | None:
    """What `Tape.run` takes: five numbers of each sequence, and in each KV group the blocks that its tokens move to."""
    if not step.observed:
        return None
    rows = np.array(
        [
            (one.seq, one.what.rows, one.memory, one.what.fresh, bool(one.what.targets))
            for one in step.observed
        ],
        dtype=np.int32,
    )
    targets: list[NDArray[np.int32] | None] = []
    for index, group in enumerate(step.groups):
        if isinstance(group, StateTables):
            continue
        moved = [one.what.targets[index] if one.what.targets else () for one in step.observed]
        width = max(1, *map(len, moved))
        table = np.zeros((len(moved), width), dtype=np.int32)
        for at, blocks in enumerate(moved):
            table[at, : len(blocks)] = blocks
        targets.append(table if group.evicts else None)
    return rows, targets
