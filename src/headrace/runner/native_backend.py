"""Builds the native path: packed weights, tape, KV memory, sampler.

Imported only where that path is used: it needs the C++ extension.
"""

from __future__ import annotations

from pathlib import Path

from headrace import __version__
from headrace._native import Kernels, Team
from headrace.models.draft_layers import DraftLayers
from headrace.models.families import weight_names
from headrace.models.packed.data import PackedWriter
from headrace.models.packed.header import (
    VERSION,
    PackedFacts,
    PackedHeader,
    is_packed,
    read_header,
)
from headrace.models.packed.match import check_layout
from headrace.models.packed.store import map_packed, save_packed
from headrace.models.packed_loader import load_packed, load_packed_layers, open_packer
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights
from headrace.models.weights import Progress, Weights
from headrace.plan.resolved import ResolvedConfig
from headrace.program.lower import lower
from headrace.program.lower_layers import lower_layers
from headrace.program.recent import with_recent
from headrace.program.records import Program
from headrace.runner.loading import Stored
from headrace.runner.native_decoder import NativeDecoder
from headrace.runner.native_kv import NativeKV
from headrace.runner.native_layers import NativeLayers
from headrace.runner.sampling.native import NativeSampler
from headrace.runner.tape_memory import TapeLimits


class NativeBackend:
    """Loads models onto one set of kernels and one team of threads, which all of them share."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        assert resolved.kernels is not None
        self._resolved = resolved
        self._kernels = Kernels(resolved.kernels)
        self._team = Team(resolved.num_threads, resolved.pin_threads)

    def load(
        self, source: ModelSource, spec: ModelSpec, stored: Stored, progress: Progress | None = None
    ) -> NativeDecoder:
        """See `runner.backend.Backend`."""
        resolved, kernels, team = self._resolved, self._kernels, self._team
        assert stored.formats is not None
        program = with_recent(lower(spec, weight_names(spec)), resolved.kv_cache_dtype)
        if source.path is not None and is_packed(source.path):
            weights = _map(read_header(source.path), program, stored, kernels, progress)
        else:
            weights = load_packed(
                source,
                spec,
                dtype=stored.dtype,
                weights=stored.formats,
                kernels=kernels,
                team=team,
                seed=resolved.seed,
                progress=progress,
            )
        kv = NativeKV(program.kv, stored.groups, resolved.kv_cache_dtype)
        limits = TapeLimits(
            resolved.max_num_batched_tokens, resolved.most_segments, resolved.max_model_len, resolved.eviction
        )
        return NativeDecoder(program, weights, kv, stored.groups, kernels, team, limits)

    def load_layers(self, weights: StoredWeights, layers: DraftLayers, stored: Stored) -> NativeLayers:
        """See `runner.backend.Backend`."""
        resolved, kernels, team = self._resolved, self._kernels, self._team
        assert stored.formats is not None
        limits = TapeLimits(resolved.max_num_batched_tokens, resolved.most_segments)
        program = with_recent(lower_layers(layers, limits.max_tokens), resolved.kv_cache_dtype)
        packed = load_packed_layers(
            weights, program, dtype=stored.dtype, weights=stored.formats, kernels=kernels, team=team
        )
        kv = NativeKV(program.kv, stored.groups, resolved.kv_cache_dtype)
        return NativeLayers(layers, program, packed, kv, stored.groups, kernels, team, limits)

    def sampler(self, vocab_size: int) -> NativeSampler:
        """Samples from rows of logits."""
        return NativeSampler(vocab_size, self._kernels, self._team)


def _map(
    header: PackedHeader,
    program: Program,
    stored: Stored,
    kernels: Kernels,
    progress: Progress | None,
) -> Weights:
    weights = stored.formats
    assert weights is not None
    check_layout(header, kernels.name, kernels.layout)
    return map_packed(header, program, weights.of, stored.dtype, prefetch=stored.prefetch, progress=progress)


def save_weights(
    source: ModelSource,
    spec: ModelSpec,
    resolved: ResolvedConfig,
    folder: Path,
    progress: Progress | None = None,
) -> None:
    """Pack a model's weights into a folder, one after the other, as `load_executor` would pack them into memory.

    Raises CheckpointError where the checkpoint does not hold what `spec` needs, and OSError where it cannot be
    written.
    """
    assert resolved.kernels is not None and resolved.weight_formats is not None
    kernels = Kernels(resolved.kernels)
    refs, maker = open_packer(
        source,
        spec,
        dtype=resolved.weights_dtype,
        weights=resolved.weight_formats,
        kernels=kernels,
        team=Team(resolved.num_threads, resolved.pin_threads),
        seed=resolved.seed,
        progress=progress,
    )
    writer = PackedWriter(folder)
    try:
        save_packed(refs, maker, writer, resolved.weight_formats.of)
        writer.finish(
            PackedFacts(
                version=VERSION,
                headrace=__version__,
                model=source.name,
                layout=kernels.layout,
                kernels=kernels.name,
                dtype=resolved.dtype,
                stored_dtype=spec.stored_dtype,
                quantization=resolved.quantization,
                kv_dtype=resolved.kv_cache_dtype,
            )
        )
    finally:
        writer.close()
