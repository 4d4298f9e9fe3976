"""The implementations that exist, best first. They are named here and imported where they are used."""

from __future__ import annotations

from headrace.ops.cpu import support
from headrace.ops.table import DENSE, PLAIN_OPS, WEIGHT_OPS, Candidate, Facts, OpKey, OpTable


def _any(key: OpKey, facts: Facts) -> str | None:
    return None


def _dense_only(key: OpKey, facts: Facts) -> str | None:
    if key.op in WEIGHT_OPS and key.format != DENSE:
        return f"reads dense weights only, not {key.format}"
    return None


DEFAULT_TABLE = OpTable(
    [
        *support.candidates(),
        Candidate("paged_attention", "torch", "headrace.ops.torch_fast:paged_attention", _any),
        *(
            Candidate(op, "reference", f"headrace.ops.reference:{op}", _dense_only)
            for op in (*PLAIN_OPS, *WEIGHT_OPS)
        ),
    ]
)
"""What `headrace` binds from: for each op the candidates in falling preference."""

OPS_NAMES = (*support.INSTRUCTION_SETS, support.EMULATED, "torch", "reference")
"""What `ops_force` may name."""
