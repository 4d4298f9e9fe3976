"""The ops of latent attention, in the absorbed form (DeepSeek-AI 2024, section 2.1).

A head's key is a matrix times the latent, and its value another one. The first is moved to the query, the second behind
the softmax, so that attention runs over latents with one key for all heads, and no key or value of a head is ever made.
The same products serve prompts and single tokens: a row's bits must not depend on how a prompt was cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.models.spec import LatentSpec
from headrace.program.records import (
    Attention,
    Buffer,
    HeadRows,
    HeadsLinear,
    Latent,
    Linear,
    Norm,
    WeightRef,
)

if TYPE_CHECKING:
    from headrace.program.lower import Lowering


def lower_latent(
    low: Lowering, index: int, spec: LatentSpec, norm: str, *, gather: bool
) -> tuple[Buffer, WeightRef]:
    """Appends them; gives the values of all heads, and the matrix that multiplies them.

    They read the residual stream after the norm of that name, if it is not empty. gather: only the selected rows are
    computed after attention.
    """
    names, hidden, heads = low.names, low.spec.hidden_size, spec.num_heads
    each = spec.key_dim + spec.value_dim  # rows of a head in the tensor that makes keys and values
    to_latent, to_value = (
        low.matrix(
            role, "attention", {names.latent_up: rows}, columns, False, shard="row",
            experts=heads, in_heads=HeadRows(each, first, count, transposed),
        )
        for role, rows, columns, first, count, transposed in (
            ("key_up", spec.latent, spec.key_dim, 0, spec.key_dim, True),
            ("value_up", spec.value_dim, spec.latent, spec.key_dim, spec.value_dim, False),
        )
    )  # fmt: skip
    out = low.matrix(
        "out", "attention", {names.out: hidden}, heads * spec.value_dim, spec.bias, shard="column"
    )

    query = _query(low, spec, norm)
    latent = low.buffer("latent", spec.head_dim, "float", "attention")
    weight = low.matrix("latent", "attention", {names.latent: spec.head_dim}, hidden, spec.bias, shard=None)
    low.read_stream("input_norm", norm, weight)
    low.add("linear", "latent", low.ops[-1].outputs, latent, weight, attributes=Linear("none"))
    norms = low.norm_weights("latent_norm", names.latent_norm, spec.norm, spec.latent)
    columns = Norm.of(spec.norm, (0, spec.latent))
    low.add("norm_columns", "latent_norm", (latent,), latent, *norms, attributes=columns)

    encoded = low.buffer("encoded_query", query.columns, "encoded", "attention")
    low.add("encode", "encode_query", (query,), encoded, reader=to_latent)
    queries = low.buffer("absorbed", heads * spec.head_dim, "queries", "attention")
    absorb = HeadsLinear(heads, spec.key_dim + spec.rope_dim, spec.head_dim)
    low.add("heads_linear", "key_up", (encoded,), queries, to_latent, attributes=absorb)
    rotate = Latent(heads, spec.key_dim, spec.rope.dim, spec.latent, spec.rope.interleaved, cache=index)
    rotation = low.rotation(spec.rope, None)
    low.add("latent", "rope", (query, latent, rotation, queries), queries, attributes=rotate)

    width = heads * spec.latent
    mixed = low.buffer("mixed", width, "float" if gather else "direct", "attention")
    attends = Attention(
        heads, 1, spec.head_dim, spec.scale, None, 0, None, cache=index, value_in_key=spec.latent
    )
    reader = None if gather else to_value
    low.add("attention", "attention", (queries,), mixed, attributes=attends, reader=reader)
    if gather:
        low.gather_stream()
    encoded = low.buffer("encoded_mixed", width, "encoded", "attention")
    low.add("gather" if gather else "encode", "encode_mixed", (mixed,), encoded, reader=to_value)
    values = low.buffer("head_values", heads * spec.value_dim, "direct", "attention")
    expand = HeadsLinear(heads, spec.latent, spec.value_dim)
    low.add("heads_linear", "value_up", (encoded,), values, to_value, attributes=expand, reader=out)
    return values, out


def _query(low: Lowering, spec: LatentSpec, norm: str) -> Buffer:
    """Queries of all heads, before rope."""
    names, hidden = low.names, low.spec.hidden_size
    width = spec.num_heads * (spec.key_dim + spec.rope_dim)
    query = low.buffer("query", width, "float", "attention")
    if spec.query_rank is None:
        weight = low.matrix("q", "attention", {names.query: width}, hidden, False, shard="row")
        low.read_stream("input_norm", norm, weight)
        low.add("linear", "q", low.ops[-1].outputs, query, weight, attributes=Linear("none"))
        return query
    rank = spec.query_rank
    down = low.matrix("query_down", "attention", {names.query_down: rank}, hidden, spec.bias, shard=None)
    up = low.matrix("query_up", "attention", {names.query_up: width}, rank, False, shard="row")
    low.read_stream("input_norm", norm, down)
    small = low.buffer("query_down", rank, "float", "attention")
    low.add("linear", "query_down", low.ops[-1].outputs, small, down, attributes=Linear("none"))
    encoded = low.buffer("encoded_query_down", rank, "encoded", "attention")
    norms = low.norm_weights("query_down_norm", names.query_down_norm, spec.norm, rank)
    made = Norm.of(spec.norm)
    low.add("norm", "query_down_norm", (small,), encoded, *norms, attributes=made, reader=up)
    low.add("linear", "query_up", (encoded,), query, up, attributes=Linear("none"))
    return query
