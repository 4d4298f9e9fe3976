"""Operations of an op's products; a multiplication and an addition are two."""

from __future__ import annotations

from typing import Any

from headrace.program.records import Attention, Op


def operations_per_row(op: Op[Any]) -> int:
    """Of the products with weights, for one row. Norms, rope and lookups count as none: they are small beside these."""
    heads = op.attributes.num_heads if op.kind == "heads_linear" else 0
    each = {
        "linear": 1,
        "logits": 1,
        "heads_linear": heads,
        "experts": op.attributes.top_k if op.kind == "experts" else 0,
    }
    return each.get(op.kind, 0) * sum(2 * weight.rows * weight.columns for weight in op.weights)


def operations_per_pair(op: Op[Any]) -> int:
    """For a query and a key in its sight, over all heads: two products."""
    if op.kind != "attention":
        return 0
    spec: Attention = op.attributes
    return 2 * spec.num_heads * (spec.head_dim + spec.value_dim)


def touched(experts: int, top_k: int, tokens: int) -> float:
    """The expected part of a mixture's experts that one of so many tokens goes to, if all are equally likely."""
    return 1 - (1 - top_k / experts) ** tokens
