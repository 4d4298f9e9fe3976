"""Data sheets of well-known GPUs and CPUs, each with its source, and the lookup by name.

Sizes are decimal, as sold; what a GPU can use of its memory is about that. Peaks are dense, without sparsity. Peaks of
CPUs are computed at the base clock, as a core under matrix load runs near it; a formula stands beside each. Links count
one direction.
"""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from headrace.errors import ConfigError
from headrace.ops.cpu_features import CpuFeatures, detect
from headrace.plan.hardware import Hardware, Machine, this_machine

THIS = "this"
"""The name of the machine that the command runs on."""

_GB = 10**9
_COUNTED = re.compile(r"([0-9]{1,4})x[ -]?(.+)")


def _gpu(
    name: str,
    title: str,
    memory: int,
    bandwidth: float,
    peak: dict[str, float],
    source: str,
    *,
    link: float,
    watts: float,
) -> Hardware:
    """memory in GB, bandwidth and link in GB/s, peaks in tera-operations/s."""
    peaks = tuple((product, rate * 1e12) for product, rate in peak.items())
    return Hardware(name, title, "cuda", memory * _GB, bandwidth * _GB, peaks, source, link * _GB, watts)


def _cpu(
    name: str,
    title: str,
    cores: int,
    clock: float,
    core: _Core,
    channels: int,
    rate: float,
    source: str,
    *,
    link: float,
    watts: float,
) -> Hardware:
    """One socket. clock in GHz; rate: megatransfers/s of 8 bytes a channel; memory: one module of 32 GB a channel; link
    in GB/s."""
    peaks = tuple((product, each * cores * clock * 1e9) for product, each in core.cycle.items())
    return Hardware(
        name, title, "cpu", channels * 32 * _GB, channels * rate * 8e6, peaks, source, link * _GB, watts, cores, 2,
        flags=frozenset(core.flags), kernels=core.kernels,
    )  # fmt: skip


class _Core(NamedTuple):
    """cycle: operations a cycle, by type of product. kernels: instruction sets of the native kernels that run there,
    best first. flags: those of /proc/cpuinfo that say whether it multiplies bfloat16."""

    cycle: dict[str, int]
    kernels: tuple[str, ...]
    flags: tuple[str, ...] = ()


# Operations: AVX2 or 256-bit units have two FMA of 8 floats, AVX-512 two of 16; dot products of bf16 do twice, those of
# int8 four times as many; AMX tiles do 1,024 in bf16 and 2,048 in int8.
_AVX2_SETS = ("avx2", "portable")
_VNNI_SETS = ("avx512_vnni", *_AVX2_SETS)
_AVX512_SETS = ("avx512", *_VNNI_SETS)
_AVX2 = _Core({"f32": 32}, _AVX2_SETS)
_ZEN4 = _Core({"f32": 32, "bf16": 64, "i8": 128}, _AVX512_SETS, ("avx512_bf16",))
_ZEN5 = _Core({"f32": 64, "bf16": 128, "i8": 256}, _AVX512_SETS, ("avx512_bf16",))
_ICE_LAKE = _Core({"f32": 64, "i8": 256}, _VNNI_SETS)
_AMX = _Core({"f32": 64, "bf16": 1024, "i8": 2048}, ("amx", *_AVX512_SETS), ("amx_bf16", "avx512_bf16"))

