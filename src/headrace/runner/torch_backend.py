"""Builds the torch path: weights, decoder, KV storage, sampler.

Imported only where that path is used: importing torch alone takes longer than a whole start on the native path.
"""

from __future__ import annotations

import torch

from headrace.models.families import weight_names
from headrace.models.loader import DTYPES, load_weights
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.weights import Progress
from headrace.ops.table import Selection
from headrace.plan.resolved import ResolvedConfig
from headrace.program.lower import lower
from headrace.runner.executor import ModelExecutor
from headrace.runner.kv_storage import KVStorage
from headrace.runner.sampling.sampler import Sampler
from headrace.runner.sampling.token_masks import GrammarRunner
from headrace.runner.torch_decoder import Decoder
from headrace.runner.torch_model import TorchModel
from headrace.text.grammar_store import GrammarStore


def load_executor(
    source: ModelSource,
    spec: ModelSpec,
    resolved: ResolvedConfig,
    ops: Selection,
    grammars: GrammarStore,
    progress: Progress | None = None,
) -> ModelExecutor[torch.Tensor]:
    """Load the weights and build what runs them. Sets torch's number of threads for the whole process.

    Raises CheckpointError where the checkpoint does not hold what `spec` needs.
    """
    torch.set_num_threads(resolved.num_threads)
    device, dtype = torch.device(resolved.device), DTYPES[resolved.dtype]
    weights = load_weights(source, spec, dtype=dtype, device=device, seed=resolved.seed, progress=progress)
    program = lower(spec, weight_names(spec), narrow=False)
    decoder = Decoder(program, weights, ops.load(), device)
    kv = KVStorage(program.kv, resolved.kv_groups, dtype, device)
    return ModelExecutor(
        TorchModel(decoder, kv, device),
        Sampler(spec.vocab_size, device),
        resolved.kv_groups,
        max_seqs=resolved.max_num_seqs,
        grammars=GrammarRunner(grammars),
    )
