"""The ops of a mixture of experts: which experts each row goes to, their products, and the sum of what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from headrace.models.spec import ExpertsSpec, MLPSpec
from headrace.program.records import Branch, Buffer, Combine, Experts, Linear, Route, WeightRef

if TYPE_CHECKING:
    from headrace.program.lower import Lowering


def lower_experts(low: Lowering, spec: ExpertsSpec, norm: str) -> Branch:
    """Appends them but for the sum. They read the residual stream after the norm of that name, if it is not empty."""
    names, hidden, expert = low.names, low.spec.hidden_size, spec.expert
    count, each, wide = spec.num_experts, spec.router.top_k, expert.intermediate_size
    down = _matrix(
        low, "experts_down", {names.expert_down: hidden}, wide, expert.bias, "column", experts=count
    )
    routing = _route(low, spec, norm)
    runs = low.runs({names.expert_gate: "experts_gate", names.expert_up: "up"}, "_")
    together = len(runs) == 1
    inner = low.buffer("wide_routed", wide, "direct", "feed-forward", each)
    routed = low.buffer("encoded_routed", hidden, "encoded", "feed-forward", each)
    gates: tuple[Buffer, ...] = ()
    for role, run in runs:
        rows = dict.fromkeys(run, wide)
        weight = _matrix(low, role, rows, hidden, expert.bias, "row", gated=together, experts=count)
        low.read_stream("post_norm", norm, weight)
        low.add("dispatch", "dispatch", (*low.ops[-1].outputs, routing), routed, reader=weight)
        inputs = (routed, routing, *gates)
        if together or gates:
            made = Experts(count, each, "gate" if together else "multiply", expert.activation)
            low.add("experts", role, inputs, inner, weight, attributes=made, reader=down)
        else:
            gates = (low.buffer("gates_routed", wide, "float", "feed-forward", each),)
            low.add("experts", role, inputs, gates[0], weight, attributes=Experts(count, each, "none"))
    shared = () if spec.shared is None else (_shared(low, spec.shared, norm),)
    encoded = low.buffer("encoded_inner", wide, "encoded", "feed-forward", each)
    low.add("encode", "encode_experts_down", (inner,), encoded, reader=down)
    out = low.buffer("expert_outputs", hidden, "float", "feed-forward", each)
    plain = Experts(count, each, "none")
    low.add("experts", "experts_down", (encoded, routing), out, down, attributes=plain)
    adding, storing = (Combine(each, spec.shared_gate, add=add) for add in (True, False))
    return Branch("combine", "combine", (out, routing, *shared), (), adding, storing)


def _route(low: Lowering, spec: ExpertsSpec, norm: str) -> Buffer:
    """The routing of every row. The shared expert's gate is one more row of the router's matrix."""
    names, router = low.names, spec.router
    rows = {names.router: spec.num_experts, **({names.shared_router: 1} if spec.shared_gate else {})}
    weight = _matrix(low, "router", rows, low.spec.hidden_size, router.bias, None, exact=True)
    low.read_stream("post_norm", norm, weight)
    logits = low.buffer("router_logits", weight.rows, "float", "feed-forward")
    low.add("linear", "router", low.ops[-1].outputs, logits, weight, attributes=Linear("none"))
    routing = low.buffer("routing", spec.num_experts, "routing", "feed-forward", router.top_k)
    bias = [low.vector("choice_bias", names.choice_bias, spec.num_experts)] if router.choice_bias else []
    route = Route(router, spec.num_experts, spec.shared_gate)
    low.add("route", "route", (logits,), routing, *bias, attributes=route)
    return routing


def _shared(low: Lowering, spec: MLPSpec, norm: str) -> Buffer:
    """What the shared expert gives."""
    names, hidden, wide = low.names, low.spec.hidden_size, spec.intermediate_size
    down = _matrix(low, "shared_down", {names.shared_down: hidden}, wide, spec.bias, "column")
    runs = low.runs({names.shared_gate: "shared_gate", names.shared_up: "up"}, "_")
    together = len(runs) == 1
    inner = low.buffer("wide", wide, "direct", "feed-forward")
    gates: tuple[Buffer, ...] = ()
    for role, run in runs:
        weight = _matrix(low, role, dict.fromkeys(run, wide), hidden, spec.bias, "row", gated=together)
        low.read_stream("post_norm", norm, weight)
        inputs = (*low.ops[-1].outputs, *gates)
        if together or gates:
            gate = Linear("gate" if together else "multiply", spec.activation)
            low.add("linear", role, inputs, inner, weight, attributes=gate, reader=down)
        else:
            gates = (low.buffer("gates", wide, "float", "feed-forward"),)
            low.add("linear", role, inputs, gates[0], weight, attributes=Linear("none"))
    encoded = low.buffer("encoded_shared_down", wide, "encoded", "feed-forward")
    low.add("encode", "encode_shared_down", (inner,), encoded, reader=down)
    out = low.buffer("shared_output", hidden, "float", "feed-forward")
    low.add("linear", "shared_down", (encoded,), out, down, attributes=Linear("none"))
    return out


def _matrix(
    low: Lowering, role: str, stacked: dict[str, int], columns: int, bias: bool,
    shard: Literal["row", "column"] | None, **fields: Any,
) -> WeightRef:  # fmt: skip
    return low.matrix(role, "feed-forward", stacked, columns, bias, shard=shard, **fields)
