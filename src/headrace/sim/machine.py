"""The profile of this machine: as `headrace calibrate` stored it, or assumed from the CPU's features."""

from __future__ import annotations

from headrace.ops.cpu_features import CpuFeatures, detect
from headrace.sim.profile import CPU_CALL_S, CPU_REACH, CPU_STEP, SERVER, Profile, SampleCost
from headrace.sim.profile_store import this_profile

CLOCK = 2.5e9
"""Assumed cycles a second of a core under vector load."""
READ_PER_CORE, READ_MOST = 12e9, 60e9
"""Assumed bytes a second from memory: of one core, and of a small machine. Larger ones read faster."""
LANES = {"avx512f": 64, "avx2": 32}
"""Operations of floats in a cycle: two units, an addition and a multiplication in each lane."""
BF16 = {"amx_bf16": 16, "avx512_bf16": 2}
INT8 = {"amx_int8": 32, "avx512_vnni": 4, "avx_vnni": 2}
"""So many times the operations of floats."""


def profile_here(kernels: str | None = None, threads: int | None = None) -> tuple[Profile, str]:
    """The profile of this machine, and where it comes from in a few words."""
    stored = this_profile(kernels, threads)
    if stored is not None:
        return stored, "the profile that `headrace calibrate` stored"
    return assumed_profile(detect(), threads), (
        "assumed rates of this kind of CPU, as no profile is stored: `headrace calibrate` measures one"
    )


def assumed_profile(cpu: CpuFeatures, threads: int | None = None) -> Profile:
    """Rates of a CPU by its features. Good for the proportions of steps; `sim.online` corrects the rest."""
    cores = min(threads or cpu.cores.usable, cpu.cores.usable)
    floats = CLOCK * cores * next((lanes for flag, lanes in LANES.items() if flag in cpu.flags), 16)
    return Profile(
        name=cpu.brand or "CPU",
        source="data sheet",
        memory=((1.0, min(READ_PER_CORE * cores, READ_MOST)),),
        peaks={
            "f32": floats,
            "bf16": floats * _times(BF16, cpu),
            "i8": floats * _times(INT8, cpu),
        },
        reach=CPU_REACH,
        call_s=CPU_CALL_S,
        step=CPU_STEP,
        samples={"greedy": SampleCost()},
        server=SERVER,
    )


def _times(table: dict[str, int], cpu: CpuFeatures) -> int:
    return next((times for flag, times in table.items() if flag in cpu.flags), 1)
