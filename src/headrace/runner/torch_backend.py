"""Builds the torch path: weights, decoder, KV storage, sampler.

Imported only where that path is used: importing torch alone takes longer than a whole start on the native path.
"""

from __future__ import annotations

import torch

from headrace.models.draft_layers import DraftLayers
from headrace.models.families import weight_names
from headrace.models.loader import DTYPES, load_weights, read_layers
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights
from headrace.models.weights import Progress
from headrace.ops.table import Selection
from headrace.plan.resolved import ResolvedConfig
from headrace.program.lower import lower
from headrace.program.lower_layers import lower_layers
from headrace.runner.kv_storage import KVStorage
from headrace.runner.loading import Stored
from headrace.runner.sampling.sampler import Sampler
from headrace.runner.torch_decoder import Decoder
from headrace.runner.torch_layers import TorchLayers
from headrace.runner.torch_model import TorchModel


class TorchBackend:
    """Loads models onto one device. Sets torch's number of threads for the whole process."""

    def __init__(self, resolved: ResolvedConfig, ops: Selection) -> None:
        torch.set_num_threads(resolved.num_threads)
        self._resolved = resolved
        self._device = torch.device(resolved.device)
        self._ops = ops.load()

    def load(
        self, source: ModelSource, spec: ModelSpec, stored: Stored, progress: Progress | None = None
    ) -> TorchModel:
        """See `runner.backend.Backend`."""
        device, dtype = self._device, DTYPES[self._resolved.dtype]
        weights = load_weights(
            source, spec, dtype=dtype, device=device, seed=self._resolved.seed, progress=progress
        )
        program = lower(spec, weight_names(spec), narrow=False)
        decoder = Decoder(program, weights, self._ops, device)
        return TorchModel(decoder, KVStorage(program.kv, stored.groups, dtype, device), device)

    def load_layers(self, weights: StoredWeights, layers: DraftLayers, stored: Stored) -> TorchLayers:
        """See `runner.backend.Backend`."""
        device, dtype = self._device, DTYPES[self._resolved.dtype]
        rows = self._resolved.max_num_batched_tokens
        program = lower_layers(layers, rows, narrow=False)
        read = read_layers(weights, program, dtype=dtype, device=device)
        kv = KVStorage(program.kv, stored.groups, dtype, device)
        return TorchLayers(layers, program, read, kv, self._ops, rows, dtype, device)

    def sampler(self, vocab_size: int) -> Sampler:
        """Samples from rows of logits."""
        return Sampler(vocab_size, self._device)
