"""The native kernels' instruction sets on this CPU, as test parameters.

The usual run takes the best set and the portable one; the sets between them, and the emulation of AMX, are marked
`long`. Imported only after `pytest.importorskip("headrace._native")`.
"""

from __future__ import annotations

import pytest

from headrace import _native

SETS = _native.available_kernels()
"""Best first."""
BEST = SETS[0]
USUAL = tuple(dict.fromkeys((BEST, "portable")))


def parameters(names: tuple[str, ...] | list[str] = SETS) -> list[object]:
    """One parameter a set, `long` unless it is in the usual run."""
    return [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in names]
