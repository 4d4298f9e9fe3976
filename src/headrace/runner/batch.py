"""One step's work as tensors: a ragged batch of slices, and the KV storage that it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.core.types import StateSlots


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Where the KV of one group is stored. N blocks of `block_size` positions; S sequences, T tokens.

    A table row lists live blocks (see core.types.TableUpdate): entry i holds logical block i for i < sink_blocks
    and logical block i + dropped[s] after them. Rows are padded with 0 past their length.
    """

    block_tables: torch.Tensor  # [S, B] int32
    dropped: torch.Tensor  # [S] int32
    slots: torch.Tensor  # [W] int64: where the keys and values of `written` go, block * block_size + offset
    sink_blocks: int
    block_size: int
    written: torch.Tensor | None = None  # [W] int64: tokens whose KV is written; None for all T of them


StateBatch = tuple[StateSlots, ...]
"""Where the recurrent states of a group lie, for each sequence."""


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences, packed one sequence after the other, each in rising position."""

    tokens: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64
    cu_q: torch.Tensor  # [S + 1] int32: sequence s owns tokens cu_q[s]:cu_q[s + 1]
    kv_lens: torch.Tensor  # [S] int32: positions with KV after this step's own writes
    groups: tuple[GroupBatch | StateBatch, ...]  # one per KV group of the spec
    logits_rows: torch.Tensor  # [R] int64: tokens whose logits are computed
    hidden_rows: torch.Tensor | None = None  # [P] int64: tokens whose final hidden states are computed

    @property
    def selected_rows(self) -> torch.Tensor:
        """[R + P]"""
        if self.hidden_rows is None:
            return self.logits_rows
        return torch.cat((self.logits_rows, self.hidden_rows))


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Keys and values of one layer; block n, head h, offset o, channel d."""

    key: torch.Tensor  # [N, Hkv, block_size, D]
    value: torch.Tensor  # [N, Hkv, block_size, D]


@dataclass(frozen=True, slots=True)
class LayerState:
    """Recurrent states of one layer, float32; slot n. See models.spec.StateShape."""

    conv: torch.Tensor  # [N, taps, channels]
    matrix: torch.Tensor  # [N, heads, Dk, Dv]


LayerCache = LayerKV | LayerState
