"""Whether the native CPU kernels run a model, which of them, and the types that they allow."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.ops.cpu.support import DTYPES, KV_DTYPES, native_facts
from headrace.ops.table import DENSE, Facts, op_keys
from headrace.plan.hardware import Machine
from headrace.quant.format import WeightFormat, dense_format, parse_format


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """`name` is the instruction set of the native kernels, or None where torch runs the model."""

    name: str | None
    weights: WeightFormat | None  # of the packed matrices; None where torch runs
    reason: str


def op_facts(spec: ModelSpec, machine: Machine) -> Facts:
    """Facts about a model and a machine that the op table's candidates check."""
    dims = dict.fromkeys(layout.head_dim for layout in spec.kv_shapes)
    return native_facts(machine.kernels, machine.kernels_note, tuple(dims))


def choose_kernels(
    spec: ModelSpec, machine: Machine, dtype: str, quantization: str | None, force: str | None
) -> KernelChoice:
    """Ask the op table which kernels serve the whole model in `dtype` with weights of that format.

    Raises ConfigError where the kernels that `force` names cannot, or where a quantised format finds none.
    """
    weights = parse_format(quantization) if quantization else None
    if weights is None and dtype in DTYPES:
        weights = dense_format(dtype, stored_type(spec, dtype)[0])
    keys = op_keys(machine.kind, dtype, (weights.name if weights else DENSE,))
    choice = DEFAULT_TABLE.suite(keys, op_facts(spec, machine), force)
    if choice.name is not None:
        best = "the best instruction set of this CPU that there are kernels for"
        return KernelChoice(choice.name, weights, best if force is None else "ops_force asks for it")
    refused = dict(choice.refused)
    if force in refused:
        here = f"; here are {', '.join(machine.kernels)}" if machine.kernels else ""
        raise ConfigError(f"ops_force {force} cannot serve this model: {refused[force]}{here}")
    if quantization is not None:
        raise ConfigError(
            f"quantization {quantization} needs the native CPU kernels, which do not serve here ({choice.why})"
        )
    return KernelChoice(None, None, f"torch runs the model: {choice.why}")


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


def choose_kv_dtype(asked: str, dtype: str, native: bool, asked_reason: str) -> tuple[str, str]:
    """(type, reason) of stored keys and values. Raises ConfigError for one that the ops at hand cannot read."""
    if asked == "auto":
        return dtype, "the compute type"
    if native and asked not in KV_DTYPES:
        raise ConfigError(
            f"kv_cache_dtype {asked} is not supported by the native kernels: {', '.join(KV_DTYPES)}"
        )
    if not native and asked != dtype:
        raise ConfigError(
            f"kv_cache_dtype {asked} differs from the compute type {dtype}, which only the native CPU kernels can do"
        )
    return asked, asked_reason
