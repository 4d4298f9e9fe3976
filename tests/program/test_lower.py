"""The one walk over a model's layers, and the list that it makes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest

from headrace.core.types import Retention
from headrace.models.spec import AttentionSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec, RopeSpec, StoredCodes
from headrace.program.lower import lower
from headrace.program.placement import Call, place
from headrace.program.records import Buffer, Program, WeightRef
from headrace.program.work import operations_per_row
from headrace.quant.code_format import CodeFormat

ATTENTION = AttentionSpec(4, 2, 16, scale=0.25, rope=RopeSpec(theta=1e4, dim=16))
MLP = MLPSpec(intermediate_size=72)


def model(*mixers: AttentionSpec, tied: bool = False, mlp: MLPSpec = MLP) -> ModelSpec:
    return ModelSpec(
        family="llama", hidden_size=48, vocab_size=131, max_position=64, norm=NormSpec(1e-5), tie_embeddings=tied,
        checkpoint_dtype="float32", layers=tuple(LayerSpec(mixer, mlp) for mixer in mixers),
    )  # fmt: skip


LAYER = [
    ("norm", "norm"), ("linear", "qkv"), ("rope", "rope"), ("attention", "attention"), ("encode", "encode_out"),
    ("linear", "out"), ("norm", "norm"), ("linear", "gate_up"), ("encode", "encode_down"), ("linear", "down"),
]  # fmt: skip


def names(program: Program) -> list[tuple[str, str]]:
    return [(op.kind, op.name) for op in program.ops]


def test_every_op_in_order() -> None:
    first = [*LAYER[:2], ("rotations", "rotations"), *LAYER[2:]]
    head = [("norm", "norm"), ("logits", "head")]
    wide = lower(model(ATTENTION, ATTENTION), narrow=False)
    assert names(wide) == [("embed", "embed"), *first, *LAYER, ("gather", "gather"), *head]
    narrow = lower(model(ATTENTION, ATTENTION))
    last = [*LAYER[:4], ("gather", "gather"), ("gather", "encode_out"), *LAYER[5:]]
    assert names(narrow) == [("embed", "embed"), *first, *last, *head]
    gathered = names(narrow).index(("gather", "gather"))
    assert {op.rows for op in narrow.ops[:gathered]} == {"tokens"}
    assert {op.rows for op in narrow.ops[gathered:-1]} == {"selected"} and narrow.ops[-1].rows == "logits"
    assert [op.layer for op in narrow.ops[-2:]] == [None, None]


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_every_buffer_is_written_before_it_is_read(narrow: bool, layers: int) -> None:
    program = lower(model(*[ATTENTION] * layers), narrow=narrow)
    written: set[Buffer] = set()
    for op in program.ops:
        assert written >= set(op.inputs), op
        written |= set(op.outputs)
    assert tuple(dict.fromkeys(program.buffers)) == program.buffers and written == set(program.buffers)


def test_weights_name_their_tensors() -> None:
    biased = replace(ATTENTION, qkv_bias=True, qk_norm=NormSpec(1e-5))
    program = lower(model(ATTENTION, biased))
    weights = {weight.name: weight for weight in program.weights}
    prefix = "model.layers.1.self_attn."
    qkv = weights["1.qkv"]
    assert qkv.parts == (
        (f"{prefix}q_proj.weight", 64),
        (f"{prefix}k_proj.weight", 32),
        (f"{prefix}v_proj.weight", 32),
    )
    assert qkv.biases == (f"{prefix}q_proj.bias", f"{prefix}k_proj.bias", f"{prefix}v_proj.bias")
    assert (qkv.shape, qkv.layer, qkv.shard, qkv.elements) == ((128, 48), 1, "row", 128 * 48 + 128)
    assert not weights["0.qkv"].biases and weights["1.gate_up"].gated and weights["1.down"].shard == "column"
    assert weights["1.query_norm"].shape == (16,) and "0.query_norm" not in weights
    assert program.tensors()[f"{prefix}k_norm.weight"] == (16,)
    assert program.tensors()["lm_head.weight"] == (131, 48)
    with pytest.raises(FrozenInstanceError):
        qkv.columns = 1  # type: ignore[misc]


def test_a_tied_head_is_one_weight_of_two_ops() -> None:
    program = lower(model(ATTENTION, tied=True))
    (tied,) = (weight for weight in program.weights if weight.kind == "tied")
    assert program.ops[0].weights == program.ops[-1].weights == (tied,)
    assert "lm_head.weight" not in program.tensors()


def test_layers_share_buffers_and_rotations() -> None:
    assert lower(model(ATTENTION, ATTENTION)).buffers == lower(model(*[ATTENTION] * 5)).buffers
    other = replace(ATTENTION, rope=replace(ATTENTION.rope, theta=5e5))
    sinks = replace(ATTENTION, retention=Retention.SINKS, window=24, sinks=3)
    program = lower(model(ATTENTION, other, sinks, sinks))
    rotations = [(op.attributes.rope.theta, op.attributes.limit) for op in program.of_kind("rotations")]
    assert rotations == [(1e4, None), (5e5, None), (1e4, 26)]
    assert [len(op.inputs) for op in program.of_kind("rope")] == [2, 2, 3, 3]
    assert [layout.layers for layout in program.kv] == [(0, 1), (2, 3)]


def test_operations_are_two_for_each_weight_of_a_product() -> None:
    program = lower(model(ATTENTION, ATTENTION))
    matrices = sum(weight.rows * weight.columns for weight in program.weights if weight.kind == "matrix")
    assert sum(operations_per_row(op) for op in program.ops) == 2 * matrices


def test_each_matrix_may_have_its_own_encoding() -> None:
    """As tensors of different formats in one file do: memory is shared where it is alike, and only there."""
    program = lower(model(ATTENTION, ATTENTION, ATTENTION))

    def mixed(weight: WeightRef) -> tuple[str, int, bool]:
        return ("i8", 64, False) if weight.name in ("1.out", "head") else ("bf16", 0, weight.name == "1.down")

    calls = place(program, mixed, "bf16")  # type: ignore[arg-type]
    encoded = {(call.op.name, call.op.layer): call.outputs[0] for call in calls if call.op.reader is not None}
    assert encoded["encode_out", 1].type == "i8" and ("encode_out", 0) not in encoded  # nothing to encode
    assert (
        encoded["encode_down", 1].type == "bf16" and ("encode_down", 0) not in encoded
    )  # to put into its order
    assert encoded["attention", 0].type == "bf16" and encoded["attention", 1].type == "f32"
    assert encoded["norm", None].type == "i8" and encoded["norm", 0] == encoded["norm", 1]
    assert calls[0].op.kind == "embed" and [call.op for call in calls if call.op.kind == "linear"] == list(
        program.of_kind("linear")
    )


def test_parts_that_are_stored_differently_are_matrices_of_their_own() -> None:
    """q and k of layer 0 alike and v otherwise, all three of layer 1 alike, k of layer 2 otherwise."""
    four, six = CodeFormat(4, group=32), CodeFormat(6, group=16)
    kinds = {0: (four, four, six), 1: (six, six, six), 2: (four, six, four)}
    stored = tuple(
        (f"model.layers.{layer}.self_attn.{part}_proj.weight", kind)
        for layer, parts in kinds.items()
        for part, kind in zip("qkv", parts, strict=True)
    )
    spec = replace(model(ATTENTION, ATTENTION, ATTENTION), codes=StoredCodes("mixed", stored, None))
    program = lower(spec)
    roles = ["qk", "v", "qkv", "q", "k", "v"]
    products = [op for op in program.of_kind("linear") if op.outputs[0].name == "qkv"]
    assert [op.name for op in products] == roles
    assert [op.attributes.column for op in products] == [0, 96, 0, 0, 64, 96]
    assert [op.attributes.epilogue for op in products] == [
        "none", "append", "none", "none", "append", "append",
    ]  # fmt: skip
    assert {op.outputs[0].columns for op in products} == {128}
    assert program.tensors() == lower(replace(spec, codes=None)).tensors()

    def encodings(weight: WeightRef) -> tuple[str, int, bool]:
        return "i8", 16 if weight.name in ("0.v", "2.k") else 32, weight.name == "2.v"

    calls = place(program, encodings, "bf16")  # type: ignore[arg-type]
    assert [call.outputs[0].group for call in input_norms(calls)] == [32, 16, 32, 32, 16, 32]
    reads = [call.inputs[0].group for call in calls if call.op in products]
    assert reads == [32, 16, 32, 32, 16, 32]
    alike = place(program, lambda weight: ("i8", 32, False), "bf16")
    assert len(input_norms(alike)) == 3  # what q reads is what k and v read


def test_gate_and_up_that_are_stored_differently_are_two_products() -> None:
    kinds = {"gate": CodeFormat(4, group=32), "up": CodeFormat(6, group=16)}
    stored = tuple((f"model.layers.1.mlp.{part}_proj.weight", kind) for part, kind in kinds.items())
    spec = replace(model(ATTENTION, ATTENTION), codes=StoredCodes("mixed", stored, None))
    program = lower(spec)
    gate_up, gate, up = [op for op in program.of_kind("linear") if "gate" in op.name or op.name == "up"]
    assert (gate_up.name, gate.name, gate.attributes.epilogue) == ("gate_up", "gate", "none")
    assert (up.attributes.epilogue, up.attributes.activation) == (
        "multiply",
        spec.layers[1].feed_forward.activation,
    )
    assert up.inputs[1:] == gate.outputs and up.outputs[0].name == gate_up.outputs[0].name == "wide"
    assert up.reader is not None and up.reader.name == "1.down"
    assert gate_up.weights[0].gated and not gate.weights[0].gated and gate.outputs[0].form == "float"
    assert program.tensors() == lower(replace(spec, codes=None)).tensors()
    packed = replace(spec, codes=None, packed_names=tuple(one.name for one in program.weights))
    assert lower(packed).ops == program.ops


def test_what_another_order_overwrote_is_encoded_anew() -> None:
    """v reads what q read, but between them k, in an order of its own, has used the same memory."""
    usual = CodeFormat(4, group=32)
    kinds = zip("qkv", (usual, replace(usual, order=7), usual), strict=True)
    stored = tuple((f"model.layers.0.self_attn.{part}_proj.weight", kind) for part, kind in kinds)
    program = lower(replace(model(ATTENTION), codes=StoredCodes("gptq", stored, None)))
    calls = place(program, lambda weight: ("i8", 32, weight.name == "0.k"), "bf16")
    readers = [call.op.reader.name for call in input_norms(calls) if call.op.reader is not None]
    assert readers == ["0.q", "0.k", "0.v"]


def input_norms(calls: tuple[Call, ...]) -> list[Call]:
    return [
        call for call in calls if call.op.kind == "norm" and call.op.weights[0].name.endswith("input_norm")
    ]


def test_needs_the_standard_library_only() -> None:
    code = (
        "import headrace.program.lower, headrace.program.placement, headrace.program.work, sys\n"
        "print([name for name in ('numpy', 'torch', 'safetensors') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
