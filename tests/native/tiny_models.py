"""Tiny models of every kind that the spec can say, the same weights for torch and for the native kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import _native
from headrace.core.types import Retention
from headrace.models.spec import (
    AttentionSpec,
    ConvSpec,
    DeltaSpec,
    ExpertsSpec,
    FeedForward,
    LatentSpec,
    LayerSpec,
    Mixer,
    MLPSpec,
    ModelSpec,
    NormPlacement,
    NormSpec,
    PerLayerSpec,
    RopeSpec,
    RouterSpec,
    Temperature,
)
from headrace.models.weights import Projection, Weights, make_weights
from headrace.ops.candidates import DEFAULT_TABLE
from headrace.program.lower import lower
from headrace.program.records import WeightRef
from headrace.runner.kv_storage import KVStorage
from headrace.runner.native_decoder import NativeDecoder
from headrace.runner.native_kv import NativeKV
from headrace.runner.tape_memory import TapeLimits
from headrace.runner.torch_decoder import Decoder
from headrace.runner.torch_model import TorchModel
from tests.native.steps import groups_of

VOCAB = 131
MAX_TOKENS = 256
MAX_LEN = 512

ROPE = RopeSpec(theta=10_000.0, dim=16)
ATTENTION = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, rope=ROPE)
WINDOW = replace(ATTENTION, retention=Retention.WINDOW, window=21)
SINKS = replace(ATTENTION, retention=Retention.SINKS, window=24, sinks=3)
CHUNKS = replace(WINDOW, chunked=True, qk_norm=NormSpec(1e-5, weighted=False))
LATENT = LatentSpec(
    num_heads=3, latent=64, key_dim=64, rope_dim=16, value_dim=32, query_rank=None, scale=0.2,
    rope=replace(ROPE, interleaved=True), norm=NormSpec(1e-6),
)  # fmt: skip
EXPERT = MLPSpec(intermediate_size=40)
EXPERTS = ExpertsSpec(6, RouterSpec(2), EXPERT)
DEEPSEEK = RouterSpec(
    3, "sigmoid", normalize=True, scale=2.5, choice_bias=True, groups=4, top_groups=2, group_score="top2"
)
DELTA = DeltaSpec(num_heads=4, num_key_heads=2, key_dim=8, value_dim=16, width=4, norm=NormSpec(1e-5))
CONV = ConvSpec(channels=48, width=3)
MLP = MLPSpec(intermediate_size=72)  # not a multiple of 16: gate and up are padded
NORMED = replace(ATTENTION, qk_norm=NormSpec(1e-5), value_norm=True)
LAYER_NORM = NormSpec(1e-5, "layer", bias=True)
YARN = RopeSpec(theta=500.0, dim=16, kind="yarn", factor=4.0, original_max_position=64)


def model(
    *mixers: Mixer, mlp: FeedForward = MLP, norms: NormPlacement = "pre", scaled: bool = False,
    beside: ExpertsSpec | None = None, **fields: Any,
) -> ModelSpec:  # fmt: skip
    """Hidden size 48, so that rows need padding too."""
    known = {
        "family": "tiny", "hidden_size": 48, "vocab_size": VOCAB, "max_position": MAX_LEN, "norm": NormSpec(1e-5),
        "tie_embeddings": False, "checkpoint_dtype": "float32",
    }  # fmt: skip
    return ModelSpec(
        **{**known, **fields}, layers=tuple(LayerSpec(mixer, mlp, norms, scaled, beside) for mixer in mixers)
    )


SPECS = {
    "gqa": model(ATTENTION, ATTENTION, ATTENTION),
    "mha": model(replace(ATTENTION, num_kv_heads=4), replace(ATTENTION, num_kv_heads=4)),
    "mqa": model(replace(ATTENTION, num_kv_heads=1), replace(ATTENTION, num_kv_heads=1)),
    "one-layer": model(ATTENTION),
    "biases": model(*[replace(ATTENTION, qkv_bias=True, out_bias=True)] * 2, mlp=replace(MLP, bias=True)),
    "qk-norm": model(
        *[replace(ATTENTION, qk_norm=NormSpec(1e-5), head_dim=32, rope=replace(ROPE, dim=32))] * 2
    ),
    "part-of-a-head-rotated": model(*[replace(ATTENTION, head_dim=48)] * 2),
    "window": model(WINDOW, WINDOW),
    "full-and-window": model(WINDOW, ATTENTION, WINDOW),
    "sinks": model(SINKS, SINKS),
    "soft-caps": model(*[replace(ATTENTION, soft_cap=5.0)] * 2, final_soft_cap=6.0),
    "yarn": model(*[replace(ATTENTION, rope=YARN)] * 2),
    "two-ropes": model(ATTENTION, replace(WINDOW, rope=replace(ROPE, theta=300.0))),
    "gelu": model(ATTENTION, ATTENTION, mlp=replace(MLP, activation="gelu")),
    "gelu-tanh": model(ATTENTION, ATTENTION, mlp=replace(MLP, activation="gelu_tanh")),
    "tied": model(ATTENTION, ATTENTION, tie_embeddings=True),
    "layer-norm": model(ATTENTION, ATTENTION, norm=LAYER_NORM),
    "layer-norm-without-bias": model(ATTENTION, ATTENTION, norm=replace(LAYER_NORM, bias=False)),
    "norms-after": model(ATTENTION, ATTENTION, norms="post"),
    "norms-around": model(ATTENTION, WINDOW, norms="both", norm=NormSpec(1e-5, offset=1.0)),
    "layer-norms-around": model(ATTENTION, ATTENTION, norms="both", norm=LAYER_NORM),
    "parallel": model(ATTENTION, ATTENTION, norms="parallel"),
    "scales": model(ATTENTION, ATTENTION, embedding_scale=7.0, residual_scale=0.4, logit_scale=0.3),
    "scaled-soft-cap": model(
        ATTENTION, tie_embeddings=True, embedding_scale=3.0, logit_scale=2.0, final_soft_cap=6.0
    ),
    "no-rope": model(replace(ATTENTION, rope=None), WINDOW),
    "interleaved-rope": model(*[replace(ATTENTION, rope=replace(ROPE, dim=8, interleaved=True))] * 2),
    "qk-norm-whole": model(*[replace(ATTENTION, qk_norm=NormSpec(1e-5), qk_norm_whole=True)] * 2),
    "learned-sinks": model(replace(ATTENTION, learned_sinks=True), replace(WINDOW, learned_sinks=True)),
    "temperature": model(*[replace(ATTENTION, temperature=Temperature(0.4, 8, 1))] * 2),
    "no-gate": model(ATTENTION, ATTENTION, mlp=replace(MLP, gated=False, activation="gelu_tanh", bias=True)),
    "squared-relu": model(ATTENTION, ATTENTION, mlp=replace(MLP, gated=False, activation="relu2")),
    "experts": model(ATTENTION, ATTENTION, mlp=EXPERTS),
    "experts-normalized": model(
        ATTENTION, WINDOW, mlp=replace(EXPERTS, router=RouterSpec(3, normalize=True))
    ),
    "experts-and-a-gated-one": model(
        ATTENTION, ATTENTION, mlp=replace(EXPERTS, shared=MLP, shared_gate=True)
    ),
    "experts-of-deepseek": model(
        ATTENTION, ATTENTION, mlp=ExpertsSpec(8, DEEPSEEK, EXPERT, shared=replace(MLP, bias=True))
    ),
    "experts-of-gpt-oss": model(
        *[ATTENTION] * 2,
        mlp=ExpertsSpec(
            5, RouterSpec(2, "softmax_chosen", bias=True), replace(EXPERT, activation="swiglu_oai", bias=True)
        ),
    ),
    "experts-and-norms-around": model(ATTENTION, ATTENTION, norms="both", mlp=EXPERTS, residual_scale=0.7),
    "experts-of-llama-4": model(
        CHUNKS,
        replace(ATTENTION, rope=None, temperature=Temperature(0.3, 16, 1)),
        CHUNKS,
        mlp=ExpertsSpec(5, RouterSpec(1, "sigmoid"), EXPERT, shared=EXPERT, scaled_inputs=True),
    ),
    "experts-with-scaled-inputs": model(
        ATTENTION, mlp=ExpertsSpec(5, RouterSpec(3), replace(EXPERT, bias=True), scaled_inputs=True)
    ),
    "linear-biases": model(
        *[replace(ATTENTION, rope=None, num_heads=6, alibi=8.0)] * 2, norm=LAYER_NORM, embedding_norm=True
    ),
    "latent": model(LATENT, LATENT),
    "latent-of-deepseek": model(
        *[replace(LATENT, query_rank=40, bias=True, rope=replace(YARN, dim=16, interleaved=True))] * 2,
        mlp=ExpertsSpec(8, DEEPSEEK, EXPERT, shared=MLP),
    ),
    "latent-and-heads": model(replace(LATENT, num_heads=20, value_dim=24), ATTENTION),
    "output-gate": model(
        *[replace(ATTENTION, output_gate=True, qk_norm=NormSpec(1e-5), rope=replace(ROPE, dim=8))] * 2
    ),
    "delta": model(DELTA, replace(ATTENTION, output_gate=True), DELTA),
    "delta-fused": model(
        replace(DELTA, fused=True, fused_numbers=True), replace(DELTA, fused_numbers=True), WINDOW
    ),
    "delta-tiled": model(replace(DELTA, tiled=True, num_heads=6), ATTENTION),
    "delta-last-wide": model(ATTENTION, replace(DELTA, value_dim=208, num_key_heads=4, key_dim=24)),
    "short-convolution": model(CONV, ATTENTION, replace(CONV, width=4, bias=True)),
    "proportional-rope": model(*[replace(ATTENTION, rope=replace(ROPE, kind="proportional", angles=3))] * 2),
    "value-norm": model(*[NORMED] * 2),
    "keys-are-values": model(ATTENTION, replace(NORMED, keys_are_values=True)),
    "shared-kv": model(
        replace(WINDOW, num_kv_heads=1),
        NORMED,
        replace(WINDOW, num_kv_heads=1, shares=0),
        replace(NORMED, shares=1),
    ),
    "shared-sinks": model(SINKS, replace(SINKS, shares=0)),
    "scaled-layers": model(ATTENTION, ATTENTION, scaled=True),
    "inputs-of-each-layer": model(
        *[ATTENTION] * 2, norms="both", scaled=True, per_layer=PerLayerSpec(24, VOCAB + 2, "gelu_tanh")
    ),
    "experts-beside": model(
        *[ATTENTION] * 2,
        norms="both",
        beside=ExpertsSpec(6, RouterSpec(3, normalize=True, expert_scale=True, own_norm=True), MLPSpec(40)),
    ),
    "learned-positions": model(*[replace(ATTENTION, rope=None)] * 2, learned_positions=MAX_LEN),
}

INPUTS = {"f32": "f32", "bf16": "bf16", "int8": "i8", "int4": "i8"}


@dataclass(frozen=True)
class Random:
    """Draws float32 weights that bfloat16 holds exactly, so that every format starts from the same numbers."""

    generator: torch.Generator
    scale: float

    def draw(self, *shape: int, around: float = 0.0, scale: float | None = None) -> torch.Tensor:
        values = torch.randn(shape, generator=self.generator) * (scale or self.scale) + around
        return values.bfloat16().float()

    def table(self, weight: WeightRef) -> torch.Tensor:
        return self.draw(*weight.shape, scale=0.5)

    def vector(self, weight: WeightRef) -> torch.Tensor:
        return self.draw(*weight.shape, around=1.0) + weight.offset

    def matrix(self, weight: WeightRef) -> Projection:
        experts = () if weight.experts is None else (weight.experts,)
        bias = self.draw(*experts, weight.rows) if weight.biases else None
        return Projection(self.draw(*experts, *weight.shape, scale=0.6 if weight.exact else None), bias)

    def tied(self, weight: WeightRef) -> tuple[torch.Tensor, Projection]:
        table = self.table(weight)
        return table, Projection(table)


def random_weights(spec: ModelSpec, scale: float = 0.15, seed: int = 7) -> Weights:
    return make_weights(lower(spec).weights, Random(torch.Generator().manual_seed(seed), scale))


def torch_model(spec: ModelSpec, weights: Weights, block_size: int) -> TorchModel:
    ops = DEFAULT_TABLE.select(device="cpu", dtype="float32", force="reference").load()
    device = torch.device("cpu")
    kv = KVStorage(spec.kv_shapes, groups_of(spec, block_size), torch.float32, device)
    return TorchModel(Decoder(lower(spec, narrow=False), weights, ops, device), kv, device)


def native_model(
    spec: ModelSpec,
    weights: Weights,
    block_size: int,
    kernels: str,
    *,
    threads: int = 2,
    format: str = "f32",
    kv: str = "float32",
    group: int = 0,
) -> NativeDecoder:
    table, team = _native.Kernels(kernels), _native.Team(threads)
    program = lower(spec)
    packed = make_weights(program.weights, _Packing(table, team, format, group, weights))
    groups = groups_of(spec, block_size)
    limits = TapeLimits(max_tokens=MAX_TOKENS, max_seqs=40)
    memory = NativeKV(spec.kv_shapes, groups, kv)
    return NativeDecoder(program, packed, memory, groups, table, team, limits)


def format_of(weight: WeightRef, format: str) -> str:
    """Of a model's matrix, where `format` is that of most."""
    if weight.in_heads is not None:
        return "bf16" if format == "bf16" else "f32"
    return "f32" if weight.exact else format


