"""Turns a spec into a program. Nothing else walks a spec's layers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace.models.names import HF_NAMES, WeightNames
from headrace.models.rope import alibi_slopes, sink_position
from headrace.models.spec import (
    AttentionSpec,
    ExpertsSpec,
    LatentSpec,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
    RecurrentSpec,
    RopeSpec,
)
from headrace.program.lower_experts import lower_beside, lower_experts
from headrace.program.lower_latent import lower_latent
from headrace.program.lower_per_layer import lower_gate, lower_inputs
from headrace.program.lower_recurrent import lower_recurrent
from headrace.program.records import (
    Activate,
    Add,
    Attention,
    Branch,
    Buffer,
    Embed,
    Head,
    HeadRows,
    Heads,
    Linear,
    Norm,
    Op,
    Part,
    Program,
    Rotations,
    Rows,
    Ungroup,
    WeightRef,
)
from headrace.quant.code_format import CodeFormat


def lower(spec: ModelSpec, names: WeightNames = HF_NAMES, *, narrow: bool = True) -> Program:
    """The program of a model whose checkpoint has tensors of these names.

    narrow: after its attention, the last layer computes only the selected rows. For kernels whose rows do not
    depend on the number of rows: elsewhere this would change the last bits of the logits.
    """
    lowering = Lowering(spec, names)
    head = lowering.embed()
    for index, layer in enumerate(spec.layers):
        lowering.layer(index, layer, gather=narrow and index == len(spec.layers) - 1)
    lowering.head(head)
    return make_program(spec, lowering.ops, spec.vocab_size)


def make_program(spec: ModelSpec, ops: Sequence[Op[Any]], vocab_size: int, *given: WeightRef) -> Program:
    """The record of these ops. given: those of their weights that are not the program's, as no file holds them."""
    return Program(
        tuple(ops),
        kv=spec.kv_shapes,
        vocab_size=vocab_size,
        hidden_size=spec.hidden_size,
        num_layers=len(spec.layers),
        buffers=tuple(dict.fromkeys(buffer for op in ops for buffer in (*op.inputs, *op.outputs))),
        weights=tuple(dict.fromkeys(weight for op in ops for weight in op.weights if weight not in given)),
    )


