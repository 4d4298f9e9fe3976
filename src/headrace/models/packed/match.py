"""Whether a packed folder holds the weights of a program, in the formats that the settings ask for and in the layout
that the kernels read."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import CheckpointError
from headrace.models.packed.header import Entry, PackedHeader
from headrace.program.records import Program, WeightRef
from headrace.quant.format import WeightFormat

Shape = tuple[object, ...]


def check_layout(header: PackedHeader, kernels: str, layout: str) -> None:
    """Raise CheckpointError where kernels of that name read matrices in another layout."""
    facts = header.facts
    if facts.layout != layout:
        raise CheckpointError(
            f"{header.folder} was packed in the layout {facts.layout!r:.80} (by {facts.kernels!r:.80}), and the "
            f"kernels here, {kernels}, read {layout}: pack the model again with `headrace pack`"
        )


def check_program(header: PackedHeader, program: Program) -> None:
    """Raise CheckpointError for the first weight of a program that the folder lacks or holds in another shape."""
    expected: dict[tuple[str, str], Shape] = {}
    for weight in program.weights:
        for form in _forms(header, weight):
            expected[weight.name, form] = _asked(weight, form)
    found = {(name, "array"): _array_shape(entry) for name, entry in header.arrays.items()}
    found |= {(name, "matrix"): _matrix_shape(entry) for name, entry in header.matrices.items()}
    for (name, form), shape in expected.items():
        if (name, form) not in found:
            raise CheckpointError(f"{header.folder} lacks weight {name} as {form}")
        if found[name, form] != shape:
            raise CheckpointError(
                f"weight {name} in {header.folder} is {_shown(found[name, form])}, but the config asks for "
                f"{_shown(shape)}"
            )
    for name, form in found.keys() - expected.keys():
        raise CheckpointError(
            f"{header.folder} holds weight {name!r:.200} as {form}, which the config does not account for"
        )


def check_formats(
    header: PackedHeader, program: Program, format_of: Callable[[str], WeightFormat], table_dtype: str
) -> None:
    """Raise CheckpointError for the first weight that is not stored as the settings say, by the weight's name."""
    for weight in program.weights:
        array, matrix = header.arrays.get(weight.name), header.matrices.get(weight.name)
        if array is not None and array.array is not None:
            wanted = "float32" if weight.kind == "vector" else table_dtype
            if array.array.dtype != wanted:
                raise CheckpointError(
                    f"weight {weight.name} in {header.folder} is stored in {array.array.dtype}, not in {wanted}"
                )
        if matrix is not None and matrix.matrix is not None:
            form, asked = matrix.matrix.format, format_of(weight.name)
            if form != asked:
                raise CheckpointError(
                    f"weight {weight.name} in {header.folder} is packed as {form.name}, not as {asked.name}"
                )


def _forms(header: PackedHeader, weight: WeightRef) -> tuple[str, ...]:
    """A table is an array, or a matrix of blocks; a tied weight is a matrix, and a table beside one of codes unless
    those are blocks that are looked up, too."""
    if weight.kind in ("matrix", "vector"):
        return ("matrix",) if weight.kind == "matrix" else ("array",)
    kept = header.formats.keeps_table(weight.name)
    if weight.kind == "table":
        return ("matrix",) if kept and weight.name in header.matrices else ("array",)
    coded = header.formats.of(weight.name).quantized
    return ("matrix", "array") if coded and not kept else ("matrix",)


def _asked(weight: WeightRef, form: str) -> Shape:
    if form == "matrix":
        return (weight.rows, weight.columns, weight.gated, bool(weight.biases), weight.experts)
    return weight.shape


def _array_shape(entry: Entry) -> Shape:
    assert entry.array is not None
    form = entry.array
    return (form.rows,) if form.columns is None else (form.rows, form.columns)


def _matrix_shape(entry: Entry) -> Shape:
    assert entry.matrix is not None
    form = entry.matrix
    return (form.rows, form.columns, form.gate, form.bias, form.experts)


def _shown(facts: Shape) -> str:
    """A shape, and for matrices how many experts there are, and whether they have a gate and a bias."""
    shape = " x ".join(str(one) for one in facts[:2])
    if len(facts) < 4:
        return shape
    experts = "" if facts[4] is None else f"{facts[4]} experts of "
    return f"{experts}{shape}{' with a gate' if facts[2] else ''}{' with a bias' if facts[3] else ''}"
