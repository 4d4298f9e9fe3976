"""The implementations that exist, best first."""

from __future__ import annotations

from headrace.ops import reference, torch_fast
from headrace.ops.table import DENSE, WEIGHT_OPS, Candidate, Facts, OpKey, OpTable


def _any(key: OpKey, facts: Facts) -> str | None:
    return None


def _dense_only(key: OpKey, facts: Facts) -> str | None:
    if key.op in WEIGHT_OPS and key.format != DENSE:
        return f"reads dense weights only, not {key.format}"
    return None


DEFAULT_TABLE = OpTable(
    [
        Candidate("paged_attention", "torch", torch_fast.paged_attention, _any),
        *(Candidate(name, "reference", getattr(reference, name), _dense_only) for name in reference.__all__),
    ]
)
"""What `headrace` binds from: for each op the candidates in falling preference."""