class Lowering:
    """Appends the ops of a model, layer by layer."""

    def __init__(self, spec: ModelSpec, names: WeightNames) -> None:
        self.ops: list[Op[Any]] = []
        self.spec, self.names = spec, names
        self._stored = {} if spec.codes is None else dict(spec.codes.formats)
        self._packed = frozenset(spec.packed_names)
        self._layer: int | None = None
        self._rows: Rows = "tokens"  # "selected" once they are gathered
        self.stream = Buffer("stream", spec.hidden_size, "tokens", "float", "hidden")
        self._rotations: dict[tuple[RopeSpec, int | None], Buffer] = {}
        self.per_layer: Buffer | None = None

    # ---- The model, part by part ----

    def embed(self) -> WeightRef:
        """The embeddings; gives the weight of the head."""
        spec, names = self.spec, self.names
        parts = ((f"{names.embed}.weight", spec.vocab_size),)
        kind: Literal["tied", "table"] = "tied" if spec.tie_embeddings else "table"
        table = WeightRef("embed", kind, parts, spec.hidden_size, "embeddings", shard="row")
        self.add("embed", "embed", (), self.stream, table, attributes=Embed(spec.embedding_scale))
        if spec.learned_positions:
            rows = ((f"{names.positions}.weight", spec.learned_positions),)
            positions = WeightRef("positions", "table", rows, spec.hidden_size, "embeddings")
            self.add(
                "embed",
                "positions",
                (self.stream,),
                self.stream,
                positions,
                attributes=Embed(positions=True),
            )
        if spec.embedding_norm:
            weights = self.norm_weights("embedding_norm", names.embed_norm, spec.norm, spec.hidden_size)
            norm = Norm.of(spec.norm, (0, spec.hidden_size))
            self.add("norm_columns", "embedding_norm", (self.stream,), self.stream, *weights, attributes=norm)
        if spec.per_layer is not None:
            self.per_layer = lower_inputs(self, spec.per_layer)
        if spec.tie_embeddings:
            return table
        head = ((f"{names.head}.weight", spec.vocab_size),)
        return WeightRef("head", "matrix", head, spec.hidden_size, "head", shard="row")

    def layer(self, index: int, layer: LayerSpec, *, gather: bool) -> None:
        """A layer; `gather`: only the selected rows are computed after its mixer."""
        self._layer = index
        names, norms = self.names, layer.norms
        before = norms != "post"
        norm = names.input_norm if before else ""
        if isinstance(layer.mixer, LatentSpec):
            mixed, out = lower_latent(self, index, layer.mixer, norm, gather=gather)
            gather = False  # it has done so
        elif isinstance(layer.mixer, RecurrentSpec):
            mixed, out = lower_recurrent(self, index, layer.mixer, norm)
            if gather:
                self.gather_stream()
        else:
            mixed, out = self._attention(layer.mixer, before, gather=gather)
        if norms != "parallel":
            self._project(
                "out", mixed, out, names.mixer_post_norm if norms in ("post", "both") else "", gather=gather
            )
        post_norm = names.feed_forward_post_norm if norms in ("post", "both") else ""
        branch: Branch
        if isinstance(layer.feed_forward, ExpertsSpec):
            branch = lower_experts(self, layer.feed_forward, names.post_norm if before else "")
        else:
            branch = self._feed_forward(layer.feed_forward, before)
        if norms == "parallel":  # the feed-forward half has read the stream
            self._project("out", mixed, out, gather=gather)
        scale = names.layer_scale if layer.scaled else ""
        own = "" if self.spec.per_layer is not None else scale
        if layer.beside is not None:
            both = lower_beside(self, branch, layer.beside)
            self._merge_result(both, "feed_forward", post_norm, own)
        else:
            self._merge(branch, post_norm, own)
        if self.spec.per_layer is not None:
            self._merge(lower_gate(self, self.spec.per_layer, index), names.per_layer_post_norm, scale)
        self._layer = None

    def head(self, head: WeightRef) -> None:
        spec = self.spec
        if self._rows == "tokens":
            self.gather_stream()
        self.read_stream("final_norm", self.names.final_norm, head)
        logits = Buffer("logits", spec.vocab_size, "logits", "logits", "logits")
        attributes = Head(spec.final_soft_cap, spec.logit_scale)
        self.add("logits", "head", self.ops[-1].outputs, logits, head, rows="logits", attributes=attributes)

    def _attention(self, spec: AttentionSpec, normed: bool, *, gather: bool) -> tuple[Buffer, WeightRef]:
        """Gives its result, and the matrix that multiplies it."""
        names, hidden, index = self.names, self.spec.hidden_size, self._layer
        assert index is not None
        width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        writes = spec.shares is None
        stacked = {names.query: ("q", width)}
        if writes:
            stacked[names.key] = ("k", kv_width)
        if writes and not spec.keys_are_values:
            stacked[names.value] = ("v", kv_width)
        columns = width + (0 if not writes else kv_width if spec.keys_are_values else 2 * kv_width)
        if names.qkv:
            stacked = {names.qkv: ("qkv", columns)}
        out = self.matrix("out", "attention", {names.out: hidden}, width, spec.out_bias, shard="column")

        qkv = self.buffer("qkv", columns, "float", "attention")
        column = 0
        if spec.output_gate:
            del stacked[names.query]
            gates = self.buffer("output_gates", width, "float", "attention")
            weight = self.matrix(
                "q", "attention", {names.query: 2 * width}, hidden, spec.qkv_bias, shard="row"
            )
            self.read_stream("input_norm", names.input_norm if normed else "", weight)
            grouped = self.buffer("grouped_q", 2 * width, "float", "attention")
            self.add("linear", "q", self.ops[-1].outputs, grouped, weight, attributes=Linear("none"))
            apart = Ungroup(spec.num_heads, ((spec.head_dim, 0), (spec.head_dim, 1)))
            self.add("ungroup", "ungroup_q", (grouped,), [qkv, gates], attributes=apart)
            column = width
        for role, run in self.runs({name: letter for name, (letter, _) in stacked.items()}):
            rows = {name: stacked[name][1] for name in run}
            weight = self.matrix(role, "attention", rows, hidden, spec.qkv_bias, shard="row")
            self.read_stream("input_norm", names.input_norm if normed else "", weight)
            inputs = (*self.ops[-1].outputs, *((qkv,) if column else ()))
            self.add(
                "linear", role, inputs, qkv, weight,
                attributes=Linear("append" if column else "none", column=column),
            )  # fmt: skip
            column += weight.rows

        head_norms: list[WeightRef] = []
        if spec.qk_norm is not None:
            whole = spec.qk_norm_whole
            query, key = (
                ("query_norm", names.query_norm, 0, width),
                ("key_norm", names.key_norm, width, kv_width),
            )
            for role, name, first, count in (query, key) if writes else (query,):
                weights = self.norm_weights(role, name, spec.qk_norm, count if whole else spec.head_dim)
                if whole:
                    norm = Norm.of(spec.qk_norm, (first, count))
                    self.add("norm_columns", role, (qkv,), qkv, *weights, attributes=norm)
                else:
                    head_norms += weights

        limit = sink_position(spec)
        rotations = [] if spec.rope is None else [self.rotation(spec.rope, None)]
        queries = [self.buffer("q", width, "queries", "attention")]
        if limit is not None and spec.rope is not None:
            rotations.append(self.rotation(spec.rope, limit))
            queries.append(self.buffer("q_sink", width, "queries", "attention"))
        cache = index if spec.shares is None else spec.shares
        heads = Heads(
            spec.num_heads, spec.num_kv_heads, spec.head_dim,
            rotated=0 if spec.rope is None else spec.rope.dim,
            interleaved=spec.rope is not None and spec.rope.interleaved,
            norm=None if spec.qk_norm is None or spec.qk_norm_whole else Norm.of(spec.qk_norm),
            temperature=spec.temperature,
            cache=cache, value_norm=spec.value_norm, keys_are_values=spec.keys_are_values, writes=writes,
        )  # fmt: skip
        self.add("rope", "rope", (qkv, *rotations), queries, *head_norms, attributes=heads)

        direct = not gather and not spec.output_gate
        mixed = self.buffer("mixed", width, "direct" if direct else "float", "attention")
        attends = Attention(
            spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.scale, spec.window, spec.sinks, spec.soft_cap,
            cache=cache, chunked=spec.chunked,
            slopes=alibi_slopes(spec.num_heads, spec.alibi) if spec.alibi else (),
        )  # fmt: skip
        sinks: tuple[WeightRef, ...] = ()
        if spec.learned_sinks:
            name = self._tensor(names.sinks)
            role = self._in_layer("sinks")
            sinks = (
                WeightRef(
                    role, "vector", ((name, spec.num_heads),), 1, "attention", layer=index, shard="row"
                ),
            )
        reader = out if direct else None
        self.add("attention", "attention", queries, mixed, *sinks, attributes=attends, reader=reader)
        if spec.output_gate:
            self.add("gate", "output_gate", (mixed, gates), mixed)
        if gather:
            self.gather_stream()
        return mixed, out

    def _feed_forward(self, spec: MLPSpec, normed: bool) -> Branch:
        names, hidden, wide = self.names, self.spec.hidden_size, spec.intermediate_size
        down = self.matrix("down", "feed-forward", {names.down: hidden}, wide, spec.bias, shard="column")
        post_norm = names.post_norm if normed else ""
        if not spec.gated:
            up = self.matrix("up", "feed-forward", {names.up: wide}, hidden, spec.bias, shard="row")
            self.read_stream("post_norm", post_norm, up)
            product = self.buffer("wide", wide, "float", "feed-forward")
            self.add("linear", "up", self.ops[-1].outputs, product, up, attributes=Linear("none"))
            inner = self.buffer("encoded_down", wide, "encoded", "feed-forward")
            self.add(
                "activate", "activate", (product,), inner, attributes=Activate(spec.activation), reader=down
            )
            return self.product("down", inner, down)
        roles = {names.gate_up: "gate_up"} if names.gate_up else {names.gate: "gate", names.up: "up"}
        return self.product("down", self.gated(spec, roles, down, post_norm), down)

    def gated(
        self, spec: MLPSpec, roles: Mapping[str, str], down: WeightRef, norm: str, role: str = "post_norm"
    ) -> Buffer:
        """What `down` multiplies: the products of `up` by the activation of the gates. They read the residual stream
        after the norm of that name, unless it is empty. roles: by name, of gate and up or of the one tensor of both."""
        wide, hidden = spec.intermediate_size, self.spec.hidden_size
        runs = self.runs(roles, "_")
        together = len(runs) == 1  # 16 rows of each in turn; else the products of the gate meet those of up
        inner = self.buffer("wide", wide, "direct", "feed-forward")
        gates: tuple[Buffer, ...] = ()
        for name, run in runs:
            rows = dict.fromkeys(run, 2 * wide // len(run) if together else wide)
            weight = self.matrix(name, "feed-forward", rows, hidden, spec.bias, shard="row", gated=together)
            self.read_stream(role, norm, weight)
            inputs = (*self.ops[-1].outputs, *gates)
            if together or gates:
                gate = Linear("gate" if together else "multiply", spec.activation)
                self.add("linear", name, inputs, inner, weight, attributes=gate, reader=down)
            else:
                gates = (self.buffer("gates", wide, "float", "feed-forward"),)
                self.add("linear", name, inputs, gates[0], weight, attributes=Linear("none"))
        return inner

    def runs(self, roles: Mapping[str, str], between: str = "") -> list[tuple[str, list[str]]]:
        """Tensors of one product, each with its role, in runs that the checkpoint stores alike: each is one matrix,
        whose role joins theirs. A packed folder names the matrices that it has.
        """
        if not self._packed:
            stored = itertools.groupby(roles, self._stored_as)
            runs = [list(run) for _, run in stored]
        else:
            runs, rest = [], list(roles)
            while rest:
                joined = (between.join(map(roles.__getitem__, rest[:n])) for n in range(1, len(rest) + 1))
                known = [n for n, role in enumerate(joined, 1) if self._in_layer(role) in self._packed]
                size = max(known, default=len(rest))
                runs.append(rest[:size])
                rest = rest[size:]
        return [(between.join(roles[name] for name in run), run) for run in runs]

    def _stored_as(self, name: str) -> CodeFormat | None:
        """The codes of a tensor, of experts those of the first one."""
        return self._stored.get(f"{self._tensor(name)}.weight".replace("{e}", "0"))

    # ---- Ops that recur ----

    def read_stream(self, role: str, name: str, reader: WeightRef) -> None:
        """The residual stream encoded for `reader`; normalised before, unless `name` is empty."""
        out = self.buffer("encoded_norm", self.spec.hidden_size, "encoded", "hidden")
        if not name:
            self.add("encode", "encode", (self.stream,), out, reader=reader)
            return
        norm, hidden = self.spec.norm, self.spec.hidden_size
        weights = self.norm_weights(role, name, norm, hidden)
        self.add("norm", "norm", (self.stream,), out, *weights, attributes=Norm.of(norm), reader=reader)

    def _project(
        self, name: str, source: Buffer, weight: WeightRef, post_norm: str = "", *, gather: bool = False
    ) -> None:
        """A product that is added to the residual stream, after a norm unless the name of one is empty."""
        self._merge(self.product(name, source, weight, gather=gather), post_norm)

    def product(self, name: str, source: Buffer, weight: WeightRef, *, gather: bool = False) -> Branch:
        encoded = source
        if source.form != "encoded":
            encoded = self.buffer(f"encoded_{name}", weight.columns, "encoded", source.part)
            self.add("gather" if gather else "encode", f"encode_{name}", (source,), encoded, reader=weight)
        return Branch("linear", name, (encoded,), (weight,), Linear("add"), Linear("none"))

    def _merge(self, branch: Branch, post_norm: str, decay: str = "") -> None:
        """Adds the result of a half to the residual stream, after a norm unless the name of one is empty.
        decay: the name of a number that multiplies the sum, if it is not empty."""
        if post_norm or decay or self.spec.residual_scale != 1.0:
            self._merge_result(self.store(branch), branch.name, post_norm, decay)
            return
        inputs = (*branch.inputs, self.stream)
        self.add(branch.kind, branch.name, inputs, self.stream, *branch.weights, attributes=branch.adding)

    def store(self, branch: Branch) -> Buffer:
        """The result of a half, which the next one's overwrites."""
        result = self.buffer("branch", self.spec.hidden_size, "float", "hidden")
        self.add(branch.kind, branch.name, branch.inputs, result, *branch.weights, attributes=branch.storing)
        return result

    def _merge_result(self, result: Buffer, name: str, post_norm: str, decay: str) -> None:
        """As `_merge`, of a result that has been computed."""
        spec = self.spec
        norm, weights = None, tuple[WeightRef, ...]()
        if post_norm:
            norm = Norm.of(spec.norm)
            weights = self.norm_weights(f"{name}_post_norm", post_norm, spec.norm, spec.hidden_size)
        if decay:
            weights += (self.vector("layer_scale", decay, 1),)
        add = Add(spec.residual_scale, norm, decays=bool(decay))
        self.add("add", f"add_{name}", (result, self.stream), self.stream, *weights, attributes=add)

    def norm_weights(self, role: str, name: str, norm: NormSpec, size: int) -> tuple[WeightRef, ...]:
        if not norm.weighted:
            return ()
        weight = self.vector(role, f"{name}.weight", size, norm.offset)
        return (weight, self.vector(f"{role}_bias", f"{name}.bias", size)) if norm.bias else (weight,)

    def gather_stream(self) -> None:
        self._rows = "selected"
        selected = self.buffer("selected", self.spec.hidden_size, "float", "hidden")
        self.add("gather", "gather", (self.stream,), selected)
        self.stream = selected

    def rotation(self, rope: RopeSpec, limit: int | None) -> Buffer:
        """Cosines and sines of a step, computed once for all layers that use them."""
        key = (rope, limit)
        if key not in self._rotations:
            name = f"rotation_{len(self._rotations)}"
            self._rotations[key] = self.buffer(name, rope.dim, "rotation", "attention")
            self.add("rotations", "rotations", (), self._rotations[key], attributes=Rotations(rope, limit))
        return self._rotations[key]

    # ---- Records ----

    def buffer(self, name: str, columns: int, form: Any, part: Part, each: int = 1) -> Buffer:
        return Buffer(name, columns, self._rows, form, part, each)

    def vector(self, role: str, name: str, size: int, offset: float = 0.0, factor: float = 1.0) -> WeightRef:
        parts = ((self._tensor(name), size),)
        role = self._in_layer(role)
        return WeightRef(role, "vector", parts, 1, "norms", layer=self._layer, factor=factor, offset=offset)

    def matrix(
        self, role: str, part: Part, stacked: dict[str, int], columns: int, bias: bool, shard: Any,
        gated: bool = False, experts: int | None = None, exact: bool = False, in_heads: HeadRows | None = None,
    ) -> WeightRef:  # fmt: skip
        tensors = {self._tensor(name): rows for name, rows in stacked.items()}
        return WeightRef(
            self._in_layer(role),
            "matrix",
            tuple((f"{name}.weight", rows) for name, rows in tensors.items()),
            columns,
            part,
            biases=tuple(f"{name}.bias" for name in tensors) if bias else (),
            gated=gated,
            layer=self._layer,
            experts=experts,
            shard=shard,
            exact=exact,
            in_heads=in_heads,
        )

    def _in_layer(self, role: str) -> str:
        return role if self._layer is None else f"{self._layer}.{role}"

    def _tensor(self, name: str) -> str:
        return name.replace("{i}", str(self._layer))

    def add(
        self,
        kind: str,
        name: str,
        inputs: tuple[Buffer, ...] | list[Buffer],
        outputs: Buffer | list[Buffer],
        *weights: WeightRef,
        rows: Rows | None = None,
        attributes: Any = None,
        reader: WeightRef | None = None,
    ) -> None:
        made = (outputs,) if isinstance(outputs, Buffer) else tuple(outputs)
        layer = None if kind == "rotations" else self._layer
        op = Op(kind, name, tuple(inputs), made, weights, layer, rows or self._rows, attributes, reader)
        self.ops.append(op)
