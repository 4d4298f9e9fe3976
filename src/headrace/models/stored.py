"""What the files of a model say about its weights, before any weight is read. No torch here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.models.families import read_spec, weight_names
from headrace.models.family_checkpoint import open_checkpoint
from headrace.models.names import WeightNames
from headrace.models.packed.header import is_packed, read_header
from headrace.models.quantized.matrices import find_coded, ignored_tensors
from headrace.models.quantized.methods import quantization_of, read_method
from headrace.models.safetensors_reader import FilesMissing
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec, StoredCodes
from headrace.models.weight_files import CodedMatrix, WeightFiles, row_runs
from headrace.models.weights import check_tensors
from headrace.program.lower import lower
from headrace.program.records import Program
from headrace.quant.format import Activations

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHORT = {"F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """A model's files, the matrices in them that are codes, and the tensors that hold no weight.

    method: the name of the codes' method. activations: how its own runs encode activations, where it says so.
    by_rows: the files decode codes themselves, any run of rows. widened: those of `coded` that are needed as floats
    too, because they are looked up by row. exact_dtype: the narrowest type that holds every matrix that is multiplied
    in float32, which GGUF files have in float32 whatever type the others are of; None: there are none.
    """

    checkpoint: WeightFiles
    method: str = ""
    coded: Mapping[str, CodedMatrix] = field(default_factory=dict)
    ignored: Collection[str] = ()
    activations: Activations | None = None
    by_rows: bool = False
    widened: Collection[str] = ()
    exact_dtype: str | None = None

    @property
    def parts(self) -> frozenset[str]:
        """The names of all tensors that the coded matrices are made of."""
        return frozenset(entry.name for one in self.coded.values() for entry in one.tensors)

    def floats(self, name: str) -> Iterator[tuple[slice, NDArray[Any]]]:
        """A tensor in runs of rows: (which rows, their floats). At once where only the whole matrix can be decoded."""
        if name in self.coded and not self.by_rows:
            yield slice(None), self.coded[name].floats()
        else:
            yield from row_runs(self.checkpoint, name)


def open_files(source: ModelSource) -> WeightFiles | None:
    """The files with the weights, every header checked; None for a shape, whose weights are random.

    Raises CheckpointError where there are none, or they contradict themselves.
    """
    if source.opened is not None:
        return source.opened.checkpoint
    if source.files is not None:
        return source.files
    return None if source.path is None else open_checkpoint(source.path, source.config)


def open_source(source: ModelSource) -> ModelSource:
    """The source with its weights' files opened and its quantised matrices found, so that all who need them find them.

    Random and packed weights have none. Raises as `open_weights` does, except for a folder of floats that lacks
    files: it comes back as it is, so that its plan can be printed, and loading it reports the error.
    """
    if source.opened is not None or source.path is None or is_packed(source.path):
        return source
    try:
        weights = open_weights(source, read_spec(source.config, source.generation_config))
    except FilesMissing:
        if quantization_of(source.config, source.path) is None:
            return source
        raise
    return replace(source, opened=weights)


def open_weights(source: ModelSource, spec: ModelSpec) -> StoredWeights:
    """Open the files of a model that has some, unless they are, and find its quantised matrices.

    Names, shapes and types of all tensors are checked. Raises CheckpointError, naming the tensor, where one is missing,
    unexpected or does not fit `spec`, and UnsupportedModel for a method that is not implemented.
    """
    if source.opened is not None:
        return source.opened
    names = weight_names(spec)
    program = lower(spec, names)
    weights = _find_weights(source, program, names)
    return replace(weights, exact_dtype=_exact_dtype(weights.checkpoint, program))


def _find_weights(source: ModelSource, program: Program, names: WeightNames) -> StoredWeights:
    if source.files is not None:
        check_tensors(source.files, program, names)
        coded = source.files.coded()
        looked_up = {
            name for one in program.weights if one.kind in ("table", "tied") for name, _ in one.parts
        }
        widened = looked_up & coded.keys()
        return StoredWeights(
            source.files, source.files.method, coded, activations="int8", by_rows=True, widened=widened
        )
    assert source.path is not None
    checkpoint = open_checkpoint(source.path, source.config)
    named = quantization_of(source.config, source.path)
    method = None if named is None else read_method(*named)
    found = find_coded(checkpoint, method, program)
    ignored = frozenset(ignored_tensors(checkpoint, method, found))
    stored = (
        StoredWeights(checkpoint, ignored=ignored)
        if method is None
        else StoredWeights(checkpoint, method.name, found, ignored, method.activations)
    )
    check_tensors(checkpoint, program, names, stored.coded, stored.parts | {*ignored})
    return stored


def _exact_dtype(files: WeightFiles, program: Program) -> str | None:
    names = (name for weight in program.weights if weight.exact for name, _ in weight.parts)
    types = {entry.dtype for name in names if (entry := files.entry(name)) is not None}
    if not types:
        return None
    return _SHORT.get(types.pop(), "float32") if len(types) == 1 else "float32"


def stored_spec(source: ModelSource) -> ModelSpec:
    """`read_spec` of a resolved model, with the types that its files store matrices in.

    Configs name a type but are sometimes wrong, and 16-bit storage must be exact. For a folder without
    weights the config decides; loading them reports the error. A packed folder states its types. Raises as
    `read_spec` and, for quantised weights and GGUF files, `open_weights` do, and CheckpointError for a packed folder
    whose header cannot be used.
    """
    spec = read_spec(source.config, source.generation_config)
    if source.path is None:
        return spec
    if is_packed(source.path):
        header = read_header(source.path)
        return replace(
            spec,
            matrix_dtype=header.facts.stored_dtype,
            packed=header.formats,
            packed_names=tuple(header.matrices),
        )
    weights = open_source(source).opened
    if weights is None:
        return spec
    formats = tuple((name, one.format) for name, one in weights.coded.items())
    return replace(
        spec,
        matrix_dtype=weights.checkpoint.matrix_dtype(weights.parts.difference(weights.widened)),
        exact_dtype=weights.exact_dtype,
        codes=StoredCodes(weights.method, formats, weights.activations) if formats else None,
    )