@dataclass(frozen=True)
class _Packing:
    """Packs the weights of a torch model."""

    kernels: _native.Kernels
    team: _native.Team
    format: str
    group: int
    weights: Weights

    def table(self, weight: WeightRef) -> NDArray[Any]:
        table: NDArray[Any] = self.weights.tables[weight.name].numpy()
        if self.format == "f32":
            return table
        return (table.view(np.uint32) >> 16).astype(np.uint16)  # exact, see Random

    def vector(self, weight: WeightRef) -> NDArray[Any]:
        vector: NDArray[Any] = self.weights.vectors[weight.name].numpy()
        return vector

    def matrix(self, weight: WeightRef) -> Projection:
        projection = self.weights.matrices[weight.name]
        format = format_of(weight, self.format)
        matrices = projection.weight.numpy().reshape(-1, *weight.shape)
        biases: list[Any] = [None] * len(matrices)
        if projection.bias is not None:
            biases = list(projection.bias.numpy().reshape(-1, weight.rows))
        parts = [list(np.split(one, 2)) if weight.gated else [one] for one in matrices]
        matrix = _native.PackedMatrix(
            self.kernels, self.team, format, parts[0], gate=weight.gated, input=INPUTS[format],
            group=self.group if format == self.format else 0, bias=biases[0], experts=len(matrices),
        )  # fmt: skip
        for number in range(1, len(matrices)):
            matrix.put(self.kernels, self.team, number, parts[number], biases[number])
        return Projection(matrix, format=format)

    def tied(self, weight: WeightRef) -> tuple[NDArray[Any], Projection]:
        return self.table(weight), self.matrix(weight)
