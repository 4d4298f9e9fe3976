"""Sampling defaults that a model's authors recommend, from its generation_config.json. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.params import SamplingParams
from headrace.errors import CheckpointError, InvalidParams
from headrace.models.source import ModelSource, read_generation_config

_FIELDS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Fields that are read, as in vLLM: field of the file -> field of SamplingParams. `do_sample` is not."""


def chosen_defaults(
    source: ModelSource, chosen: str, override: Mapping[str, Any] | None
) -> dict[str, float | int]:
    """A model's sampling defaults under the options `generation_config` and `override_generation_config`.

    Raises ModelNotFound for a folder that is none, CheckpointError as `sampling_defaults` does.
    """
    config: Mapping[str, Any] = source.generation_config
    if chosen == "vllm":
        config = {}
    elif chosen != "auto":
        config = read_generation_config(chosen)
    return sampling_defaults({**config, **(override or {})})


def sampling_defaults(
    config: Mapping[str, Any], where: str = "generation_config.json"
) -> dict[str, float | int]:
    """Fields of SamplingParams that apply unless the caller or the request sets them.

    Raises CheckpointError for a value that SamplingParams refuses.
    """
    found = {ours: config[theirs] for theirs, ours in _FIELDS.items() if config.get(theirs) is not None}
    try:
        SamplingParams(**found)
    except InvalidParams as error:
        raise CheckpointError(f"{where}: {error}; --generation-config vllm leaves it out") from error
    return found
