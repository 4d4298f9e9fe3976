"""The layer with which a checkpoint predicts the token after the next one (multi-token prediction; DeepSeek-AI 2024).

DeepSeek V3, GLM-4.5 and Qwen3-Next bring one: a decoder layer like the model's last one that attends, over a matrix
times [norm of the embedding of token p; norm of the state of token p - 1]. No torch here.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from headrace.errors import CheckpointError, ConfigError
from headrace.models.draft_layers import DraftLayers
from headrace.models.families import weight_names
from headrace.models.names import LAYER, WeightNames
from headrace.models.packed.header import is_packed
from headrace.models.quantized.matrices import find_coded
from headrace.models.quantized.methods import quantization_of, read_method
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec, RecurrentSpec, StoredCodes
from headrace.models.stored import StoredWeights, open_weights
from headrace.models.weight_files import SelfDescribedFiles
from headrace.models.weights import check_present
from headrace.program.lower_layers import lower_layers


def find_mtp(source: ModelSource, spec: ModelSpec) -> tuple[DraftLayers, StoredWeights]:
    """The layer of a model's checkpoint, and where its tensors are.

    Raises ConfigError for a model that has none, and CheckpointError for a layer that does not fit the model.
    """
    names = weight_names(spec)
    checkpoint = None
    if source.path is not None and not is_packed(source.path):
        checkpoint = source.files or open_weights(source, spec).checkpoint
    if names.mtp is None or checkpoint is None:
        raise ConfigError(
            f"{source.name} has no layer that predicts further tokens: speculative mtp is for checkpoints of "
            "DeepSeek V3, GLM-4.5 and Qwen3-Next, in safetensors or GGUF files"
        )
    count = str(len(spec.layers))
    join, state, embedding, final, prefix = (
        name.replace("{n}", count)
        for name in (
            names.mtp.join,
            names.mtp.state_norm,
            names.mtp.embedding_norm,
            names.mtp.final_norm,
            names.mtp.layer,
        )
    )
    if checkpoint.entry(f"{join}.weight") is None:
        raise ConfigError(
            f"the checkpoint of {source.name} lacks the layer that predicts further tokens: there is no tensor "
            f"{join}.weight"
        )
    layer = next((one for one in reversed(spec.layers) if not isinstance(one.mixer, RecurrentSpec)), None)
    if layer is None:
        raise CheckpointError(f"{source.name} has no layer that attends, as the one after the last would")
    own = replace(
        spec, layers=(layer,), codes=None, final_soft_cap=None, learned_positions=0, embedding_scale=1.0
    )
    layers = DraftLayers(
        own,
        replace(_placed(names, prefix), final_norm=final),
        join,
        "embedding first",
        state_norm=state,
        embedding_norm=embedding,
    )
    if source.files is not None:
        return _with_blocks(layers, source.files)
    assert isinstance(checkpoint, Checkpoint)  # files that do not describe themselves are safetensors
    return _with_codes(source, layers, checkpoint)


def _placed(names: WeightNames, prefix: str) -> WeightNames:
    """The names of one layer's tensors, which begin with `prefix`."""
    placed: dict[str, Any] = {}
    for field in fields(names):
        value = getattr(names, field.name)
        if isinstance(value, str) and value.startswith(LAYER):
            placed[field.name] = value.replace(LAYER, f"{prefix}.")
    return replace(names, **placed)


def _with_codes(
    source: ModelSource, layers: DraftLayers, checkpoint: Checkpoint
) -> tuple[DraftLayers, StoredWeights]:
    """With those matrices of the layer that are stored as codes."""
    program = lower_layers(layers, 1)
    named = quantization_of(source.config, source.path)
    method = None if named is None else read_method(*named)
    found = find_coded(checkpoint, method, program)
    check_present(checkpoint, program, found)
    if method is None:
        return layers, StoredWeights(checkpoint)
    formats = tuple((name, one.format) for name, one in found.items())
    codes = StoredCodes(method.name, formats, method.activations) if formats else None
    weights = StoredWeights(checkpoint, method.name, found, activations=method.activations)
    return replace(layers, spec=replace(layers.spec, codes=codes)), weights


def _with_blocks(layers: DraftLayers, files: SelfDescribedFiles) -> tuple[DraftLayers, StoredWeights]:
    """With the types that a file states for the layer's matrices."""
    program = lower_layers(layers, 1)
    coded = {name: one for name, one in files.coded_further().items() if name in program.tensors()}
    check_present(files, program)
    formats = tuple((name, one.format) for name, one in coded.items())
    codes = StoredCodes(files.method, formats, "int8") if formats else None
    weights = StoredWeights(files, files.method, coded, activations="int8", by_rows=True)
    return replace(layers, spec=replace(layers.spec, codes=codes)), weights
