"""Chooses what runs a model: the native kernels or torch. Each is imported only where it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from headrace.errors import ConfigError, MissingDependency
from headrace.extras import install_command
from headrace.models.draft_layers import DraftLayers
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights
from headrace.models.weights import Progress
from headrace.ops.native_sources import check_sources
from headrace.ops.table import Selection
from headrace.plan.resolved import ResolvedConfig
from headrace.runner.loading import Stored
from headrace.runner.model import StateModel, StepModel, StepSampler


def save_weights(
    source: ModelSource,
    spec: ModelSpec,
    resolved: ResolvedConfig,
    folder: Path,
    progress: Progress | None = None,
) -> None:
    """Write a model's weights into a folder as the native kernels read them, with a header; see `models.packed`.

    Raises ConfigError where the native kernels do not run the model, and CheckpointError as `Backend.load` does.
    """
    if resolved.kernels is None:
        why = dict(resolved.reasons)["kernels"]
        raise ConfigError(f"packed weights are for the native CPU kernels, but {why}")
    check_sources()
    from headrace.runner import native_backend

    native_backend.save_weights(source, spec, resolved, folder, progress)


class Backend(Protocol):
    """What runs models: the native kernels, or torch on one device. All models of an engine share it."""

    def load(
        self, source: ModelSource, spec: ModelSpec, stored: Stored, progress: Progress | None = None
    ) -> StepModel[Any]:
        """Load a model's weights, and make room for its KV.

        Raises CheckpointError where the checkpoint does not hold what `spec` needs.
        """
        ...

    def load_layers(self, weights: StoredWeights, layers: DraftLayers, stored: Stored) -> StateModel:
        """Load draft layers from files that may hold other tensors, too, and make room for their KV.

        Raises CheckpointError where a tensor is missing or does not fit.
        """
        ...

    def sampler(self, vocab_size: int) -> StepSampler[Any]:
        """Samples from rows of logits."""
        ...


def open_backend(resolved: ResolvedConfig, ops: Selection) -> Backend:
    """Raises MissingDependency where the native kernels cannot run the model and torch is not installed.

    Raises ConfigError where the kernels were built from other sources than the checkout has now.
    """
    if resolved.kernels is not None:
        check_sources()
        from headrace.runner import native_backend

        return native_backend.NativeBackend(resolved)
    try:
        from headrace.runner import torch_backend
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        why = dict(resolved.reasons)["kernels"]
        raise MissingDependency(f"{why}. torch is not installed", install_command("torch")) from None
    return torch_backend.TorchBackend(resolved, ops)
