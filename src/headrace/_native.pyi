"""The C++ extension (csrc/). Absent where it could not be built: import it inside try."""

from typing import final

@final
class CpuInfo:
    @property
    def vendor(self) -> str: ...
    @property
    def brand(self) -> str: ...
    @property
    def flags(self) -> list[str]: ...
    @property
    def l1d_bytes(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def l3_bytes(self) -> int: ...

def detect_cpu() -> CpuInfo: ...
def usable_cpu_flags(
    *,
    leaf1_ecx: int,
    leaf7_ebx: int,
    leaf7_ecx: int,
    leaf7_edx: int,
    leaf7_1_eax: int,
    xcr0: int,
    amx_granted: bool,
) -> list[str]: ...
def available_kernels() -> list[str]: ...
