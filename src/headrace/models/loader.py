"""Fills the decoder's weights, from a checkpoint or at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from headrace.errors import CheckpointError
from headrace.models.families import weight_names
from headrace.models.names import WeightNames
from headrace.models.safetensors_reader import WEIGHT_DTYPES, Checkpoint
from headrace.models.source import ModelSource
from headrace.models.spec import LayerSpec, ModelSpec
from headrace.models.weights import AttentionWeights, DecoderWeights, LayerWeights, MLPWeights, Projection

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""Compute dtypes by the name that options and specs use."""

Progress = Callable[[int, int], None]
"""Called after every tensor with the number done and the number in all."""

_Fill = Callable[[str, torch.Tensor], None]
"""Puts the checkpoint tensor of that name into a part of the decoder's weights."""


def load_weights(
    source: ModelSource,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    seed: int = 0,
    progress: Progress | None = None,
) -> DecoderWeights:
    """The weights of a resolved model: read from its folder, or random with `seed` for a shape.

    Raises CheckpointError, naming the tensor, where the checkpoint does not hold what `spec` needs.
    """
    if source.path is None:
        return random_weights(spec, dtype=dtype, device=device, seed=seed)
    return read_weights(Checkpoint(source.path), spec, dtype=dtype, device=device, progress=progress)


def read_weights(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> DecoderWeights:
    """Copy every tensor into the decoder's layout, converting to `dtype` on the way, one tensor at a time.

    Names, shapes and dtypes of all tensors are checked before the first is allocated.
    """
    names = weight_names(spec)
    wanted = expected_tensors(spec, names)
    check_tensors(checkpoint, wanted, spec, names)
    done = 0

    def fill(name: str, target: torch.Tensor) -> None:
        nonlocal done
        target.copy_(checkpoint.tensor(name))
        done += 1
        if progress is not None:
            progress(done, len(wanted))

    return _build(spec, names, fill, dtype, torch.device(device))


def random_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
) -> DecoderWeights:
    """Weights for measuring speed and for tests: norms are one, the rest is normal with deviation 0.02.

    The numbers come from one pool of 2^20 + 7 normal deviates, repeated: drawing each of a billion weights
    would take longer than everything else in a start. The odd length keeps rows from repeating.
    """
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn((1 << 20) + 7, generator=generator).mul_(0.02).to(dtype).to(device)
    start = 0

    def fill(name: str, target: torch.Tensor) -> None:
        nonlocal start
        if "norm" in name:
            target.fill_(1.0)
            return
        flat = target.view(-1)  # every target is a run of whole rows
        done = 0
        while done < flat.numel():
            count = min(flat.numel() - done, pool.numel() - start)
            flat[done : done + count] = pool[start : start + count]
            done += count
            start = (start + count) % pool.numel()

    return _build(spec, weight_names(spec), fill, dtype, torch.device(device))


