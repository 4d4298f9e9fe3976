"""What the files of a model say about its weights, before any weight is read. No torch here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from headrace.errors import CheckpointError
from headrace.models.families import read_spec, weight_names
from headrace.models.quantized.layout import Method
from headrace.models.quantized.matrices import CodedMatrices, find_coded, ignored_tensors
from headrace.models.quantized.methods import quantization_of, read_method
from headrace.models.safetensors_reader import Checkpoint
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec, StoredCodes
from headrace.program.lower import lower


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """A model's checkpoint, the matrices in it that are codes, and the tensors that hold no weight."""

    checkpoint: Checkpoint
    method: Method | None
    coded: CodedMatrices
    ignored: Collection[str] = ()

    @property
    def parts(self) -> frozenset[str]:
        """The names of all tensors that the coded matrices are made of."""
        return frozenset(entry.name for one in self.coded.values() for entry in one.tensors)


def open_weights(source: ModelSource, spec: ModelSpec) -> StoredWeights:
    """Open the checkpoint of a model with a folder, and find its quantised matrices.

    Raises CheckpointError, naming the tensor, where one is missing or does not fit `spec`, and UnsupportedModel for a
    method that is not implemented.
    """
    assert source.path is not None
    checkpoint = Checkpoint(source.path)
    named = quantization_of(source.config, source.path)
    method = None if named is None else read_method(*named)
    coded = find_coded(checkpoint, method, lower(spec, weight_names(spec)))
    return StoredWeights(checkpoint, method, coded, frozenset(ignored_tensors(checkpoint, method, coded)))


def stored_spec(source: ModelSource) -> ModelSpec:
    """`read_spec` of a resolved model, with the types that its files store matrices in.

    Configs name a type but are sometimes wrong, and 16-bit storage must be exact. For a folder without readable
    weights the config decides; loading them reports the error. Raises as `read_spec` and, for a quantised checkpoint,
    `open_weights` do.
    """
    spec = read_spec(source.config, source.generation_config)
    named = quantization_of(source.config, source.path)
    if source.path is None or named is None:
        return _with_types(spec, source)
    weights = open_weights(source, spec)
    assert weights.method is not None
    formats = tuple((name, one.format) for name, one in weights.coded.items())
    return replace(
        spec,
        matrix_dtype=weights.checkpoint.matrix_dtype(weights.parts),
        codes=StoredCodes(weights.method.name, formats, weights.method.activations) if formats else None,
    )


def _with_types(spec: ModelSpec, source: ModelSource) -> ModelSpec:
    if source.path is None:
        return spec
    try:
        return replace(spec, matrix_dtype=Checkpoint(source.path).matrix_dtype())
    except CheckpointError:
        return spec