GPUS: tuple[Hardware, ...] = (
    _gpu(
        "h100", "NVIDIA H100 SXM 80GB", 80, 3350,
        {"f32": 67, "f16": 989.4, "bf16": 989.4, "fp8": 1978.9, "i8": 1978.9},
        "NVIDIA H100 data sheet, 2023; dense rates from NVIDIA H100 Architecture white paper, table 2",
        link=450, watts=700,
    ),
    _gpu(
        "h200", "NVIDIA H200 SXM 141GB", 141, 4800,
        {"f32": 67, "f16": 989.4, "bf16": 989.4, "fp8": 1978.9, "i8": 1978.9},
        "NVIDIA H200 data sheet, 2024", link=450, watts=700,
    ),
    _gpu(
        "b200", "NVIDIA B200 180GB (HGX)", 180, 8000,
        {"f32": 80, "f16": 2250, "bf16": 2250, "fp8": 4500, "i8": 4500, "fp4": 9000},
        "NVIDIA Blackwell architecture technical brief and DGX B200 data sheet, 2024: 1,440 GB and 64 TB/s of 8 GPUs",
        link=900, watts=1000,
    ),
    _gpu(
        "a100-40g", "NVIDIA A100 SXM 40GB", 40, 1555,
        {"f32": 19.5, "f16": 312, "bf16": 312, "i8": 624, "int4": 1248},
        "NVIDIA A100 data sheet, 2020", link=300, watts=400,
    ),
    _gpu(
        "a100-80g", "NVIDIA A100 SXM 80GB", 80, 2039,
        {"f32": 19.5, "f16": 312, "bf16": 312, "i8": 624, "int4": 1248},
        "NVIDIA A100 data sheet, 2021", link=300, watts=400,
    ),
    _gpu(
        "a10g", "NVIDIA A10G 24GB", 24, 600,
        {"f32": 35, "f16": 70, "bf16": 70, "i8": 140, "int4": 280},
        "NVIDIA A10G data sheet for AWS G5, 2021; link: PCIe 4.0 x16", link=32, watts=300,
    ),
    _gpu(
        "a10", "NVIDIA A10 24GB", 24, 600,
        {"f32": 31.2, "f16": 125, "bf16": 125, "i8": 250, "int4": 500},
        "NVIDIA A10 data sheet, 2021; link: PCIe 4.0 x16", link=32, watts=150,
    ),
    _gpu(
        "t4", "NVIDIA T4 16GB", 16, 320,
        {"f32": 8.1, "f16": 65, "i8": 130, "int4": 260},
        "NVIDIA T4 data sheet, 2019; link: PCIe 3.0 x16", link=16, watts=70,
    ),
    _gpu(
        "l4", "NVIDIA L4 24GB", 24, 300,
        {"f32": 30.3, "f16": 121, "bf16": 121, "fp8": 242.5, "i8": 242.5},
        "NVIDIA L4 data sheet, 2023; link: PCIe 4.0 x16", link=32, watts=72,
    ),
    _gpu(
        "l40s", "NVIDIA L40S 48GB", 48, 864,
        {"f32": 91.6, "f16": 362.05, "bf16": 362.05, "fp8": 733, "i8": 733},
        "NVIDIA L40S data sheet, 2023; link: PCIe 4.0 x16", link=32, watts=350,
    ),
    _gpu(
        "rtx4090", "NVIDIA GeForce RTX 4090 24GB", 24, 1008,
        {"f32": 82.6, "f16": 165.2, "bf16": 165.2, "fp8": 330.3, "i8": 660.6, "int4": 1321.2},
        "NVIDIA Ada GPU Architecture white paper, 2022, with FP32 accumulation; link: PCIe 4.0 x16",
        link=32, watts=450,
    ),
    _gpu(
        "mi300x", "AMD Instinct MI300X 192GB", 192, 5300,
        {"f32": 163.4, "f16": 1307.4, "bf16": 1307.4, "fp8": 2614.9, "i8": 2614.9},
        "AMD Instinct MI300X data sheet, 2023; link: 7 Infinity Fabric links of 64 GB/s", link=448, watts=750,
    ),
)  # fmt: skip

CPUS: tuple[Hardware, ...] = (
    _cpu(
        "epyc-7763", "AMD EPYC 7763", 64, 2.45, _AVX2, 8, 3200,
        "AMD product page, 2021: 64 cores at 2.45 GHz, 8 channels of DDR4-3200; two 256-bit FMA a cycle",
        link=108, watts=280,
    ),
    _cpu(
        "epyc-9554", "AMD EPYC 9554", 64, 3.1, _ZEN4, 12, 4800,
        "AMD product page, 2022: 64 cores at 3.1 GHz, 12 channels of DDR5-4800; Zen 4, AVX-512 in two halves",
        link=192, watts=360,
    ),
    _cpu(
        "epyc-9654", "AMD EPYC 9654", 96, 2.4, _ZEN4, 12, 4800,
        "AMD product page, 2022: 96 cores at 2.4 GHz, 12 channels of DDR5-4800; Zen 4, AVX-512 in two halves",
        link=192, watts=360,
    ),
    _cpu(
        "epyc-9965", "AMD EPYC 9965", 192, 2.25, _ZEN5, 12, 6400,
        "AMD product page, 2024: 192 cores at 2.25 GHz, 12 channels of DDR5-6400; Zen 5c, whole AVX-512 units",
        link=192, watts=500,
    ),
    _cpu(
        "xeon-8380", "Intel Xeon Platinum 8380", 40, 2.3, _ICE_LAKE, 8, 3200,
        "Intel ARK, 2021: 40 cores at 2.3 GHz, 8 channels of DDR4-3200; two AVX-512 FMA a cycle, VNNI",
        link=67, watts=270,
    ),
    _cpu(
        "xeon-8480", "Intel Xeon Platinum 8480+", 56, 2.0, _AMX, 8, 4800,
        "Intel ARK, 2023: 56 cores at 2.0 GHz, 8 channels of DDR5-4800; AMX",
        link=128, watts=350,
    ),
    _cpu(
        "xeon-8592", "Intel Xeon Platinum 8592+", 64, 1.9, _AMX, 8, 5600,
        "Intel ARK, 2023: 64 cores at 1.9 GHz, 8 channels of DDR5-5600; AMX",
        link=160, watts=350,
    ),
    _cpu(
        "xeon-6980p", "Intel Xeon 6980P", 128, 2.0, _AMX, 12, 6400,
        "Intel ARK, 2024: 128 cores at 2.0 GHz, 12 channels of DDR5-6400 (MRDIMM are faster); AMX",
        link=288, watts=500,
    ),
)  # fmt: skip

