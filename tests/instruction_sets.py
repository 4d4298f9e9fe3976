"""The native kernels' instruction sets on this CPU, as test parameters.

The usual run takes the best set and the portable one; the sets between them, and the emulation of AMX, are marked
`long`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.ops.cpu_features import detect

SETS = detect().kernels
"""Best first; empty without the kernels."""
BEST = SETS[0] if SETS else "none"
USUAL = (BEST, "portable")


def parameters(names: Sequence[str] = SETS) -> list[object]:
    """One parameter a set, `long` unless it is in the usual run."""
    return [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in names]
