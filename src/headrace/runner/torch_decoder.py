"""Runs a program in torch, an op at a time, over a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headrace.models.rope import inverse_frequencies
from headrace.models.spec import RopeSpec, Temperature
from headrace.models.weights import Projection, Weights
from headrace.ops.reference.dense import ACTIVATIONS, gate
from headrace.ops.reference.rope import deinterleave
from headrace.ops.table import Ops
from headrace.program.records import (
    Activate,
    Add,
    Attention,
    Buffer,
    Combine,
    Conv,
    Delta,
    Embed,
    Experts,
    Head,
    Heads,
    HeadsLinear,
    Latent,
    Linear,
    Norm,
    Op,
    Program,
    Rotations,
    Route,
    Ungroup,
    WeightRef,
)
from headrace.runner.batch import Batch, GroupBatch, LayerCache, LayerKV, LayerState, StateBatch
from headrace.runner.torch_experts import Routing, combine, dispatch


class Decoder:
    """A decoder-only transformer. It keeps no state between steps; the KV lies outside.

    Lower the program with narrow=False: torch's products depend on the number of rows. Runs under
    torch.inference_mode or torch.no_grad; weights need no gradient.
    """

    def __init__(self, program: Program, weights: Weights, ops: Ops, device: torch.device | str) -> None:
        self.program = program
        self.weights = weights
        self.ops = ops
        self._group_of = {layer: g for g, layout in enumerate(program.kv) for layer in layout.layers}
        ropes = dict.fromkeys(op.attributes.rope for op in program.of_kind("rotations"))
        self._frequencies = {rope: _frequencies(rope, device) for rope in ropes}
        numbers = {buffer: number for number, buffer in enumerate(program.buffers)}
        self._plan = [
            (
                op,
                tuple(numbers[buffer] for buffer in op.inputs),
                tuple(numbers[buffer] for buffer in op.outputs),
                tuple(numbers[buffer] for buffer in dead),
            )
            for op, dead in zip(program.ops, last_uses(program), strict=True)
        ]

    def forward(self, batch: Batch, kv: Sequence[LayerCache]) -> torch.Tensor:
        """Run one step: write the KV of its tokens and give logits [R, V] float32 of batch.logits_rows.

        `kv` is indexed by layer.
        """
        return self.run(batch, kv)[0]

    def run(self, batch: Batch, kv: Sequence[LayerCache]) -> tuple[torch.Tensor, torch.Tensor]:
        """`forward`, and after the final norm the hidden states [P, H] of batch.hidden_rows; HF: last_hidden_state."""
        step = _Step(self, batch, kv)
        values: list[Any] = [None] * len(self.program.buffers)
        for op, inputs, outputs, dead in self._plan:
            made = KINDS[op.kind](step, op, *(values[number] for number in inputs))
            for number, value in zip(outputs, made, strict=True):
                values[number] = value
            for number in dead:
                values[number] = None
        normed, logits = (values[number] for number in (*inputs, *outputs))  # of the last op, the head
        return logits, normed[len(batch.logits_rows) :]

    def step(self, batch: Batch, kv: Mapping[int, LayerCache]) -> _Step:
        """What `KINDS` needs to run single ops of the program; `kv` by layer, of those that the ops use."""
        return _Step(self, batch, kv)

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [N, V] float32 of hidden states [N, H] after the final norm."""
        op = self.program.head
        matrix = self.weights.matrices[op.weights[0].name]
        x = states.to(matrix.weight.dtype)
        logits = self.ops.linear[matrix.format](x, matrix.weight, matrix.bias).float()
        if op.attributes.scale != 1.0:
            logits = logits * op.attributes.scale
        cap = op.attributes.soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Scaled embeddings [N, H] of tokens."""
        op = self.program.ops[0]
        rows = self.ops.embedding(ids, self.weights.tables[op.weights[0].name])
        scale = op.attributes.scale
        return rows if scale == 1.0 else rows * scale

    def frequencies(self, rope: RopeSpec) -> tuple[torch.Tensor, float]:
        """[R/2] float64, and the factor on cosines and sines."""
        return self._frequencies[rope]

    def group_of(self, layer: int) -> int:
        """The KV group of a layer's cache."""
        return self._group_of[layer]


