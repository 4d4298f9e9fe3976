"""Builds the native path: packed weights, tape, KV memory, sampler.

Imported only where that path is used: it needs the C++ extension.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace._native import Kernels, Team
from headrace.models.families import weight_names
from headrace.models.packed_loader import load_packed
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.weights import Progress
from headrace.plan.resolved import ResolvedConfig
from headrace.program.lower import lower
from headrace.runner.executor import ModelExecutor
from headrace.runner.native_decoder import NativeDecoder
from headrace.runner.native_kv import NativeKV
from headrace.runner.sampling.native import NativeSampler
from headrace.runner.sampling.token_masks import GrammarRunner
from headrace.runner.tape import TapeLimits
from headrace.text.grammar_store import GrammarStore


def load_executor(
    source: ModelSource,
    spec: ModelSpec,
    resolved: ResolvedConfig,
    grammars: GrammarStore,
    progress: Progress | None = None,
) -> ModelExecutor[NDArray[np.float32]]:
    """Load the weights and build what runs them, on the kernels that `resolved` names.

    Raises CheckpointError where the checkpoint does not hold what `spec` needs.
    """
    assert resolved.kernels is not None and resolved.weight_formats is not None
    kernels = Kernels(resolved.kernels)
    team = Team(resolved.num_threads, resolved.pin_threads)
    weights = load_packed(
        source,
        spec,
        dtype=resolved.weights_dtype,
        weights=resolved.weight_formats,
        kernels=kernels,
        team=team,
        seed=resolved.seed,
        progress=progress,
    )
    program = lower(spec, weight_names(spec))
    kv = NativeKV(program.kv, resolved.kv_groups, resolved.kv_cache_dtype)
    limits = TapeLimits(resolved.max_num_batched_tokens, resolved.max_num_seqs)
    decoder = NativeDecoder(program, weights, kv, resolved.kv_groups, kernels, team, limits)
    sampler = NativeSampler(spec.vocab_size, kernels, team)
    return ModelExecutor(
        decoder, sampler, resolved.kv_groups, max_seqs=resolved.max_num_seqs, grammars=GrammarRunner(grammars)
    )
