"""One step's work as arrays: a ragged batch of slices. The fields are those of `Step` in csrc/tensors.h."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.core.types import Observation, StateSlots

NOWHERE = -1
"""The slot of a token whose key and value are not written."""


@dataclass(slots=True)
class GroupTables:
    """Where the KV of one group is stored. S sequences, T tokens.

    A table row lists live blocks (see core.types.TableUpdate): entry i holds logical block i for i < sink_blocks
    and logical block i + dropped[s] after them. Rows are padded with any block past their length. The token at
    position p of sequence s has place p - evicted[s] of the table.
    """

    block_tables: NDArray[np.int32]  # [S, B]
    dropped: NDArray[np.int32]  # [S]
    slots: NDArray[np.int64]  # [T]: where token t's key and value go, block * block_size + offset; or NOWHERE
    sink_blocks: int
    block_size: int
    more_slots: NDArray[np.int64] | None = None  # [W]: where else they go, see Step.more
    evicted: NDArray[np.int32] | None = None  # [S]; None for 0
    evicts: bool = False  # observed sequences choose in this group what stays


@dataclass(slots=True)
class StateTables:
    """Where the recurrent states of one group lie, for each of S sequences."""

    moves: tuple[StateSlots, ...]

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """As in csrc/tensors.h: sources [S], firsts [S + 1], and of each write its count of tokens and its slot."""
        firsts = np.zeros(len(self.moves) + 1, dtype=np.int32)
        np.cumsum([len(one.writes) for one in self.moves], out=firsts[1:])
        sources = np.array([one.source for one in self.moves], dtype=np.int32)
        counts, slots = np.array([write for one in self.moves for write in one.writes], dtype=np.int32).T
        return sources, firsts, counts.copy(), slots.copy()


@dataclass(slots=True)
class Observed:
    """A sequence of the step whose last tokens decide which keys stay, see core.types.Observation. `memory`: a number
    that no other sequence of the engine has, below the most sequences."""

    seq: int
    memory: int
    what: Observation


@dataclass(slots=True)
class Step:
    """T tokens of S sequences, packed one sequence after the other, each in rising position. All arrays are
    contiguous."""

    ids: NDArray[np.int64]  # [T]
    positions: NDArray[np.int64]  # [T]
    cu_q: NDArray[np.int32]  # [S + 1]: sequence s owns tokens cu_q[s]:cu_q[s + 1]
    kv_lens: NDArray[np.int32]  # [S]: positions with KV after this step's own writes
    groups: tuple[GroupTables | StateTables, ...]  # one per KV group of the spec
    logits_rows: NDArray[np.int64]  # [R]: tokens whose logits are computed
    hidden_rows: NDArray[np.int64] | None = None  # [P]: tokens whose final hidden states are returned
    # [T + 1]: the key and value of token t also go to slots more[t]:more[t + 1] of each group's `more_slots`
    more: NDArray[np.int32] | None = None
    observed: tuple[Observed, ...] = ()
