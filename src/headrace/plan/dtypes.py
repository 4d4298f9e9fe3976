"""The compute type: what a device supports, and what "auto" selects."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.ops.cpu.support import BFLOAT16_SETS, EMULATED, INSTRUCTION_SETS
from headrace.plan.hardware import Machine
from headrace.plan.units import DTYPE_BYTES

_CPU_BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})


@dataclass(frozen=True, slots=True)
class DtypeInfo:
    """What a device computes in: `supported` at all, `native` with matrix instructions of its own."""

    supported: tuple[str, ...]
    native: tuple[str, ...]


def dtype_info(machine: Machine, ops_force: str | None = None) -> DtypeInfo:
    """What is known from the machine's kind and the instruction set that `ops_force` names or the machine prefers;
    without native kernels, from the CPU's flags."""
    every = tuple(DTYPE_BYTES)
    if machine.kind != "cpu":
        return DtypeInfo(supported=every, native=every)
    has_bf16 = bool(machine.flags & _CPU_BF16_FLAGS)
    if ops_force in (*INSTRUCTION_SETS, EMULATED):
        has_bf16 = ops_force in BFLOAT16_SETS
    elif machine.kernels and ops_force is None:
        has_bf16 = machine.kernels[0] in BFLOAT16_SETS
    native = ("float32", "bfloat16") if has_bf16 else ("float32",)
    return DtypeInfo(supported=every, native=native)


def choose_dtype(
    asked: str, stored: str, info: DtypeInfo, asked_reason: str, *, quantized: bool = False
) -> tuple[str, str]:
    """(type, reason). "auto" never loses precision: it takes the stored type if native, else float32.

    Where weights are `quantized`, the type is that of embeddings and KV alone; float16 then becomes bfloat16 if that
    is native, since the bits that it lacks are fewer than those that the weights lose.
    Raises ConfigError for a type that the device cannot compute in.
    """
    if asked != "auto":
        dtype, reason = asked, asked_reason
    elif stored in info.native:
        dtype, reason = stored, "the type that the checkpoint is stored in, native on this device"
    elif quantized and stored == "float16" and "bfloat16" in info.native:
        dtype, reason = (
            "bfloat16",
            "the 16-bit type that is native here, for embeddings and KV; weights are rounded",
        )
    else:
        fast = " (AMX-BF16, or AMD's AVX512-BF16)" if stored == "bfloat16" else ""
        dtype = "float32"
        reason = (
            f"the checkpoint is stored in {stored}, for which this device has no matrix instructions faster than those "
            f"of float32{fast}; float32 keeps every bit"
        )
    if dtype not in info.supported:
        raise ConfigError(
            f"dtype {dtype} cannot be computed on this device; use {' or '.join(info.supported)}"
        )
    return dtype, reason


def automatic_kv_dtype(asked: str, stored: str, dtype: str, *, quantized: bool = False) -> tuple[str, str]:
    """(type, reason) of keys and values on the native path, where compute type `asked` became `dtype`.

    What computes in float32 only because that is faster than 16 bits still keeps keys and values in 16 bits: half the
    memory, and fewer bytes to read for each token.
    """
    narrow = stored == "bfloat16" or (quantized and stored == "float16")
    if asked == "auto" and dtype == "float32" and narrow:
        return "bfloat16", "half of float32, in which this device computes what is stored in 16 bits"
    return dtype, "the compute type"
