"""The native kernels' instruction sets on this CPU, as test parameters.

The usual run takes the best set and the portable one; the sets between them, and the emulation of AMX, are marked
`long`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from headrace.ops.cpu_features import detect

SETS = detect().kernels
"""Best first; empty without the kernels."""
BEST = SETS[0] if SETS else "none"
USUAL = (BEST, "portable")
IN_TURN = [
    pytest.param([name for name in SETS if name in USUAL], id="usual"),
    pytest.param([name for name in SETS if name not in USUAL], id="others", marks=pytest.mark.long),
]
"""Lists of sets, for tests whose preparation takes longer than what they do with each set."""


def parameters(names: Sequence[str] = SETS) -> list[object]:
    """One parameter a set, `long` unless it is in the usual run."""
    return [pytest.param(name, marks=() if name in USUAL else pytest.mark.long) for name in names]


def with_kinds(kinds: Iterable[str]) -> pytest.MarkDecorator:
    """Parameters "name" and "kind". In the usual run the best set takes every kind, the slow portable one the last."""
    kinds = list(kinds)
    return pytest.mark.parametrize(
        ("name", "kind"),
        [
            pytest.param(
                name,
                kind,
                marks=() if name == BEST or (name in USUAL and kind == kinds[-1]) else pytest.mark.long,
            )
            for name in SETS
            for kind in kinds
        ],
    )
