"""How much of a server one caller, or all callers together, may hold by their connections alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds. `body_timeout_s` is for each MiB of a body that has begun; `slow_reader_timeout_s` is what a
    caller gets to read 32 KiB when the buffers of its connection are full."""

    max_connections: int = 4096
    max_header_bytes: int = 64 * 2**10
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_timeout_s: float = 75.0
    slow_reader_timeout_s: float = 30.0
