"""Chooses what runs a model: the native kernels or torch. Each is imported only where it runs."""

from __future__ import annotations

from pathlib import Path

from headrace.core.executor import Executor
from headrace.errors import ConfigError, MissingDependency
from headrace.extras import install_command
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.weights import Progress
from headrace.ops.table import Selection
from headrace.plan.resolved import ResolvedConfig
from headrace.text.grammar_store import GrammarStore


def save_weights(
    source: ModelSource,
    spec: ModelSpec,
    resolved: ResolvedConfig,
    folder: Path,
    progress: Progress | None = None,
) -> None:
    """Write a model's weights into a folder as the native kernels read them, with a header; see `models.packed`.

    Raises ConfigError where the native kernels do not run the model, and CheckpointError as `load_executor` does.
    """
    if resolved.kernels is None:
        why = dict(resolved.reasons)["kernels"]
        raise ConfigError(f"packed weights are for the native CPU kernels, but {why}")
    from headrace.runner import native_backend

    native_backend.save_weights(source, spec, resolved, folder, progress)


def load_executor(
    source: ModelSource,
    spec: ModelSpec,
    resolved: ResolvedConfig,
    ops: Selection,
    grammars: GrammarStore,
    progress: Progress | None = None,
) -> Executor:
    """Load the weights and build what runs them.

    Raises CheckpointError where the checkpoint does not hold what `spec` needs, and MissingDependency where the
    native kernels cannot run the model and torch is not installed.
    """
    if resolved.kernels is not None:
        from headrace.runner import native_backend

        return native_backend.load_executor(source, spec, resolved, grammars, progress)
    try:
        from headrace.runner import torch_backend
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        why = dict(resolved.reasons)["kernels"]
        raise MissingDependency(f"{why}. torch is not installed", install_command("torch")) from None
    return torch_backend.load_executor(source, spec, resolved, ops, grammars, progress)
