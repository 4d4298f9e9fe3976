"""The ops of embeddings of each token and layer: their sum before the layers, and the half that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.models.spec import PerLayerSpec
from headrace.program.records import Activate, Add, Branch, Buffer, Embed, Linear, Norm, WeightRef

if TYPE_CHECKING:
    from headrace.program.lower import Lowering


def lower_inputs(low: Lowering, spec: PerLayerSpec) -> Buffer:
    """Those of all layers, one layer's after the other's; the embeddings of the tokens are in the residual stream.

    Before its norm the product is divided by the root of the hidden size. Only the norm's epsilon sees that, which is
    multiplied by the hidden size instead.
    """
    names, model = low.names, low.spec
    columns, half = len(model.layers) * spec.size, 2.0**-0.5
    table = WeightRef(
        "per_layer_embed", "table", ((f"{names.per_layer_embed}.weight", spec.vocab_size),), columns, "embeddings",
        shard="row",
    )  # fmt: skip
    inputs = low.buffer("per_layer", columns, "float", "hidden")
    scaled = Embed((spec.size * 0.5) ** 0.5)  # the root of the size, and one of the half
    low.add("embed", "per_layer_embed", (), inputs, table, attributes=scaled)
    stacked = {names.per_layer_input: columns}
    weight = low.matrix("per_layer_input", "feed-forward", stacked, model.hidden_size, False, shard="row")
    low.read_stream("encode", "", weight)
    product = low.buffer("per_layer_product", columns, "float", "hidden")
    read = low.ops[-1].outputs
    low.add("linear", "per_layer_input", read, product, weight, attributes=Linear("none"))
    scales = low.vector(
        "per_layer_input_norm", f"{names.per_layer_input_norm}.weight", spec.size, model.norm.offset
    )
    norm = Norm(model.norm.eps * model.hidden_size, each=spec.size)
    low.add("add", "add_per_layer", (product, inputs), inputs, scales, attributes=Add(half, norm))
    return inputs


def lower_gate(low: Lowering, spec: PerLayerSpec, index: int) -> Branch:
    """The half of a layer that reads its embeddings, which ends with a product."""
    names, hidden = low.names, low.spec.hidden_size
    assert low.per_layer is not None
    gate = low.matrix(
        "per_layer_gate", "feed-forward", {names.per_layer_gate: spec.size}, hidden, False, shard="row"
    )
    out = low.matrix(
        "per_layer_out", "feed-forward", {names.per_layer_out: hidden}, spec.size, False, shard="column"
    )
    low.read_stream("encode", "", gate)
    product = low.buffer("per_layer_gates", spec.size, "float", "feed-forward")
    low.add("linear", "per_layer_gate", low.ops[-1].outputs, product, gate, attributes=Linear("none"))
    encoded = low.buffer("encoded_per_layer", spec.size, "encoded", "feed-forward")
    activate = Activate(spec.activation, column=index * spec.size)
    low.add(
        "activate", "per_layer_activate", (product, low.per_layer), encoded, attributes=activate, reader=out
    )
    return low.product("per_layer_out", encoded, out)
