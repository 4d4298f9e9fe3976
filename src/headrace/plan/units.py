"""Sizes and times as text: parsing, rounding and printing."""

from __future__ import annotations

import math
import re

from headrace.errors import ConfigError

DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one element of each compute type."""

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

# "512M" and "2g" are binary, as everywhere memory limits are typed (docker, systemd, ulimit).
_UNITS: dict[str, int] = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": KIB, "m": MIB, "g": GIB, "t": TIB,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([a-z]*)", re.ASCII)
_MAX_SIZE_CHARS = 32


def parse_bytes(text: str) -> int:
    """Bytes meant by text such as "512MiB", "2GB" (decimal), "1.5g" (binary) or "4096"; fractions round down.

    Raises ConfigError for anything else.
    """
    match = _SIZE.fullmatch(text.strip().lower()) if len(text) <= _MAX_SIZE_CHARS else None
    unit = None if match is None else _UNITS.get(match[2])
    if match is None or unit is None:
        raise ConfigError(
            f"cannot read {text[:_MAX_SIZE_CHARS]!r} as a size; write for example 512MiB, 2GB or 4096"
        )
    whole, _, fraction = match[1].partition(".")
    return int(whole) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)


def format_bytes(size: int) -> str:
    """Three or four significant digits in binary units: 1536 -> "1.50 KiB"."""
    if size < 0:
        return "-" + format_bytes(-size)
    if size < KIB:
        return f"{size} B"
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        # 1023.999 MiB would print as 1024 MiB.
        if value < 1023.95 and unit != "B":
            break
        value, unit = value / 1024, larger
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def format_count(count: int) -> str:
    """A count with thousands separated: 1,100,048,384."""
    return f"{count:,}"


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, with a decimal below 100: 0.0123 -> "12.3 ms"."""
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def round_up(value: float, digits: int) -> float:
    """The smallest number of so many significant digits that is not less, as far as floats go: a limit that is printed
    so can be kept. 0 for one that is not above 0."""
    if value <= 0:
        return 0.0
    places = digits - 1 - math.floor(math.log10(value))
    return round(math.ceil(value * 10.0**places - 1e-9) / 10.0**places, places)
