"""The spec of a model with the types of its files. No torch here, and no weight is read."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import CheckpointError
from headrace.models.families import read_spec
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec


def stored_spec(source: ModelSource) -> ModelSpec:
    """`read_spec` of a resolved model, with the type that its files store matrices in.

    Configs name that type but are sometimes wrong, and 16-bit storage must be exact. For a folder without readable
    weights the config decides; loading them reports the error. Raises as `read_spec` does.
    """
    spec = read_spec(source.config, source.generation_config)
    if source.path is None:
        return spec
    try:
        return replace(spec, matrix_dtype=Checkpoint(source.path).matrix_dtype())
    except CheckpointError:
        return spec
