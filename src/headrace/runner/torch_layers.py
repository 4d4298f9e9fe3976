"""Draft layers on torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.core.types import BlockCopy
from headrace.models.draft_layers import DraftLayers
from headrace.models.weights import Weights
from headrace.ops.table import Ops
from headrace.program.lower_layers import INPUTS
from headrace.program.records import Program
from headrace.runner.kv_storage import KVStorage
from headrace.runner.step import Step
from headrace.runner.torch_decoder import Decoder
from headrace.runner.torch_model import TorchModel


class TorchLayers:
    """A `runner.model.StateModel`: a decoder whose table of embeddings is written before each step."""

    def __init__(
        self,
        layers: DraftLayers,
        program: Program,
        weights: Weights,
        kv: KVStorage,
        ops: Ops,
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._state, self._embedding = layers.halves
        self._inputs = torch.zeros((rows, 2 * program.hidden_size), dtype=dtype, device=device)
        self._numbers = np.arange(rows, dtype=np.int64)
        whole = replace(weights, tables={**weights.tables, INPUTS: self._inputs})
        self._model = TorchModel(Decoder(program, whole, ops, device), kv, device)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._model.copy_blocks(copies)

    @torch.inference_mode()
    def forward(
        self, step: Step, states: NDArray[np.float32], embeddings: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """See `runner.model.StateModel`."""
        count = len(step.ids)
        self._inputs[:count, self._state] = torch.from_numpy(states).to(self._inputs)
        self._inputs[:count, self._embedding] = torch.from_numpy(embeddings).to(self._inputs)
        return self._model.forward(replace(step, ids=self._numbers[:count])).float().cpu().numpy()
