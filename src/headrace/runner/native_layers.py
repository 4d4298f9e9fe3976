"""Draft layers on the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace._native import Kernels, Team
from headrace.core.types import BlockCopy, KVGroupSpec
from headrace.models.draft_layers import DraftLayers
from headrace.models.weights import Weights
from headrace.program.lower_layers import INPUTS
from headrace.program.records import Program
from headrace.runner.native_decoder import NativeTape
from headrace.runner.native_kv import NativeKV
from headrace.runner.step import Step
from headrace.runner.tape_memory import TapeLimits


class NativeLayers:
    """A `runner.model.StateModel`: a tape whose table of embeddings is written before each step."""

    def __init__(
        self,
        layers: DraftLayers,
        program: Program,
        weights: Weights,
        kv: NativeKV,
        groups: Sequence[KVGroupSpec],
        kernels: Kernels,
        team: Team,
        limits: TapeLimits,
    ) -> None:
        self._state, self._embedding = layers.halves
        self._inputs = np.zeros((limits.max_tokens, 2 * program.hidden_size), dtype=np.float32)
        self._numbers = np.arange(limits.max_tokens, dtype=np.int64)
        tables = {**weights.tables, INPUTS: self._inputs}
        self._tape = NativeTape(program, replace(weights, tables=tables), kv, groups, kernels, team, limits)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        self._tape.copy_blocks(copies)

    def forward(
        self, step: Step, states: NDArray[np.float32], embeddings: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """See `runner.model.StateModel`."""
        count = len(step.ids)
        self._inputs[:count, self._state] = states
        self._inputs[:count, self._embedding] = embeddings
        self._tape.forward(replace(step, ids=self._numbers[:count]))
        return self._tape.hidden()[: 0 if step.hidden_rows is None else len(step.hidden_rows)]
