"""Whether the native CPU kernels run a model, which of them, and the types that they allow."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.models.spec import LatentSpec, ModelSpec
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.ops.cpu.support import KV_DTYPES, native_facts
from headrace.ops.table import DENSE, Facts, op_keys
from headrace.plan.hardware import Machine
from headrace.plan.weight_formats import weight_formats
from headrace.program.records import Program
from headrace.quant.format import ACTIVATION_NAMES, WeightFormats

_VLLM_NAMES = {"fp8_e4m3": "fp8"}
"""Types of KV that vLLM names otherwise."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """`name` is the instruction set of the native kernels, or None where torch runs the model."""

    name: str | None
    weights: WeightFormats | None  # of the packed matrices; None where torch runs
    reason: str


def op_facts(spec: ModelSpec, machine: Machine) -> Facts:
    """Facts about a model and a machine that the op table's candidates check."""
    layouts = spec.kv_shapes
    dims = dict.fromkeys(layout.head_dim for layout in layouts if layout.state is None)
    latents = (layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentSpec))
    sizes = dict.fromkeys((one.key_dim, one.latent) for one in latents)
    shapes = (layout.state for layout in layouts if layout.state is not None)
    states = dict.fromkeys((shape.key_dim, shape.value_dim) for shape in shapes)
    return native_facts(
        machine.kernels, machine.kernels_note, tuple(dims), latents=tuple(sizes), states=tuple(states)
    )


def choose_kernels(
    spec: ModelSpec,
    program: Program,
    machine: Machine,
    dtype: str,
    quantization: str | None,
    force: str | None,
) -> KernelChoice:
    """Ask the op table which kernels serve the whole model in `dtype` with weights of those formats.

    Raises ConfigError where the kernels that `force` names cannot, or where a quantised format finds none.
    """
    weights = weight_formats(spec, program, dtype, quantization)
    names = (DENSE,) if weights is None else tuple(one.name for one in weights.all)
    keys = op_keys(machine.kind, dtype, names)
    choice = DEFAULT_TABLE.suite(keys, op_facts(spec, machine), force)
    if choice.name is not None:
        best = "the best instruction set of this CPU that there are kernels for"
        return KernelChoice(choice.name, weights, best if force is None else "ops_force asks for it")
    refused = dict(choice.refused)
    if force in refused:
        here = f"; here are {', '.join(machine.kernels)}" if machine.kernels else ""
        raise ConfigError(f"ops_force {force} cannot serve this model: {refused[force]}{here}")
    if quantization is not None and quantization not in ACTIVATION_NAMES:
        raise ConfigError(
            f"quantization {quantization} needs the native CPU kernels, which do not serve here ({choice.why})"
        )
    return KernelChoice(None, None, f"torch runs the model: {choice.why}")


def choose_kv_dtype(
    asked: str, dtype: str, native: bool, asked_reason: str, automatic: tuple[str, str]
) -> tuple[str, str]:
    """(type, reason) of stored keys and values. `automatic` is what "auto" means on the native path.

    Raises ConfigError for a type that the ops at hand cannot read.
    """
    if asked == "auto":
        return automatic if native else (dtype, "the compute type")
    asked = _VLLM_NAMES.get(asked, asked)
    if native and asked not in KV_DTYPES:
        raise ConfigError(
            f"kv_cache_dtype {asked} is not supported by the native kernels: {', '.join(KV_DTYPES)}"
        )
    if not native and asked != dtype:
        raise ConfigError(
            f"kv_cache_dtype {asked} differs from the compute type {dtype}, which only the native CPU kernels can do"
        )
    return asked, asked_reason
