"""What a program is made of: ops, the buffers that they read and write, and the weights that they use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from headrace.models.spec import Activation, KVLayout, NormSpec, RopeSpec, RouterSpec, Temperature

Rows = Literal["tokens", "selected", "logits"]
"""One row for each token of a step; for each token whose logits or final hidden state are asked for; for each of the
first of these, whose logits are."""

Form = Literal["float", "direct", "encoded", "queries", "rotation", "routing", "logits"]
"""What decides the type of a buffer's elements on the native path; torch computes in one type.

float: float32. direct: floats as narrow as the op's `reader` multiplies. encoded: as the `reader` multiplies.
queries: as attention multiplies with the KV cache. rotation: cosines and sines. routing: the experts of each row, with
their weights, and its routed rows. logits: float32, the result.
"""

Part = Literal["embeddings", "attention", "feed-forward", "norms", "head", "hidden", "logits"]
"""The line of the memory plan that a buffer or a weight counts in."""

Attributes = TypeVar("Attributes")


@dataclass(frozen=True, slots=True)
class Buffer:
    """`columns` features for each of `rows`. Equal buffers share memory, whichever layers use them.

    each: more than one where a row has so many here: a routed row for each of its experts, those of one expert
    together.
    """

    name: str
    columns: int
    rows: Rows
    form: Form
    part: Part
    each: int = 1


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Matrices of heads in one tensor, which has `each` rows a head: `count` of these from `first` on, or what they are
    transposed."""

    each: int
    first: int
    count: int
    transposed: bool


@dataclass(frozen=True, slots=True)
class WeightRef:
    """One weight of the model and the checkpoint tensors that make it up. Sizes are counts of elements.

    kind: "matrix" multiplies, "table" is looked up by row, "tied" is both at once, "vector" has one column.
    parts: (tensor name, rows), below each other; one product computes them all. biases: one tensor a part, or none.
    gated: the upper half of the rows is a gate for the lower half. exact: multiplied in float32, as stored.
    experts: there are so many of these, in memory one after the other, whose tensors have the expert's number in place
    of {e}; `rows`, `columns` and `shape` are those of one. in_heads: they are matrices of heads, in one tensor; floats
    always.
    shard: the axis that tensor parallelism cuts; the bias follows rows. None: every rank holds it whole.
    factor, offset: a vector is what the checkpoint holds times `factor`, plus `offset`.
    """

    name: str  # unique in the program
    kind: Literal["matrix", "table", "tied", "vector"]
    parts: tuple[tuple[str, int], ...]
    columns: int
    part: Part
    biases: tuple[str, ...] = ()
    gated: bool = False
    layer: int | None = None
    experts: int | None = None
    shard: Literal["row", "column"] | None = None
    factor: float = 1.0
    offset: float = 0.0
    exact: bool = False
    in_heads: HeadRows | None = None

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.parts)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows,) if self.kind == "vector" else (self.rows, self.columns)

    @property
    def elements(self) -> int:
        """Parameters, bias included, of all experts."""
        one = self.rows * self.columns + (self.rows if self.biases else 0)
        return one * (self.experts or 1)

    def each(self) -> Iterator[WeightRef]:
        """Itself, or each of its experts."""
        if self.experts is None:
            yield self
            return
        for number in range(self.experts):
            parts = tuple((name.replace("{e}", str(number)), rows) for name, rows in self.parts)
            biases = tuple(name.replace("{e}", str(number)) for name in self.biases)
            yield replace(self, parts=parts, biases=biases, experts=None)

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name, shape) of each checkpoint tensor."""
        if self.in_heads is not None:
            size = self.rows if self.in_heads.transposed else self.columns
            yield self.parts[0][0], ((self.experts or 1) * self.in_heads.each, size)
            return
        for one in self.each():
            for name, rows in one.parts:
                yield name, (rows,) if self.kind == "vector" else (rows, self.columns)
            for name, (_, rows) in zip(one.biases, one.parts, strict=False):
                yield name, (rows,)


@dataclass(frozen=True, slots=True)
class Embed:
    """scale: of the embeddings. positions: rows are those of the tokens' positions, and are added to the output."""

    scale: float = 1.0
    positions: bool = False


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm of a row, times a weight a feature, plus a bias if there is a second weight.

    columns: (first, count) of the features that it works on, in place; None for all. each: so many features in turn
    have a norm of their own, with the same weights; None: one norm.
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    columns: tuple[int, int] | None = None
    each: int | None = None

    @classmethod
    def of(cls, spec: NormSpec, columns: tuple[int, int] | None = None) -> Norm:
        """As a model's spec has it."""
        return cls(spec.eps, spec.kind, columns)


