"""Slices of a step plan packed into one ragged batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headrace.core.types import SeqSlice
from headrace.models.batch import Batch
from headrace.runner.block_tables import BlockTables


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of the logits belong to slice s: first those that score prompt tokens, then those to sample from."""

    first: int
    num_prompt: int
    num_sample: int


def logits_rows(slices: Sequence[SeqSlice], scored: Sequence[int]) -> tuple[list[int], list[Rows]]:
    """Token indices whose logits are wanted, and how they fall to the slices.

    `scored[s]` is how many leading positions of slice s predict a prompt token whose log-probability is wanted.
    """
    wanted: list[int] = []
    rows = []
    offset = 0
    for work, num_prompt in zip(slices, scored, strict=True):
        end = offset + len(work.tokens)
        num_sample = work.num_draft + 1 if work.sample else 0
        rows.append(Rows(len(wanted), num_prompt, num_sample))
        wanted += range(offset, offset + num_prompt)
        wanted += range(end - num_sample, end)
        offset = end
    return wanted, rows


def pack(
    slices: Sequence[SeqSlice], table_rows: Sequence[int], tables: Sequence[BlockTables], wanted: Sequence[int],
    device: torch.device,
) -> Batch:  # fmt: skip
    """The ragged batch of S slices with T tokens; slice s reads and writes through row `table_rows[s]`."""
    counts = np.array([len(work.tokens) for work in slices], dtype=np.int64)
    starts = np.array([work.start for work in slices], dtype=np.int64)
    rows = np.array(table_rows, dtype=np.int64)
    cu_q = np.zeros(len(slices) + 1, dtype=np.int32)
    np.cumsum(counts, out=cu_q[1:])
    positions = np.repeat(starts - cu_q[:-1], counts) + np.arange(cu_q[-1])  # [T]
    row_of_token = np.repeat(rows, counts)  # [T]
    tokens = [token for work in slices for token in work.tokens]
    return Batch(
        tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
        positions=torch.from_numpy(positions).to(device),
        cu_q=torch.from_numpy(cu_q).to(device),
        kv_lens=torch.from_numpy((starts + counts).astype(np.int32)).to(device),
        groups=tuple(table.batch(rows, row_of_token, positions, device) for table in tables),
        logits_rows=torch.tensor(wanted, dtype=torch.int64, device=device),
    )
