"""How a plan stores weights and KV: the formats to choose from on a machine, and the bytes that they take there."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from headrace.errors import ConfigError
from headrace.plan.dtypes import automatic_kv_dtype, choose_dtype, dtype_info
from headrace.plan.formats import KVFormat, MemoryFormat, kv_format
from headrace.plan.hardware import Hardware
from headrace.plan.units import DTYPE_BYTES
from headrace.plan.weight_formats import stored_type, weight_formats
from headrace.plan.weights import total_weight_bytes
from headrace.program.records import Program
from headrace.quant.block_formats import named_format
from headrace.sim.planner.model import PlannedModel
from headrace.sim.work import CPU_PRODUCTS, GPU_PRODUCTS, ModelWork, work_in

AS_STORED = "stored"
"""The format of the checkpoint: no option `quantization`."""

CPU_FORMATS = (AS_STORED, "int8", "int4")
GPU_FORMATS = (AS_STORED, "fp8", "int8", "int4-a16")
"""What a search tries; of GPUs fp8 only where they multiply it. int4-a16 rounds weights alone, as GPTQ and AWQ do."""

_GPU_KV_STRIDE = 1


@dataclass(frozen=True, slots=True)
class Stored:
    """A model in a format on a machine.

    format: as the option `--quantization` takes it, or AS_STORED. kv: as `--kv-cache-dtype` takes it, or "auto".
    """

    model: PlannedModel
    format: str
    kv: str
    memory: MemoryFormat
    products: Mapping[str, str]

    @property
    def weight_bytes(self) -> int:
        """Of all weights, on all devices together."""
        return _weight_bytes(self.model.program, self.memory)

    @property
    def bits(self) -> float:
        """Bits a parameter, embeddings and scales included."""
        return 8 * self.weight_bytes / self.model.parameters

    @property
    def label(self) -> str:
        """The format as people know it."""
        if self.format != AS_STORED:
            return self.format
        weights = self.memory.weights
        return self.memory.dtype if weights is None else weights.main.name

    def work(self) -> ModelWork:
        """The work of its steps."""
        return work_in(self.model.spec, self.memory, self.products)


@functools.lru_cache(maxsize=256)
def _weight_bytes(program: Program, memory: MemoryFormat) -> int:
    return total_weight_bytes(program, memory)


def formats_of(hardware: Hardware, asked: Sequence[str] | None = None) -> tuple[str, ...]:
    """The formats to try. Raises ConfigError for a name that is none."""
    if asked is not None:
        return tuple(dict.fromkeys(_checked(name) for name in asked))
    if hardware.kind == "cpu":
        return CPU_FORMATS
    return tuple(name for name in GPU_FORMATS if name != "fp8" or hardware.peak_of("fp8"))


def kv_types(hardware: Hardware) -> tuple[str, ...]:
    """The types of KV that a search tries."""
    if hardware.kind == "cpu":
        return ("auto", "int8")
    return ("auto", "fp8") if hardware.peak_of("fp8") else ("auto",)


def _known_kv(hardware: Hardware) -> tuple[str, ...]:
    """The types of KV that can be asked for: on a CPU all that the engine has."""
    if hardware.kind == "cpu":
        return ("auto", *DTYPE_BYTES, "int8", "fp8", "int4")
    return kv_types(hardware)


def _checked(name: str) -> str:
    """Floats of 16 bits are what checkpoints hold."""
    if name in (AS_STORED, "auto", "bf16", "bfloat16", "fp16", "float16"):
        return AS_STORED
    return name if name == "int4-a16" else named_format(name).name


def store(model: PlannedModel, hardware: Hardware, format: str = AS_STORED, kv: str = "auto") -> Stored:
    """How a model lies in memory there. Raises ConfigError where the format cannot hold it, and for a KV type that the
    machine has not."""
    if kv not in _known_kv(hardware):
        raise ConfigError(
            f"KV in {kv:.40} is not planned for on {hardware.name}; there are {', '.join(_known_kv(hardware))}"
        )
    gpu = hardware.kind == "cuda"
    dtype = "bfloat16" if gpu else _cpu_dtype(model, hardware, format)
    quantization = None if format == AS_STORED else format
    weights = weight_formats(model.spec, model.program, dtype, quantization)
    table, _ = stored_type(model.spec, dtype)
    keys = _gpu_kv(kv) if gpu else _cpu_kv(model, format, dtype, kv)
    memory = MemoryFormat(dtype, keys, weights, 1 if gpu else hardware.cores, table=table)
    return Stored(model, format, kv, memory, _products(hardware, format))


def _cpu_dtype(model: PlannedModel, hardware: Hardware, format: str) -> str:
    """As the engine chooses it there."""
    info, quantized = dtype_info(hardware.machine()), _is_quantized(model, format)
    return choose_dtype("auto", model.spec.checkpoint_dtype, info, "", quantized=quantized)[0]


def _cpu_kv(model: PlannedModel, format: str, dtype: str, kv: str) -> KVFormat:
    if kv == "auto":
        quantized = _is_quantized(model, format)
        kv, _ = automatic_kv_dtype("auto", model.spec.checkpoint_dtype, dtype, quantized=quantized)
    return kv_format(kv, native=True)


def _is_quantized(model: PlannedModel, format: str) -> bool:
    return format != AS_STORED or model.spec.codes is not None


def restore(stored: Stored, kv: str, hardware: Hardware) -> Stored:
    """The same weights with another type of KV."""
    gpu = hardware.kind == "cuda"
    keys = _gpu_kv(kv) if gpu else _cpu_kv(stored.model, stored.format, stored.memory.dtype, kv)
    return replace(stored, kv=kv, memory=replace(stored.memory, kv=keys))


def _gpu_kv(kv: str) -> KVFormat:
    """One byte an element for fp8, whose scales are one a layer."""
    return KVFormat("int8" if kv == "fp8" else "bfloat16", 0, _GPU_KV_STRIDE)


def _products(hardware: Hardware, format: str) -> Mapping[str, str]:
    if hardware.kind == "cpu":
        return CPU_PRODUCTS
    if format == "fp8" and hardware.peak_of("fp8"):  # activations in fp8, too
        return MappingProxyType({**GPU_PRODUCTS, "bf16": "fp8"})
    return GPU_PRODUCTS