@dataclass(frozen=True, slots=True)
class Add:
    """Adds `scale` times a row, or times its norm, to another one. decays: the last weight is a number that multiplies
    the sum."""

    scale: float
    norm: Norm | None = None
    decays: bool = False


@dataclass(frozen=True, slots=True)
class Activate:
    """Applies a function to every feature. With a second input, which has a row for every token of the step, the result
    is multiplied by its features from `column` on."""

    activation: Activation
    column: int = 0


@dataclass(frozen=True, slots=True)
class Linear:
    """epilogue: "none" writes the product, "add" adds it to the output, "gate" multiplies activation(gate) with up,
    which one matrix holds, "multiply" the product with activation(gate), whose matrix is another, "append" writes the
    product after the columns of the output that are there, from `column` on."""

    epilogue: Literal["none", "add", "gate", "multiply", "append"]
    activation: Activation | None = None
    column: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """The choice of experts from logits of all of them; `shared`: one more column is the logit of the shared expert."""

    router: RouterSpec
    num_experts: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Experts:
    """A product of routed rows, each with its own expert's matrix. epilogue: as in `Linear`. scaled: of the rows times
    their weights."""

    num_experts: int
    top_k: int
    epilogue: Literal["none", "gate", "multiply"]
    activation: Activation | None = None
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class Combine:
    """The sum of a row's routed rows by their weights, in the order of the choice, then of the shared expert's output,
    if it is an input. gated: that is multiplied by its gate. add: the sum is added to the output. weighted: False where
    the weights count as one."""

    top_k: int
    gated: bool
    add: bool
    weighted: bool = True


@dataclass(frozen=True, slots=True)
class Rotations:
    """limit: the largest position that is rotated at, None for the tokens' own."""

    rope: RopeSpec
    limit: int | None


@dataclass(frozen=True, slots=True)
class Heads:
    """Norms over the heads of q and k if there are weights for them, rope, and the write to the KV cache.

    value_norm, keys_are_values: as in `AttentionSpec`. writes: False where the input holds queries only.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotated: int  # features of a head
    interleaved: bool
    norm: Norm | None
    temperature: Temperature | None
    cache: int  # the layer whose KV cache it is
    value_norm: bool = False
    keys_are_values: bool = False
    writes: bool = True


@dataclass(frozen=True, slots=True)
class HeadsLinear:
    """A product of each head with its own matrix: it reads the first of `inputs` features of the head, and writes the
    first of `outputs` features."""

    num_heads: int
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Rope of the last features of each query head and of the one key that all heads share, and the write of the latent
    with that key to the KV cache. A query head comes with `key_dim` features before those, which are not read."""

    num_heads: int
    key_dim: int
    rotated: int
    latent: int
    interleaved: bool
    cache: int  # the layer whose KV cache it is


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the KV cache. A weight, if there is one, holds a logit for each head, which takes
    part in the softmax and has no value. value_in_key: see KVLayout. chunked: see AttentionSpec. slopes: what each
    head's scores lose with each position to the key, if anything."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    sinks: int
    soft_cap: float | None
    cache: int
    value_in_key: int | None = None
    chunked: bool = False
    slopes: tuple[float, ...] = ()

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.value_in_key is None else self.value_in_key