def expected_tensors(spec: ModelSpec, names: WeightNames) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of `spec` must hold, with its shape."""
    hidden = spec.hidden_size
    expected: dict[str, tuple[int, ...]] = {
        names.embed: (spec.vocab_size, hidden),
        names.final_norm: (hidden,),
    }
    if not spec.tie_embeddings:
        expected[names.head] = (spec.vocab_size, hidden)
    for index, layer in enumerate(spec.layers):
        expected[_at(names.input_norm, index)] = (hidden,)
        expected[_at(names.post_norm, index)] = (hidden,)
        if layer.mixer.qk_norm:
            expected[_at(names.query_norm, index)] = (layer.mixer.head_dim,)
            expected[_at(names.key_norm, index)] = (layer.mixer.head_dim,)
        for stack in _stacks(layer, hidden, names).values():
            for part, rows in stack.parts:
                expected[_at(part, index) + ".weight"] = (rows, stack.columns)
                if stack.bias:
                    expected[_at(part, index) + ".bias"] = (rows,)
    return expected


def check_tensors(
    checkpoint: Checkpoint, wanted: dict[str, tuple[int, ...]], spec: ModelSpec, names: WeightNames
) -> None:
    """Raise CheckpointError for the first tensor that is missing, unexpected, misshapen or not a float."""
    for name, shape in wanted.items():
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
    # A tied model's head is the embedding; checkpoints that store it once more are common, and HF ignores it too.
    known = wanted.keys() | ({names.head} if spec.tie_embeddings else set())
    for name in checkpoint.names():
        if name not in known and not name.endswith(names.ignored):
            raise CheckpointError(
                f"the checkpoint holds tensor {name!r:.200}, which the config does not account for"
            )


@dataclass(frozen=True, slots=True)
class _Stack:
    """Projections of one input whose rows are stored as one matrix, so that one product makes them all."""

    parts: tuple[tuple[str, int], ...]  # (name, rows)
    columns: int
    bias: bool

    def rows(self) -> Iterator[tuple[str, slice]]:
        start = 0
        for name, rows in self.parts:
            yield name, slice(start, start + rows)
            start += rows


def _stacks(layer: LayerSpec, hidden: int, names: WeightNames) -> dict[str, _Stack]:
    mixer, mlp = layer.mixer, layer.feed_forward
    q_rows, kv_rows = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    wide = mlp.intermediate_size
    return {
        "qkv": _Stack(
            ((names.query, q_rows), (names.key, kv_rows), (names.value, kv_rows)), hidden, mixer.qkv_bias
        ),
        "out": _Stack(((names.out, hidden),), q_rows, mixer.out_bias),
        "gate_up": _Stack(((names.gate, wide), (names.up, wide)), hidden, mlp.bias),
        "down": _Stack(((names.down, hidden),), wide, mlp.bias),
    }


def _at(name: str, index: int) -> str:
    return name.replace("{i}", str(index))


def _build(
    spec: ModelSpec, names: WeightNames, fill: _Fill, dtype: torch.dtype, device: torch.device
) -> DecoderWeights:
    def filled(name: str, *shape: int) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=device)
        fill(name, tensor)
        return tensor

    def stacked(stack: _Stack, index: int) -> Projection:
        num_rows = sum(rows for _, rows in stack.parts)
        weight = torch.empty((num_rows, stack.columns), dtype=dtype, device=device)
        bias = torch.empty(num_rows, dtype=dtype, device=device) if stack.bias else None
        for name, rows in stack.rows():
            fill(_at(name, index) + ".weight", weight[rows])
            if bias is not None:
                fill(_at(name, index) + ".bias", bias[rows])
        return Projection(weight, bias)

    def layer_weights(layer: LayerSpec, index: int) -> LayerWeights:
        stacks = _stacks(layer, spec.hidden_size, names)
        head_dim, has_norms = layer.mixer.head_dim, layer.mixer.qk_norm
        attention = AttentionWeights(
            qkv=stacked(stacks["qkv"], index),
            out=stacked(stacks["out"], index),
            query_norm=filled(_at(names.query_norm, index), head_dim) if has_norms else None,
            key_norm=filled(_at(names.key_norm, index), head_dim) if has_norms else None,
        )
        mlp = MLPWeights(gate_up=stacked(stacks["gate_up"], index), down=stacked(stacks["down"], index))
        return LayerWeights(
            input_norm=filled(_at(names.input_norm, index), spec.hidden_size),
            attention=attention,
            post_norm=filled(_at(names.post_norm, index), spec.hidden_size),
            mlp=mlp,
        )

    embed = filled(names.embed, spec.vocab_size, spec.hidden_size)
    return DecoderWeights(
        embed=embed,
        layers=tuple(layer_weights(layer, index) for index, layer in enumerate(spec.layers)),
        final_norm=filled(names.final_norm, spec.hidden_size),
        head=Projection(
            embed if spec.tie_embeddings else filled(names.head, spec.vocab_size, spec.hidden_size)
        ),
    )