class _Step:
    """One step's inputs, and what each kind of op does with them."""

    def __init__(
        self, decoder: Decoder, batch: Batch, kv: Sequence[LayerCache] | Mapping[int, LayerCache]
    ) -> None:
        self._decoder, self._ops, self._weights = decoder, decoder.ops, decoder.weights
        self._batch, self._kv = batch, kv

    def embed(self, op: Op[Embed], before: torch.Tensor | None = None) -> tuple[torch.Tensor]:
        ids = self._batch.positions if op.attributes.positions else self._batch.tokens
        rows = self._ops.embedding(ids, self._weights.tables[op.weights[0].name])  # [T, H]
        scaled = rows if op.attributes.scale == 1.0 else rows * op.attributes.scale
        return (scaled if before is None else before + scaled,)

    def rotations(self, op: Op[Rotations]) -> tuple[tuple[torch.Tensor, torch.Tensor]]:
        """Cosines and sines, [T, R/2] float32 each."""
        positions, limit = self._batch.positions, op.attributes.limit
        clamped = positions if limit is None else positions.clamp(max=limit)
        return (self._ops.rope_tables(clamped, *self._decoder.frequencies(op.attributes.rope)),)

    def norm(self, op: Op[Norm], x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self._normed(op.attributes, op.weights, x),)

    def norm_columns(self, op: Op[Norm], x: torch.Tensor) -> tuple[torch.Tensor]:
        assert op.attributes.columns is not None
        first, count = op.attributes.columns
        part = self._normed(op.attributes, op.weights, x[:, first : first + count])
        return (torch.cat((x[:, :first], part, x[:, first + count :]), dim=-1),)

    def add(self, op: Op[Add], branch: torch.Tensor, stream: torch.Tensor) -> tuple[torch.Tensor]:
        norm, scale = op.attributes.norm, op.attributes.scale
        weights = op.weights[:-1] if op.attributes.decays else op.weights
        x = branch
        if norm is not None and norm.each is not None:
            x = self._normed(norm, weights, branch.unflatten(-1, (-1, norm.each))).flatten(-2)
        elif norm is not None:
            x = self._normed(norm, weights, branch)
        total = stream + (x if scale == 1.0 else x * scale)
        return (total * self._weights.vectors[op.weights[-1].name] if op.attributes.decays else total,)

    def activate(
        self, op: Op[Activate], x: torch.Tensor, others: torch.Tensor | None = None
    ) -> tuple[torch.Tensor]:
        activated = ACTIVATIONS[op.attributes.activation](x)
        if others is None:
            return (activated,)
        factors = others[:, op.attributes.column :][:, : x.shape[-1]]
        return (activated * (factors if op.rows == "tokens" else factors[self._batch.selected_rows]),)

    def encode(self, op: Op[None], x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x,)

    def gather(self, op: Op[None], x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x[self._batch.selected_rows],)

    def linear(
        self, op: Op[Linear], x: torch.Tensor, other: torch.Tensor | None = None
    ) -> tuple[torch.Tensor]:
        matrix, activation = self._weights.matrices[op.weights[0].name], op.attributes.activation
        if op.weights[0].exact:
            bias = None if matrix.bias is None else matrix.bias.float()
            return (self._ops.linear[matrix.format](x.float(), matrix.weight.float(), bias),)
        if op.attributes.epilogue == "gate":
            assert activation is not None
            gated = self._ops.gated_linear[matrix.format]
            return (gated(x, matrix.weight, activation, matrix.bias),)
        product = self._product(matrix, x)
        if other is None:
            return (product,)
        if op.attributes.epilogue == "append":
            return (torch.cat((other, product), dim=-1),)
        if op.attributes.epilogue == "multiply":
            assert activation is not None
            return (gate(torch.cat((other, product), dim=-1), activation),)
        return (other + product,)

    def rope(self, op: Op[Heads], qkv: torch.Tensor, *rotations: Any) -> tuple[torch.Tensor, ...]:
        heads, ops = op.attributes, self._ops
        width, kv_width = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
        half = len(op.weights) // 2 if heads.writes else len(op.weights)

        def of(first: int, count: int, weights: Sequence[WeightRef]) -> torch.Tensor:
            part = qkv[:, first : first + count].unflatten(-1, (-1, heads.head_dim))  # [T, heads, D]
            normed = part if heads.norm is None else self._normed(heads.norm, weights, part)
            return deinterleave(normed, heads.rotated) if heads.interleaved else normed

        q = of(0, width, op.weights[:half])
        if heads.temperature is not None:
            q = q * _temperatures(heads.temperature, self._batch.positions)[:, None, None].to(q.dtype)
        queries = tuple(ops.apply_rope(q, *tables) for tables in rotations) or (q,)
        if not heads.writes:
            return queries
        k = of(width, kv_width, op.weights[half:])
        if rotations:
            k = ops.apply_rope(k, *rotations[0])
        v = qkv[:, width if heads.keys_are_values else width + kv_width :][:, :kv_width]
        v = v.unflatten(-1, (-1, heads.head_dim))
        if heads.value_norm:
            assert heads.norm is not None
            v = ops.rms_norm(v, v.new_ones(heads.head_dim), heads.norm.eps)
        group, cache = self._group(heads.cache)
        if group.written is not None:
            k, v = k[group.written], v[group.written]
        ops.write_kv(k, v, cache.key, cache.value, group.slots)
        return queries

    def attention(
        self, op: Op[Attention], q: torch.Tensor, q_sink: torch.Tensor | None = None
    ) -> tuple[torch.Tensor]:
        spec, batch = op.attributes, self._batch
        group, cache = self._group(spec.cache)
        mixed = self._ops.paged_attention(
            q,
            cache.key,
            cache.value,
            batch.cu_q,
            batch.kv_lens,
            batch.positions,
            group.block_tables,
            group.dropped,
            sink_blocks=group.sink_blocks,
            block_size=group.block_size,
            scale=spec.scale,
            window=spec.window,
            chunked=spec.chunked,
            slopes=torch.tensor(spec.slopes, device=q.device) if spec.slopes else None,
            sinks=spec.sinks,
            soft_cap=spec.soft_cap,
            q_sink=q_sink,
            learned_sinks=self._weights.vectors[op.weights[0].name] if op.weights else None,
        )  # [T, Hq, D]
        return (mixed[..., : spec.value_dim].flatten(1),)

    def heads_linear(self, op: Op[HeadsLinear], x: torch.Tensor) -> tuple[torch.Tensor]:
        """[T, H, O] where it makes queries, which lack their rotated features yet; else [T, H * O]."""
        matrix, heads = self._weights.matrices[op.weights[0].name], op.attributes.num_heads
        read = x.unflatten(-1, (heads, -1))[..., : op.weights[0].columns]  # [T, H, I]
        product = self._ops.heads_linear[matrix.format](read, matrix.weight)
        return (product if op.outputs[0].form == "queries" else product.flatten(1),)

    def latent(
        self, op: Op[Latent], query: torch.Tensor, latent: torch.Tensor, rotation: Any, absorbed: torch.Tensor
    ) -> tuple[torch.Tensor]:
        spec, ops = op.attributes, self._ops
        turned = query.unflatten(-1, (spec.num_heads, -1))[..., spec.key_dim :]  # [T, H, R]
        key = latent[:, None, spec.latent :]  # [T, 1, R]
        if spec.interleaved:
            turned, key = deinterleave(turned, spec.rotated), deinterleave(key, spec.rotated)
        queries = torch.cat((absorbed, ops.apply_rope(turned, *rotation)), dim=-1)
        row = torch.cat((latent[:, None, : spec.latent], ops.apply_rope(key, *rotation)), dim=-1)
        group, cache = self._group(spec.cache)
        row = row if group.written is None else row[group.written]
        ops.write_kv(row, row, cache.key, cache.value, group.slots)  # one memory: see KVStorage
        return (queries,)

    def logits(self, op: Op[Head], x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self._decoder.head(x[: len(self._batch.logits_rows)]),)

    def route(self, op: Op[Route], logits: torch.Tensor) -> tuple[Routing]:
        spec = op.attributes
        router = spec.router
        vectors = [self._weights.vectors[weight.name] for weight in op.weights]
        experts, weights = self._ops.route(
            logits[:, : spec.num_experts],
            vectors[0] if router.choice_bias else None,
            vectors[-1] if router.expert_scale else None,
            top_k=router.top_k,
            scores=router.scores,
            normalize=router.normalize,
            scale=router.scale,
            groups=router.groups,
            top_groups=router.top_groups,
            group_score=router.group_score,
        )
        gate = torch.sigmoid(logits[:, spec.num_experts].float()) if spec.shared else None
        return (Routing.of(experts, weights, spec.num_experts, gate),)

    def dispatch(self, op: Op[None], x: torch.Tensor, routing: Routing) -> tuple[torch.Tensor]:
        return (dispatch(x, routing),)

    def experts(
        self, op: Op[Experts], x: torch.Tensor, routing: Routing, gates: torch.Tensor | None = None
    ) -> tuple[torch.Tensor]:
        matrix, activation = self._weights.matrices[op.weights[0].name], op.attributes.activation
        product = self._ops.expert_linear[matrix.format]
        if op.attributes.scaled:
            x = x * routing.row_weights[:, None].to(x.dtype)
        if gates is None:
            return (product(x, routing.counts, matrix.weight, matrix.bias, activation),)
        assert activation is not None
        return (
            gate(
                torch.cat((gates, product(x, routing.counts, matrix.weight, matrix.bias, None)), -1),
                activation,
            ),
        )

    def combine(
        self, op: Op[Combine], outputs: torch.Tensor, routing: Routing, *others: torch.Tensor
    ) -> tuple[torch.Tensor]:
        shared = others[:-1] if op.attributes.add else others
        result = combine(outputs, routing, *shared, weighted=op.attributes.weighted)
        return (others[-1] + result if op.attributes.add else result,)

    def _product(self, matrix: Projection, x: torch.Tensor) -> torch.Tensor:
        return self._ops.linear[matrix.format](x, matrix.weight, matrix.bias)

    def _normed(self, norm: Norm, weights: Sequence[WeightRef], x: torch.Tensor) -> torch.Tensor:
        weight, *bias = (
            (self._weights.vectors[one.name] for one in weights) if weights else (x.new_ones(x.shape[-1]),)
        )
        if norm.kind == "rms":
            return self._ops.rms_norm(x, weight, norm.eps)
        return self._ops.layer_norm(x, weight, bias[0] if bias else None, norm.eps)

    def ungroup(self, op: Op[Ungroup], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = op.attributes.parts
        pieces = x.unflatten(-1, (op.attributes.groups, -1)).split([width for width, _ in parts], dim=-1)
        columns: list[list[torch.Tensor]] = [[] for _ in op.outputs]
        for piece, (_, output) in zip(pieces, parts, strict=True):
            columns[output].append(piece.flatten(-2))
        return tuple(torch.cat(one, dim=-1) for one in columns)

    def gate(self, op: Op[None], x: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * torch.sigmoid(gates),)

    def conv(self, op: Op[Conv], x: torch.Tensor) -> tuple[torch.Tensor]:
        spec = op.attributes
        weight, *bias = (self._weights.vectors[one.name] for one in op.weights)
        moves, state = self._states(spec.cache)
        source, factor = x, None
        if spec.gated:
            b, factor, c = x.split(spec.channels, dim=-1)
            source = b * c
        taps = weight.view(spec.channels, spec.width)
        convolved = self._ops.short_convolution(
            source, taps, bias[0] if bias else None, state.conv, self._batch.cu_q, moves
        ).to(x.dtype)
        return (ACTIVATIONS["silu"](convolved) if factor is None else factor * convolved,)

    def delta(
        self, op: Op[Delta], qkv: torch.Tensor, gates: torch.Tensor, numbers: torch.Tensor
    ) -> tuple[torch.Tensor]:
        spec = op.attributes
        rate, time, norm = (self._weights.vectors[one.name] for one in op.weights)
        moves, state = self._states(spec.cache)
        beta, decay = numbers.split(spec.num_heads, dim=-1)
        heads = self._ops.gated_delta(
            qkv,
            beta,
            decay,
            rate,
            time,
            state.matrix,
            self._batch.cu_q,
            moves,
            num_key_heads=spec.num_key_heads,
            tiled=spec.tiled,
        ).to(qkv.dtype)  # [T, H, Dv]
        normed = self._ops.rms_norm(heads, norm, spec.eps).flatten(1)
        return (normed * ACTIVATIONS["silu"](gates.float()).to(normed.dtype),)

    def _group(self, layer: int) -> tuple[GroupBatch, LayerKV]:
        group, cache = self._batch.groups[self._decoder.group_of(layer)], self._kv[layer]
        assert isinstance(group, GroupBatch) and isinstance(cache, LayerKV)
        return group, cache

    def _states(self, layer: int) -> tuple[StateBatch, LayerState]:
        group, cache = self._batch.groups[self._decoder.group_of(layer)], self._kv[layer]
        assert not isinstance(group, GroupBatch) and isinstance(cache, LayerState)
        return group, cache


KINDS: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "embed": _Step.embed,
    "rotations": _Step.rotations,
    "norm": _Step.norm,
    "norm_columns": _Step.norm_columns,
    "add": _Step.add,
    "activate": _Step.activate,
    "encode": _Step.encode,
    "gather": _Step.gather,
    "linear": _Step.linear,
    "rope": _Step.rope,
    "heads_linear": _Step.heads_linear,
    "latent": _Step.latent,
    "attention": _Step.attention,
    "ungroup": _Step.ungroup,
    "gate": _Step.gate,
    "conv": _Step.conv,
    "delta": _Step.delta,
    "route": _Step.route,
    "dispatch": _Step.dispatch,
    "experts": _Step.experts,
    "combine": _Step.combine,
    "logits": _Step.logits,
}
"""What computes each kind of op: (step, op, *inputs) -> outputs."""


def _temperatures(temperature: Temperature, positions: torch.Tensor) -> torch.Tensor:
    """The factor of each query [T], float32."""
    steps = torch.floor((positions.double() + temperature.shift) / temperature.length)
    return (1.0 + temperature.beta * torch.log1p(steps)).float()


def _frequencies(rope: RopeSpec, device: torch.device | str) -> tuple[torch.Tensor, float]:
    values, factor = inverse_frequencies(rope)
    return torch.tensor(values, dtype=torch.float64, device=device), factor


def last_uses(program: Program) -> list[list[Buffer]]:
    """For each op the buffers whose values nothing reads after it; what the last op reads is kept."""
    live: set[Buffer] = set(program.ops[-1].inputs)
    found: list[list[Buffer]] = []
    for op in reversed(program.ops):
        found.append([buffer for buffer in dict.fromkeys(op.inputs) if buffer not in live | {*op.outputs}])
        live = (live - {*op.outputs}) | {*op.inputs}
    return found[::-1]
