"""Which packed format each matrix of a model gets on the native path."""

from __future__ import annotations

from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.ops.cpu.support import DTYPES
from headrace.program.records import Program
from headrace.quant.block_formats import named_format
from headrace.quant.code_format import float_format, native_format
from headrace.quant.format import (
    ACTIVATION_NAMES,
    F32,
    SUPER,
    Activations,
    WeightFormat,
    WeightFormats,
    dense_format,
)

CODE_ACTIVATIONS: Activations = "bf16"
"""How activations meet the codes of a checkpoint whose method rounds weights only: as in its own runs, in 16 bits."""


def stored_type(spec: ModelSpec, dtype: str, *, native: bool = True) -> tuple[str, str]:
    """(type, reason) of embeddings and of matrices that are not quantised, as stored in memory.

    The native kernels widen 16 bits to float32 as they read them, which is exact and halves what is read.
    """
    if native and dtype == "float32" and spec.stored_dtype != dtype:
        return (
            spec.stored_dtype,
            f"as the checkpoint stores them; converted to {dtype} exactly when read",
        )
    return dtype, "the compute type"


def weight_formats(
    spec: ModelSpec, program: Program, dtype: str, quantization: str | None
) -> WeightFormats | None:
    """The formats that the option `quantization` asks for, else the checkpoint's; None: kernels have none. Those of
    a packed folder are what they are.

    Raises ConfigError for a name that is unknown, or that needs a quantised checkpoint.
    """
    if spec.packed is not None:
        return spec.packed
    if quantization is not None and quantization not in ACTIVATION_NAMES:
        return _rounded(program, named_format(quantization), _exact(spec, program, dtype))
    if quantization is not None and spec.codes is None:
        raise ConfigError(
            f"quantization {quantization} is about the codes of a quantised checkpoint, and this one is not quantised"
        )
    if dtype not in DTYPES:
        return None
    usual = dense_format(dtype, stored_type(spec, dtype)[0])
    exact = _exact(spec, program, dtype)
    if spec.codes is None:
        return WeightFormats(usual, exact=exact)
    activations = ACTIVATION_NAMES.get(quantization or "", spec.codes.activations or CODE_ACTIVATIONS)
    stored = dict(spec.codes.formats)
    others: list[tuple[str, WeightFormat]] = []
    kept: list[str] = []
    decoded: list[tuple[str, str]] = []
    positions = {op.weights[0].name for op in program.of_kind("embed") if op.attributes.positions}
    for weight in program.weights:
        # Tensors of one product are stored alike, but experts may differ: each part of each is looked up.
        found = list(dict.fromkeys(stored.get(name) for one in weight.each() for name, _ in one.parts))
        codes = next((one for one in found if one is not None), None)
        if codes is None or weight.exact or weight.in_heads is not None:
            continue
        alike = len(found) == 1
        acts = "int8" if weight.kind == "table" else activations  # tables meet none
        packed = native_format(codes, acts) if alike else None
        if packed is not None and packed.ordered and weight.experts is not None:
            packed = None  # the product of each expert would need the token in an order of its own
        if weight.name in positions:
            packed = None  # these rows are added, which is done with floats
        if packed is not None:
            kept.append(weight.name)
        else:
            decoded.append((weight.name, codes.name))
        if packed is not None or weight.kind != "table":
            floats = float_format(codes, dtype) if alike else dense_format(dtype)
            others.append((weight.name, packed or floats))
    return WeightFormats(usual, tuple(others), frozenset(kept), tuple(decoded), exact)


def _exact(spec: ModelSpec, program: Program, dtype: str) -> tuple[tuple[str, WeightFormat], ...]:
    """The formats of the matrices that are floats always, or multiplied in float32 even."""
    stored = {} if spec.codes is None else dict(spec.codes.formats)
    floats = dense_format("float32", spec.exact_dtype or spec.stored_dtype)
    formats: list[tuple[str, WeightFormat]] = []
    for weight in program.weights:
        codes = next((stored[name] for name, _ in weight.parts if name in stored), None)
        if weight.exact:
            formats.append((weight.name, floats if codes is None else F32))
        elif weight.in_heads is not None and dtype in DTYPES:
            usual = dense_format(dtype, stored_type(spec, dtype)[0])
            formats.append((weight.name, usual if codes is None else float_format(codes, dtype)))
    return tuple(formats)


def _rounded(
    program: Program, format: WeightFormat, exact: tuple[tuple[str, WeightFormat], ...]
) -> WeightFormats:
    """One format for every matrix. Raises ConfigError, naming a matrix whose rows are not whole blocks."""
    for weight in program.weights if format.blocks else ():
        whole = SUPER if format.scale == "super" else format.group
        if weight.exact or weight.in_heads is not None:
            continue
        if weight.kind in ("matrix", "tied") and whole is not None and weight.columns % whole:
            raise ConfigError(
                f"quantization {format.name} has blocks of {whole} input features, and {weight.parts[0][0]} has "
                f"{weight.columns}"
            )
    return WeightFormats(format, exact=exact)


def describe_formats(formats: WeightFormats, codes: str | None) -> str:
    """The reason for the formats of a checkpoint's matrices; `codes` is the name of its method."""
    if codes is None or not formats.others:
        return "one format for every matrix"
    text = f"as the checkpoint stores them ({codes})"
    if formats.decoded:
        kinds = dict.fromkeys(how for _, how in formats.decoded)
        text += (
            f"; floats for {len(formats.decoded)} of them, because no kernel for these activations reads "
            f"{' or '.join(kinds)}"
        )
    return text
