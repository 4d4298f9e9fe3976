"""Which matrices the decoder multiplies with, and which checkpoint tensors make them up. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.errors import CheckpointError
from headrace.models.names import WeightNames
from headrace.models.safetensors_reader import WEIGHT_DTYPES, Checkpoint
from headrace.models.spec import LayerSpec, ModelSpec
from headrace.models.weights import AttentionWeights, DecoderWeights, LayerWeights, MLPWeights, Projection

Progress = Callable[[int, int], None]
"""Called after every tensor with the number done and the number in all."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Projections of one input whose rows are stored as one matrix, so that one product computes all of them.

    gated: the gate's rows, then as many rows of the up projection.
    """

    parts: tuple[tuple[str, int], ...]  # (tensor name, rows)
    columns: int
    biases: tuple[str, ...] = ()  # tensor names, one a part, or none
    gated: bool = False

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)


class Maker(Protocol):
    """Turns checkpoint tensors into the arrays of one backend."""

    def table(self, name: str, rows: int, columns: int) -> Any:
        """The embeddings."""
        ...

    def norm(self, name: str, size: int) -> Any: ...

    def projection(self, stack: Stack) -> Projection: ...

    def tied(self, name: str, rows: int, columns: int) -> tuple[Any, Projection]:
        """Embeddings and head of a model that has one matrix for both."""
        ...


def build(spec: ModelSpec, names: WeightNames, make: Maker) -> DecoderWeights:
    """Create all weights, one tensor at a time, in the order of the model."""

    def layer_weights(layer: LayerSpec, index: int) -> LayerWeights:
        stacks = layer_stacks(layer, spec.hidden_size, names, index)
        head_dim, has_norms = layer.mixer.head_dim, layer.mixer.qk_norm
        return LayerWeights(
            input_norm=make.norm(_at(names.input_norm, index), spec.hidden_size),
            attention=AttentionWeights(
                qkv=make.projection(stacks["qkv"]),
                out=make.projection(stacks["out"]),
                query_norm=make.norm(_at(names.query_norm, index), head_dim) if has_norms else None,
                key_norm=make.norm(_at(names.key_norm, index), head_dim) if has_norms else None,
            ),
            post_norm=make.norm(_at(names.post_norm, index), spec.hidden_size),
            mlp=MLPWeights(gate_up=make.projection(stacks["gate_up"]), down=make.projection(stacks["down"])),
        )

    head: Projection | None = None
    if spec.tie_embeddings:
        embed, head = make.tied(names.embed, spec.vocab_size, spec.hidden_size)
    else:
        embed = make.table(names.embed, spec.vocab_size, spec.hidden_size)
    layers = tuple(layer_weights(layer, index) for index, layer in enumerate(spec.layers))
    final_norm = make.norm(names.final_norm, spec.hidden_size)
    if head is None:
        head = make.projection(Stack(((names.head, spec.vocab_size),), spec.hidden_size))
    return DecoderWeights(embed=embed, layers=layers, final_norm=final_norm, head=head)


def layer_stacks(layer: LayerSpec, hidden: int, names: WeightNames, index: int) -> dict[str, Stack]:
    """The matrices of layer `index`."""
    mixer, mlp = layer.mixer, layer.feed_forward
    q_rows, kv_rows = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    wide = mlp.intermediate_size

    def stack(parts: dict[str, int], columns: int, bias: bool, gated: bool = False) -> Stack:
        named = {_at(name, index): rows for name, rows in parts.items()}
        return Stack(
            parts=tuple((f"{name}.weight", rows) for name, rows in named.items()),
            columns=columns,
            biases=tuple(f"{name}.bias" for name in named) if bias else (),
            gated=gated,
        )

    qkv = {names.query: q_rows, names.key: kv_rows, names.value: kv_rows}
    return {
        "qkv": stack(qkv, hidden, mixer.qkv_bias),
        "out": stack({names.out: hidden}, q_rows, mixer.out_bias),
        "gate_up": stack({names.gate: wide, names.up: wide}, hidden, mlp.bias, gated=True),
        "down": stack({names.down: hidden}, wide, mlp.bias),
    }


def expected_tensors(spec: ModelSpec, names: WeightNames) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of `spec` must hold, with its shape, in the order in which `build` asks for it."""
    recorder = _Recorder()
    build(spec, names, recorder)
    return recorder.shapes


class _Recorder:
    """A Maker that only records the requested tensors."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def table(self, name: str, rows: int, columns: int) -> None:
        self.shapes[name] = (rows, columns)

    def norm(self, name: str, size: int) -> None:
        self.shapes[name] = (size,)

    def projection(self, stack: Stack) -> Projection:
        self.shapes |= {name: (rows, stack.columns) for name, rows in stack.parts}
        self.shapes |= {name: (rows,) for name, (_, rows) in zip(stack.biases, stack.parts, strict=False)}
        return Projection(None)

    def tied(self, name: str, rows: int, columns: int) -> tuple[None, Projection]:
        self.table(name, rows, columns)
        return None, Projection(None)


def check_tensors(
    checkpoint: Checkpoint, expected: dict[str, tuple[int, ...]], spec: ModelSpec, names: WeightNames
) -> None:
    """Raise CheckpointError for the first tensor that is missing, unexpected, misshapen or not a float."""
    for name, shape in expected.items():
        entry = checkpoint.entry(name)
        if entry is None:
            raise CheckpointError(f"the checkpoint in {checkpoint.folder} lacks tensor {name}")
        if entry.shape != shape:
            raise CheckpointError(
                f"tensor {name} has shape {list(entry.shape)}, but the config asks for {list(shape)}"
            )
        if entry.dtype not in WEIGHT_DTYPES:
            raise CheckpointError(
                f"tensor {name} is stored as {entry.dtype}, not as one of {', '.join(WEIGHT_DTYPES)}"
            )
    # A tied model's head is the embedding; many checkpoints store it twice, and HF ignores the copy, too.
    known = expected.keys() | ({names.head} if spec.tie_embeddings else set())
    for name in checkpoint.names():
        if name not in known and not name.endswith(names.ignored):
            raise CheckpointError(
                f"the checkpoint holds tensor {name!r:.200}, which the config does not account for"
            )


def _at(name: str, index: int) -> str:
    return name.replace("{i}", str(index))
