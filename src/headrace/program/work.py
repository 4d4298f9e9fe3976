"""Operations of an op's products; a multiplication and an addition are two."""

from __future__ import annotations

from typing import Any

from headrace.program.records import Op


def operations_per_row(op: Op[Any]) -> int:
    """Of the products with weights, for one row. Norms, rope and lookups count as none: they are small beside these."""
    return (
        sum(2 * weight.rows * weight.columns for weight in op.weights)
        if op.kind in ("linear", "logits")
        else 0
    )


def operations_per_pair(op: Op[Any]) -> int:
    """For a query and a key in its sight, over all heads: two products."""
    return 4 * op.attributes.num_heads * op.attributes.head_dim if op.kind == "attention" else 0