HARDWARE: tuple[Hardware, ...] = (*GPUS, *CPUS)

HARDWARE_NAMES: tuple[str, ...] = (THIS, *(one.name for one in HARDWARE))

ALIASES = {"a100": "a100-80g", "a100-80gb": "a100-80g", "a100-40gb": "a100-40g", "4090": "rtx4090"}
"""Other spellings."""

# Rates of a CPU that was not measured, a core: what servers of the last years reach at least.
_CLOCK = 2.5e9
_CORE_BANDWIDTH, _SOCKET_BANDWIDTH = 12e9, 150e9


def find_hardware(text: str) -> Hardware:
    """The devices that a name such as "h100", "4xa10g" or "this" stands for.

    Raises ConfigError for a name that is unknown, with the nearest one, and for more devices than share links in one
    machine.
    """
    wanted = text.strip().lower()
    counted = _COUNTED.fullmatch(wanted)
    count, name = (int(counted[1]), counted[2]) if counted else (1, wanted)
    name = ALIASES.get(name, name)
    if name == THIS:
        found = this_hardware()
    else:
        by_name = {one.name: one for one in HARDWARE}
        if name not in by_name:
            raise ConfigError(_unknown(text, name))
        found = by_name[name]
    if not 1 <= count <= found.most:
        raise ConfigError(
            f"--hardware {text[:40]}: one machine has 1 to {found.most} of {found.title}; plan for "
            f"{found.times(found.most if count else 1).label}, and for more of these machines with --users or "
            "--requests-per-day"
        )
    return found.times(count)


def _unknown(text: str, name: str) -> str:
    near = difflib.get_close_matches(name, [*HARDWARE_NAMES, *ALIASES], 1, 0.5)
    begun = [known for known in HARDWARE_NAMES if name and known.startswith(name[:3])]
    nearest = ALIASES.get(near[0], near[0]) if near else (begun[0] if begun else None)
    meant = f"did you mean {nearest}? There" if nearest else "there"
    return f"there is no hardware {text[:40]!r} in the table; {meant} are {', '.join(HARDWARE_NAMES)}"


def this_hardware(machine: Machine | None = None, features: CpuFeatures | None = None) -> Hardware:
    """This machine as a data sheet: its memory as free now, and rates that are assumed from its cores and instruction
    sets. `headrace calibrate` measures them."""
    cpu = features or detect()
    here = machine or this_machine(cpu)
    core = _this_core(here)
    return Hardware(
        THIS,
        f"this machine, {here.name} with {here.cores} cores",
        here.kind,
        here.memory_available,
        min(here.cores * _CORE_BANDWIDTH, _SOCKET_BANDWIDTH),
        tuple((product, each * here.cores * _CLOCK) for product, each in core.cycle.items()),
        f"assumed: {_CLOCK / 1e9:g} GHz and {_CORE_BANDWIDTH / 1e9:g} GB/s a core; `headrace calibrate` measures them",
        cores=here.cores,
        most=1,
        flags=here.flags,
        kernels=here.kernels,
    )


def _this_core(machine: Machine) -> _Core:
    """By the kernels that the machine prefers; without any by its flags."""
    if machine.kernels:
        return {"amx": _AMX, "avx512": _ZEN4, "avx512_vnni": _ICE_LAKE}.get(machine.kernels[0], _AVX2)
    flags = machine.flags
    if "amx_bf16" in flags:
        return _AMX
    if "avx512_bf16" in flags:
        return _ZEN4
    return _ICE_LAKE if "avx512_vnni" in flags else _AVX2
