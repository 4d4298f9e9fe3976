"""The C++ extension (csrc/). Absent where it could not be built: import it inside try."""

from typing import final

import numpy as np
from numpy.typing import NDArray

Part = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16] | tuple[int, str, int, int]

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
def measure_read(kernels: str, *, threads: int, buffer_bytes: int, runs: int) -> list[float]: ...
def measure_peak(kernels: str, type: str, *, threads: int, seconds: float, runs: int) -> list[float]: ...

@final
class Kernels:
    """The kernels of one instruction set, by a name of `available_kernels`; ValueError for any other."""

    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str: ...

@final
class Team:
    """Threads that kernels run on, the caller being the first; asleep while nothing runs."""

    def __init__(self, size: int, pin: bool = False) -> None: ...
    @property
    def size(self) -> int: ...
    def thread_ids(self) -> list[int]: ...
    def run_empty(self, times: int) -> None:
        """Give the team nothing to do, so often: what starting and ending a run costs."""

@final
class PackedMatrix:
    """A weight matrix in the form that products read, see csrc/tensors.h.

    `format`: "f32", "bf16", "int8" or "int4"; `input`: how activations are to be encoded, "f32", "bf16" or "i8".
    `parts` are put below each other: arrays [rows, cols] of float32, float16 or bfloat16 (as uint16), or
    (address, "f32" | "bf16" | "f16", rows, cols) of memory that lives as long as the call. With `gate` they are gate
    and up. `group` (a multiple of 32) input features share a scale, 0: all. Raises ValueError where this does not fit.
    """

    def __init__(
        self,
        kernels: Kernels,
        team: Team,
        format: str,
        parts: list[Part],
        *,
        gate: bool = False,
        input: str,
        group: int = 0,
        symmetric: bool = True,
        bias: NDArray[np.float32] | None = None,
    ) -> None: ...
    @property
    def format(self) -> str: ...
    @property
    def input(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def linear(
    kernels: Kernels,
    team: Team,
    x: NDArray[np.float32],
    w: PackedMatrix,
    epilogue: str = "store",
    gate: str = "none",
    out: NDArray[np.float32] | NDArray[np.uint16] | None = None,
    out_dtype: str = "f32",
) -> NDArray[np.float32] | NDArray[np.uint16]:
    """x [T, cols] @ w.T + bias -> [T, rows], `x` being encoded as `w.input` says.

    `epilogue`: "store", "add" (to `out`, f32) or "gate" (`w` packed with gate=True: gate(x @ g.T) * (x @ u.T), one
    feature for each two, rounded up to 16; `gate` is "none", "silu", "gelu" or "gelu_tanh"). `out_dtype`: "f32", or
    "bf16" as uint16. Raises ValueError where shapes or names do not fit.
    """
