"""The ops of layers with a recurrent state: the gated delta rule, and short convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.models.spec import ConvSpec, DeltaSpec, RecurrentSpec
from headrace.program.records import Buffer, Conv, Delta, Linear, Ungroup, WeightRef

if TYPE_CHECKING:
    from headrace.program.lower import Lowering


def lower_recurrent(low: Lowering, index: int, spec: RecurrentSpec, norm: str) -> tuple[Buffer, WeightRef]:
    """Appends them, and gives the result and the matrix that multiplies it. They read the residual stream after the
    norm of that name, if it is not empty."""
    return _delta(low, index, spec, norm) if isinstance(spec, DeltaSpec) else _conv(low, index, spec, norm)


def _delta(low: Lowering, index: int, spec: DeltaSpec, norm: str) -> tuple[Buffer, WeightRef]:
    names, hidden = low.names, low.spec.hidden_size
    width, share = spec.num_heads * spec.value_dim, spec.num_heads // spec.num_key_heads
    out = low.matrix("out", "attention", {names.delta_out: hidden}, width, False, shard="column")
    qkv = low.buffer("delta_qkv", spec.channels, "float", "attention")
    gates = low.buffer("delta_gates", width, "float", "attention")
    numbers = low.buffer("delta_numbers", 2 * spec.num_heads, "float", "attention")
    if spec.fused:
        key, value = (spec.key_dim, 0), share * spec.value_dim
        parts = (key, key, (value, 0), (value, 1))
        grouped = _project(low, "qkvz", {names.delta_qkv_gate: spec.channels + width}, norm, "grouped_qkvz")
        apart = Ungroup(spec.num_key_heads, parts)
        low.add("ungroup", "ungroup_qkvz", (grouped,), [qkv, gates], attributes=apart)
    else:
        _project(low, "qkv", {names.delta_qkv: spec.channels}, norm, qkv)
        _project(low, "z", {names.delta_gate: width}, norm, gates)
    if spec.fused_numbers:
        rows = {names.delta_beta_decay: 2 * spec.num_heads}
        grouped = _project(low, "ba", rows, norm, "grouped_ba")
        apart = Ungroup(spec.num_key_heads, ((share, 0), (share, 0)))
        low.add("ungroup", "ungroup_ba", (grouped,), numbers, attributes=apart)
    else:
        column = 0
        for role, run in low.runs({names.delta_beta: "b", names.delta_decay: "a"}):
            rows = dict.fromkeys(run, spec.num_heads)
            _project(low, role, rows, norm, numbers, column=column)
            column += sum(rows.values())
    taps = low.vector("conv", f"{names.delta_conv}.weight", spec.channels * spec.width)
    convolved = low.buffer("convolved", spec.channels, "float", "attention")
    conv = Conv(spec.channels, spec.width, gated=False, cache=index)
    low.add("conv", "conv", (qkv,), convolved, taps, attributes=conv)
    vectors = (
        low.vector("rate", names.delta_rate, spec.num_heads),
        low.vector("time", names.delta_time, spec.num_heads),
        low.vector("delta_norm", f"{names.delta_norm}.weight", spec.value_dim, spec.norm.offset),
    )
    mixed = low.buffer("mixed", width, "float", "attention")
    rule = Delta(
        spec.num_heads, spec.num_key_heads, spec.key_dim, spec.value_dim, spec.norm.eps, index, spec.tiled
    )
    low.add("delta", "delta", (convolved, gates, numbers), mixed, *vectors, attributes=rule)
    return mixed, out


def _conv(low: Lowering, index: int, spec: ConvSpec, norm: str) -> tuple[Buffer, WeightRef]:
    names, hidden = low.names, low.spec.hidden_size
    out = low.matrix("out", "attention", {names.conv_out: hidden}, spec.channels, spec.bias, shard="column")
    product = _project(low, "conv_in", {names.conv_in: 3 * spec.channels}, norm, "conv_in", bias=spec.bias)
    weights = [low.vector("conv", f"{names.conv}.weight", spec.channels * spec.width)]
    if spec.bias:
        weights.append(low.vector("conv_bias", f"{names.conv}.bias", spec.channels))
    mixed = low.buffer("mixed", spec.channels, "float", "attention")
    conv = Conv(spec.channels, spec.width, gated=True, cache=index)
    low.add("conv", "conv", (product,), mixed, *weights, attributes=conv)
    return mixed, out


def _project(
    low: Lowering, role: str, rows: dict[str, int], norm: str, out: Buffer | str, *, bias: bool = False,
    column: int = 0,
) -> Buffer:  # fmt: skip
    """A product of the residual stream, into columns of a buffer from `column` on, or into a new one of that name."""
    weight = low.matrix(role, "attention", rows, low.spec.hidden_size, bias, shard="row")
    low.read_stream("input_norm", norm, weight)
    made = low.buffer(out, weight.rows, "float", "attention") if isinstance(out, str) else out
    inputs = (*low.ops[-1].outputs, *((made,) if column else ()))
    how = Linear("append" if column else "none", column=column)
    low.add("linear", role, inputs, made, weight, attributes=how)
    return made
