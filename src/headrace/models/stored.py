"""The spec of a model as its files hold it. No torch here, and no weight is read."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import CheckpointError
from headrace.models.families import read_spec
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec


def stored_spec(source: ModelSource) -> ModelSpec:
    """`read_spec` of a resolved model, with the type that its files store matrices in.

    Configs name that type, and are wrong now and then: what is kept in 16 bits must not lose a bit. A folder without
    readable weights goes by its config; loading it says what is wrong. Raises as `read_spec` does.
    """
    spec = read_spec(source.config, source.generation_config)
    if source.path is None:
        return spec
    try:
        return replace(spec, matrix_dtype=Checkpoint(source.path).matrix_dtype())
    except CheckpointError:
        return spec