@dataclass(frozen=True, slots=True)
class Ungroup:
    """Takes rows apart whose columns come in groups: each group has the columns of every part, one after the other.

    parts: (columns in a group, number of the output). An output has the columns of all groups of its first part, then
    those of its next one.
    """

    groups: int
    parts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Conv:
    """A causal convolution of each channel with its own weights over the last `width` positions; see
    `ops.reference.recurrent`. Weights: [channels * width], then [channels] if there is a bias.

    gated: the input has b, c and x of so many channels, and the output is c * conv(b * x); else SiLU(conv(input)).
    """

    channels: int
    width: int
    gated: bool
    cache: int  # the layer whose state it is


@dataclass(frozen=True, slots=True)
class Delta:
    """The gated delta rule, then a norm of each head times the SiLU of its gate; see `ops.reference.recurrent`.

    Inputs: the convolved q, k and v, the gates, and of each head beta and decay: all betas first. Weights: the
    logarithm of each head's rate and its bias, [num_heads] each, and the norm's, [value_dim]. tiled: see DeltaSpec.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    eps: float
    cache: int
    tiled: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The language-model head. The soft cap applies to the scaled logits."""

    soft_cap: float | None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Op(Generic[Attributes]):
    """One call. Executors look `kind` up in a table; `attributes` belongs to the kind.

    kind           inputs -> outputs                  attributes
    embed          [stream] -> stream                 Embed
    rotations      -> cosines and sines               Rotations
    norm           floats -> encoded, floats          Norm    floats: without a reader
    norm_columns   qkv -> qkv                         Norm
    add            branch, stream -> stream           Add
    encode         direct -> encoded                  None    nothing to do where the two have one type
    activate       floats[, others] -> encoded        Activate
    gather         rows of tokens -> selected rows    None
    linear         encoded[, other] -> floats, sum    Linear  other: what is added or appended to, or the gates
    rope           qkv, rotations -> queries          Heads   writes keys and values of every token, if there are any
    heads_linear   encoded -> queries, or direct      HeadsLinear
    latent         q, latent and key, rotation,       Latent  writes latent and key of every token
                   queries -> queries
    attention      queries -> direct                  Attention
    ungroup        rows -> rows, ...                  Ungroup
    gate           floats, gates -> floats            None    times the sigmoid of the gates
    conv           floats -> floats                   Conv    reads and writes the state of every sequence
    delta          qkv, gates, numbers -> floats      Delta   as well
    route          floats -> routing                  Route   weights: the choice's bias, the experts' scales, if any
    dispatch       encoded, routing -> routed rows    None    of the same form
    experts        routed rows, routing[, gates]      Experts
                   -> routed rows
    combine        routed rows, routing, [shared,]    Combine
                   [sum] -> floats, sum
    logits         encoded -> logits                  Head

    rows: those it works on. reader: the matrix that multiplies the output next, whose format decides its type.
    """

    kind: str
    name: str  # its role in the layer, for profiles: "qkv"
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    weights: tuple[WeightRef, ...]
    layer: int | None
    rows: Rows
    attributes: Attributes
    reader: WeightRef | None = None


@dataclass(frozen=True, slots=True)
class Branch:
    """The op that gives the result of one half of a layer: its attributes where it adds to its output, and where it
    stores there."""

    kind: str
    name: str
    inputs: tuple[Buffer, ...]
    weights: tuple[WeightRef, ...]
    adding: Any
    storing: Any


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A model's step: `ops` in order. `buffers` and `weights` hold what they name, each once, in order of first use.

    kv: the KV groups; layer i belongs to the one whose `layers` holds i.
    """

    ops: tuple[Op[Any], ...]
    kv: tuple[KVLayout, ...]
    vocab_size: int
    hidden_size: int
    num_layers: int
    buffers: tuple[Buffer, ...]
    weights: tuple[WeightRef, ...]

    def of_kind(self, kind: str) -> tuple[Op[Any], ...]:
        """The ops of that kind, in order."""
        return tuple(op for op in self.ops if op.kind == kind)

    @property
    def final_norm(self) -> Op[Norm]:
        """Its input is the residual stream after the last layer."""
        return self.of_kind("norm")[-1]

    @property
    def head(self) -> Op[Head]:
        """The last op."""
        return self.ops[-1]

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that a checkpoint must hold, with its shape, in the order of use."""
        return {name: shape for weight in self.weights for name, shape in weight.tensors()}
