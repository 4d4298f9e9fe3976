"""The ops of a mixture of experts: which experts each row goes to, their products, and the sum of what they give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from headrace.models.spec import ExpertsSpec, MLPSpec
from headrace.program.records import Add, Branch, Buffer, Combine, Experts, Linear, Norm, Route, WeightRef

if TYPE_CHECKING:
    from headrace.program.lower import Lowering


def lower_experts(low: Lowering, spec: ExpertsSpec, norm: str, role: str = "post_norm") -> Branch:
    """Appends them, without the sum. They read the residual stream after the norm of that name, if it is not empty; its
    weights have this role."""
    names, hidden, expert = low.names, low.spec.hidden_size, spec.expert
    count, each, wide = spec.num_experts, spec.router.top_k, expert.intermediate_size
    down = _matrix(
        low, "experts_down", {names.expert_down: hidden}, wide, expert.bias, "column", experts=count
    )
    routing = _route(low, spec, norm, role)
    runs = low.runs({names.expert_gate: "experts_gate", names.expert_up: "up"}, "_")
    together = len(runs) == 1
    inner = low.buffer("wide_routed", wide, "direct", "feed-forward", each)
    routed = low.buffer("encoded_routed", hidden, "encoded", "feed-forward", each)
    gates: tuple[Buffer, ...] = ()
    first = Experts(count, each, "none", scaled=spec.scaled_inputs)
    for name, run in runs:
        rows = dict.fromkeys(run, wide)
        weight = _matrix(low, name, rows, hidden, expert.bias, "row", gated=together, experts=count)
        low.read_stream(role, norm, weight)
        low.add("dispatch", "dispatch", (*low.ops[-1].outputs, routing), routed, reader=weight)
        inputs = (routed, routing, *gates)
        if together or gates:
            made = Experts(
                count, each, "gate" if together else "multiply", expert.activation, spec.scaled_inputs
            )
            low.add("experts", name, inputs, inner, weight, attributes=made, reader=down)
        else:
            gates = (low.buffer("gates_routed", wide, "float", "feed-forward", each),)
            low.add("experts", name, inputs, gates[0], weight, attributes=first)
    shared = () if spec.shared is None else (_shared(low, spec.shared, norm, role),)
    encoded = low.buffer("encoded_inner", wide, "encoded", "feed-forward", each)
    low.add("encode", "encode_experts_down", (inner,), encoded, reader=down)
    out = low.buffer("expert_outputs", hidden, "float", "feed-forward", each)
    plain = Experts(count, each, "none")
    low.add("experts", "experts_down", (encoded, routing), out, down, attributes=plain)
    weighted = not spec.scaled_inputs
    adding, storing = (Combine(each, spec.shared_gate, add, weighted) for add in (True, False))
    return Branch("combine", "combine", (out, routing, *shared), (), adding, storing)


def lower_beside(low: Lowering, dense: Branch, spec: ExpertsSpec) -> Buffer:
    """The sum of what a dense half and experts beside it give, each after its norm."""
    names, model = low.names, low.spec
    norm = Norm.of(model.norm)
    result = low.store(dense)
    half = low.buffer("dense_half", model.hidden_size, "float", "hidden")
    weights = low.norm_weights("dense_post_norm", names.dense_post_norm, model.norm, model.hidden_size)
    low.add("norm", "dense_post_norm", (result,), half, *weights, attributes=norm)
    result = low.store(lower_experts(low, spec, names.experts_norm, "experts_norm"))
    weights = low.norm_weights("experts_post_norm", names.experts_post_norm, model.norm, model.hidden_size)
    low.add("add", "add_experts", (result, half), half, *weights, attributes=Add(1.0, norm))
    return half


def _route(low: Lowering, spec: ExpertsSpec, norm: str, role: str) -> Buffer:
    """The routing of every row. The shared expert's gate is one more row of the router's matrix."""
    names, router = low.names, spec.router
    rows = {names.router: spec.num_experts, **({names.shared_router: 1} if spec.shared_gate else {})}
    weight = _matrix(low, "router", rows, low.spec.hidden_size, router.bias, None, exact=True)
    if router.own_norm:
        hidden = low.spec.hidden_size
        encoded = low.buffer("encoded_norm", hidden, "encoded", "hidden")
        scale = low.vector("router_norm", names.router_norm, hidden, factor=hidden**-0.5)
        norms = Norm(low.spec.norm.eps)
        low.add("norm", "router_norm", (low.stream,), encoded, scale, attributes=norms, reader=weight)
    else:
        low.read_stream(role, norm, weight)
    logits = low.buffer("router_logits", weight.rows, "float", "feed-forward")
    low.add("linear", "router", low.ops[-1].outputs, logits, weight, attributes=Linear("none"))
    routing = low.buffer("routing", spec.num_experts, "routing", "feed-forward", router.top_k)
    vectors = [low.vector("choice_bias", names.choice_bias, spec.num_experts)] if router.choice_bias else []
    if router.expert_scale:
        vectors.append(low.vector("expert_scale", names.expert_scale, spec.num_experts))
    route = Route(router, spec.num_experts, spec.shared_gate)
    low.add("route", "route", (logits,), routing, *vectors, attributes=route)
    return routing


def _shared(low: Lowering, spec: MLPSpec, norm: str, role: str) -> Buffer:
    """What the shared expert gives."""
    names, hidden, wide = low.names, low.spec.hidden_size, spec.intermediate_size
    down = _matrix(low, "shared_down", {names.shared_down: hidden}, wide, spec.bias, "column")
    roles = {names.shared_gate: "shared_gate", names.shared_up: "up"}
    inner = low.gated(spec, roles, down, norm, role)
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
