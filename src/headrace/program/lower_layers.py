"""Lowers layers that draft for a model: they begin with rows that are given, and end with a norm."""

from __future__ import annotations

from headrace.models.draft_layers import DraftLayers
from headrace.program.lower import Lowering, make_program
from headrace.program.records import Embed, Linear, Norm, Program, WeightRef

INPUTS = "inputs"
"""The table of the first op: row i is what token i of a step reads, the state before it and its embedding. It is no
weight of the program, and who runs the program makes it."""


def lower_layers(layers: DraftLayers, rows: int, *, narrow: bool = True) -> Program:
    """The program of draft layers for steps of up to `rows` tokens; the id of a token is its number in the step.

    Its last op is the final norm, of the selected rows; there are no logits. narrow: as in `lower`.
    """
    spec, names, size = layers.spec, layers.names, layers.spec.hidden_size
    lowering = Lowering(spec, names)
    inputs = WeightRef(INPUTS, "table", ((INPUTS, rows),), 2 * size, "hidden")
    joined = lowering.buffer("joined", 2 * size, "float", "hidden")
    lowering.add("embed", "inputs", (), joined, inputs, attributes=Embed())
    state, embedding = layers.halves
    halves = (
        ("state_norm", layers.state_norm, state.start),
        ("embedding_norm", layers.embedding_norm, embedding.start),
    )
    for role, name, first in halves:
        if name:
            norm = Norm.of(spec.norm, (first, size))
            weights = lowering.norm_weights(role, name, spec.norm, size)
            lowering.add("norm_columns", role, (joined,), joined, *weights, attributes=norm)
    join = lowering.matrix("join", "hidden", {layers.join: size}, 2 * size, False, shard=None)
    encoded = lowering.buffer("encoded_joined", 2 * size, "encoded", "hidden")
    lowering.add("encode", "encode_joined", (joined,), encoded, reader=join)
    lowering.add("linear", "join", (encoded,), lowering.stream, join, attributes=Linear("none"))
    last = len(spec.layers) - 1
    for index, layer in enumerate(spec.layers):
        lowering.layer(index, layer, gather=narrow and index == last)
    if not narrow:
        lowering.gather_stream()
    norms = lowering.norm_weights("final_norm", names.final_norm, spec.norm, size)
    states = lowering.buffer("states", size, "float", "hidden")
    norm = Norm.of(spec.norm)
    lowering.add("norm", "norm", (lowering.stream,), states, *norms, attributes=norm)
    return make_program(spec, lowering.ops, rows, inputs)
