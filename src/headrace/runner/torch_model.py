"""The torch decoder as a step model: arrays become tensors on the way in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.forks import watch_forks
from headrace.core.types import BlockCopy
from headrace.errors import EngineDead
from headrace.runner.batch import Batch, GroupBatch, StateBatch
from headrace.runner.kv_storage import KVStorage
from headrace.runner.step import NOWHERE, GroupTables, StateTables, Step
from headrace.runner.torch_decoder import Decoder


class TorchModel:
    """A `Decoder` with its KV storage on one device; a `runner.model.StepModel`."""

    def __init__(self, decoder: Decoder, kv: KVStorage, device: torch.device) -> None:
        self._decoder = decoder
        self._kv = kv
        self._device = device
        self.vocab_size = decoder.program.vocab_size
        self._hidden = np.empty((0, decoder.program.hidden_size), dtype=np.float32)
        self._usable = True
        watch_forks(self)

    def after_fork(self) -> None:
        """In a child process: torch's threads and its device do not exist there, and torch would wait for them."""
        self._usable = self._device.type == "cpu" and torch.get_num_threads() == 1

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._kv.copy(copies)

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """Logits [R, V] float32, see `runner.model.StepModel`. Raises EngineDead in a forked child."""
        if not self._usable:
            raise EngineDead(
                "a forked process cannot use torch's threads or a GPU: start processes with spawn, "
                "or set num_threads=1"
            )
        batch = Batch(
            tokens=self._tensor(step.ids),
            positions=self._tensor(step.positions),
            cu_q=self._tensor(step.cu_q),
            kv_lens=self._tensor(step.kv_lens),
            groups=tuple(self._group(group, step.more) for group in step.groups),
            logits_rows=self._tensor(step.logits_rows),
            hidden_rows=None if step.hidden_rows is None else self._tensor(step.hidden_rows),
        )
        if step.hidden_rows is not None:
            self._hidden = self._hidden[:0].copy()  # free the last states before new ones are allocated
        logits, hidden = self._decoder.run(batch, self._kv.layers)
        if step.hidden_rows is not None:
            self._hidden = hidden.float().cpu().numpy()
        return logits

    def hidden(self) -> NDArray[np.float32]:
        """Final hidden states [P, H] of the last step with `hidden_rows`."""
        return self._hidden

    @torch.inference_mode()
    def head(self, states: NDArray[np.float32]) -> torch.Tensor:
        """See `runner.model.StepModel`."""
        return self._decoder.head(torch.from_numpy(states).to(self._device))

    @torch.inference_mode()
    def embed(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `runner.model.StepModel`."""
        return self._decoder.embed(self._tensor(ids)).float().cpu().numpy()

    def _group(
        self, group: GroupTables | StateTables, more: NDArray[np.int32] | None
    ) -> GroupBatch | StateBatch:
        if isinstance(group, StateTables):
            return group.moves
        written = np.flatnonzero(group.slots != NOWHERE)
        slots = group.slots[written]
        everything = len(written) == len(group.slots)
        if more is not None and group.more_slots is not None:
            written = np.concatenate((written, np.repeat(np.arange(len(group.slots)), np.diff(more))))
            slots, everything = np.concatenate((slots, group.more_slots)), False
        return GroupBatch(
            block_tables=self._tensor(group.block_tables),
            dropped=self._tensor(group.dropped),
            slots=self._tensor(slots),
            written=None if everything else self._tensor(written),
            sink_blocks=group.sink_blocks,
            block_size=group.block_size,
        )

    def _tensor(self, array: NDArray[np.int32] | NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
