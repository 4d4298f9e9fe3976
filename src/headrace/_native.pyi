"""The C++ extension (csrc/). Absent where it could not be built: import it inside try."""

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Part = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16] | tuple[int, str, int, int]
Scales = NDArray[np.float16] | NDArray[np.uint16] | NDArray[np.float32] | NDArray[np.uint8]
Queries = NDArray[np.float32] | NDArray[np.uint16]
Cached = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.int8]

@final
class CpuInfo:
    @property
    def vendor(self) -> str: ...
    @property
    def brand(self) -> str: ...
    @property
    def flags(self) -> list[str]: ...
    @property
    def l1d_bytes(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def l3_bytes(self) -> int: ...

def detect_cpu() -> CpuInfo: ...
def usable_cpu_flags(
    *,
    leaf1_ecx: int,
    leaf7_ebx: int,
    leaf7_ecx: int,
    leaf7_edx: int,
    leaf7_1_eax: int,
    xcr0: int,
    amx_granted: bool,
) -> list[str]: ...
def available_kernels() -> list[str]: ...
def measure_read(kernels: str, *, threads: int, buffer_bytes: int, runs: int) -> list[float]: ...
def measure_peak(kernels: str, type: str, *, threads: int, seconds: float, runs: int) -> list[float]: ...

@final
class Kernels:
    """The kernels of one instruction set, by a name of `available_kernels`; ValueError for any other."""

    def __init__(self, name: str) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def layout(self) -> str:
        """Of packed matrices: sets with equal layouts read the same bytes."""

@final
class Team:
    """Threads that kernels run on, the caller being the first; asleep while nothing runs."""

    def __init__(self, size: int, pin: bool = False) -> None: ...
    @property
    def size(self) -> int: ...
    def thread_ids(self) -> list[int]: ...
    def run_empty(self, times: int) -> None:
        """Give the team nothing to do, so often: what starting and ending a run costs."""

@final
class PackedMatrix:
    """A weight matrix in the form that products read, see csrc/tensors.h.

    `format`: "f32", "bf16", "f16", or codes: "int8", "int6", "int5", "int4", "int3", "int2", "table4", "e4m3", "e5m2".
    `input`: how activations are to be encoded, "f32" (with floats), "bf16" (with "bf16" and codes) or "i8" (with codes
    other than "e4m3" and "e5m2").
    `parts` are put below each other: arrays [rows, cols] of float32, float16 or bfloat16 (as uint16), or
    (address, "f32" | "bf16" | "f16", rows, cols) of memory that lives as long as the call. With `gate` the first half
    of all rows is the gate and the rest is up. Floats are rounded to "int8" and "int4" only, `group` (a multiple of 32)
    input features sharing a scale, 0: all. `span` input features share a scale of "i8" activations: it divides the
    group, 0: the group itself. Raises ValueError where this does not fit.
    """

    def __init__(
        self,
        kernels: Kernels,
        team: Team,
        format: str,
        parts: list[Part],
        *,
        gate: bool = False,
        input: str,
        group: int = 0,
        symmetric: bool = True,
        span: int = 0,
        bias: NDArray[np.float32] | None = None,
        experts: int = 1,
    ) -> None: ...
    @staticmethod
    def from_codes(
        kernels: Kernels,
        team: Team,
        format: str,
        parts: list[tuple[NDArray[np.uint8], Scales, Scales | None]],
        *,
        gate: bool = False,
        input: str,
        group: int = 0,
        span: int = 0,
        middle: int | None = None,
        unit: float = 1.0,
        table: NDArray[np.int8] | NDArray[np.uint16] | None = None,
        order: NDArray[np.int32] | None = None,
        bias: NDArray[np.float32] | None = None,
        experts: int = 1,
    ) -> PackedMatrix:
        """From codes chosen elsewhere. Each part is (codes [rows, cols], scales [rows, groups], zeros | minima | None).

        weight = unit * scale * (number - zero), or unit * scale * number + minimum. `unit` is a power of two. The
        number is the code, the entry of `table` ("table4": sixteen int8 with "i8" activations, bfloat16 as uint16 with
        "bf16"), or the float of 8 bits. Scales are float16, float32, bfloat16 as uint16, or powers of two as uint8:
        2^(s - 127). Zeros are uint8, minima of the scales' type, for "i8" activations only; without either the zero is
        `middle`, None: half of the codes' range. Groups are multiples of 16, of "int5" and "int3" of 32, or 16 with
        "i8" activations. Codes of NaN or infinity make their group's scale NaN. `order` [cols] is the input feature
        that each column multiplies (GPTQ's activation order).
        """
    @staticmethod
    def from_blocks(
        kernels: Kernels,
        team: Team,
        type: str,
        parts: list[NDArray[np.uint8] | tuple[int, int, int]],
        *,
        gate: bool = False,
        bias: NDArray[np.float32] | None = None,
        experts: int = 1,
    ) -> PackedMatrix:
        """From rows of a GGUF file: uint8 [rows, bytes of a row], or (address, rows, cols) of memory.

        `type`: q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs or mxfp4. Nothing is
        rounded. Activations are i8, in the type's groups.
        """
    def put(
        self,
        kernels: Kernels,
        team: Team,
        expert: int,
        parts: list[Part],
        bias: NDArray[np.float32] | None = None,
    ) -> None:
        """Packs another one of `experts`, whose first one the parts of the constructor are, in the same way."""
    def put_codes(
        self,
        kernels: Kernels,
        team: Team,
        expert: int,
        parts: list[tuple[NDArray[np.uint8], Scales, Scales | None]],
        bias: NDArray[np.float32] | None = None,
    ) -> None:
        """`put` after `from_codes`."""
    def put_blocks(
        self,
        kernels: Kernels,
        team: Team,
        expert: int,
        parts: list[NDArray[np.uint8] | tuple[int, int, int]],
        bias: NDArray[np.float32] | None = None,
    ) -> None:
        """`put` after `from_blocks`."""
    @staticmethod
    def mapped(
        kept: NDArray[np.uint8],
        format: str,
        *,
        rows: int,
        cols: int,
        gate: bool = False,
        input: str,
        group: int = 0,
        span: int = 0,
        unit: float = 1.0,
        table: NDArray[Any] | None = None,
        scales: str = "f16",
        zeros: bool = False,
        minima: bool = False,
        ordered: bool = False,
        bias: bool = False,
        experts: int = 1,
    ) -> PackedMatrix:
        """In packed form already: `kept` holds the `pieces` of such a matrix, and is not copied. It begins at a page.

        Raises ValueError where a matrix of this shape and format takes another number of bytes.
        """
    @staticmethod
    def mapped_blocks(
        kept: NDArray[np.uint8],
        type: str,
        *,
        rows: int,
        cols: int,
        gate: bool = False,
        bias: bool = False,
        experts: int = 1,
    ) -> PackedMatrix:
        """`mapped`, of what `from_blocks` packed from blocks of that type."""
    @property
    def pieces(self) -> list[NDArray[np.uint8]]:
        """All memory of the matrix, in whole pages: what `mapped` takes, one after the other. Read-only."""
    @property
    def panels(self) -> NDArray[np.uint8]:
        """The packed form itself, [panels, bytes of a panel], read-only as the two below."""
    @property
    def scales(self) -> Scales | None:
        """[panels, groups, 16], 16-bit floats as bits; [panels, super-blocks, bytes] of K-quants; None for floats."""
    @property
    def minima(self) -> Scales | None:
        """As the scales; None where there are none, or where they lie in super-blocks."""
    @property
    def zeros(self) -> NDArray[np.uint8] | None:
        """[panels, groups, 16]; None where they are all the same."""
    @property
    def format(self) -> str: ...
    @property
    def input(self) -> str: ...
    @property
    def experts(self) -> int:
        """Matrices of `rows` x `cols`; `panels` and what lies beside them are those of all."""
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def span(self) -> int:
        """Input features that share a scale of i8 activations."""
    @property
    def ordered(self) -> bool:
        """Whether columns are in an order of their own: rows are encoded in it, see `Tape.encode`."""
    @property
    def nbytes(self) -> int: ...

Embeddings = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16] | PackedMatrix
"""[V, H]: a table, bfloat16 as uint16, or a packed matrix."""

def linear(
    kernels: Kernels,
    team: Team,
    x: NDArray[np.float32],
    w: PackedMatrix,
    epilogue: str = "store",
    gate: str = "none",
    out: NDArray[np.float32] | NDArray[np.uint16] | None = None,
    out_dtype: str = "f32",
    gates: NDArray[np.float32] | None = None,
) -> NDArray[np.float32] | NDArray[np.uint16]:
    """x [T, cols] @ w.T + bias -> [T, rows], `x` being encoded as `w.input` says.

    `epilogue`: "store", "add" (to `out`, f32), "gate" (`w` packed with gate=True: gate(x @ g.T) * (x @ u.T), one
    feature for each two, rounded up to 16; `gate` is "none", "silu", "gelu" or "gelu_tanh") or "multiply" (by
    gate(gates), `gates` being [T, rows]). `out_dtype`: "f32", or "bf16" as uint16. Raises ValueError
    where shapes or names do not fit.
    """

def encode(
    kernels: Kernels,
    team: Team,
    x: NDArray[np.float32],
    type: str,
    out: NDArray[np.uint8],
    *,
    norm: NDArray[np.float32] | None = None,
    eps: float = 0.0,
    group: int = 0,
    scales: NDArray[np.float32] | None = None,
    sums: NDArray[np.int32] | None = None,
    gather: NDArray[np.int64] | None = None,
    bias: NDArray[np.float32] | None = None,
    centred: bool = False,
    gate: str = "none",
) -> None:
    """Rows x [N, K] as products want them, in `out` [R, bytes of a padded row]; i8: with scales, sums [R, groups]."""

def embed(
    kernels: Kernels,
    team: Team,
    ids: NDArray[np.int64],
    table: Embeddings,
    out: NDArray[np.float32],
) -> None: ...
def argmax(kernels: Kernels, team: Team, logits: NDArray[np.float32], out: NDArray[np.int64]) -> None: ...
def soft_cap(
    kernels: Kernels, team: Team, logits: NDArray[np.float32], cap: float, scale: float = 1.0
) -> None: ...

TapeGroup = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]
"""Block tables [S, B], dropped blocks [S] and slots [T] of one KV group; see csrc/tensors.h."""

def route(
    kernels: Kernels,
    team: Team,
    logits: NDArray[np.float32],
    *,
    num_experts: int,
    top_k: int,
    scores: str = "softmax",
    normalize: bool = False,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
    group_score: str = "max",
    shared: bool = False,
    bias: NDArray[np.float32] | None = None,
    expert_scale: NDArray[np.float32] | None = None,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
]:
    """(experts [T, K], weights [T, K], gates of the shared expert [T], routed row of each choice [T, K], row of each
    routed row [T * K], first routed row of each expert [E + 1]) of logits [T, E], with `shared` [T, E + 1]."""

def expert_linear(
    kernels: Kernels,
    team: Team,
    x: NDArray[np.float32],
    w: PackedMatrix,
    begins: NDArray[np.int32],
    *,
    epilogue: str = "store",
    gate: str = "none",
) -> NDArray[np.float32]:
    """Rows x that are routed already, times the matrices of their experts; `begins` as `route` gives them."""

def heads_linear(
    kernels: Kernels, team: Team, x: NDArray[np.float32], w: PackedMatrix, *, inputs: int
) -> NDArray[np.float32]:
    """The first features of each head, x [T, H * inputs], times its own matrix of w; gives [T, H * O]."""

@final
class Tape:
    """A model as a list of kernel calls over memory that is allocated once, see csrc/tape.h.

    Buffers, rotations, KV groups and caches are numbers that the methods making them return. Calls run in the order
    in which they were made here. `scope` says which rows a call works on: "tokens", "logits" (those of
    wanted_rows), or "gathered" (from tokens to logits). Methods raise ValueError where things do not fit together.
    """

    def __init__(
        self,
        kernels: Kernels,
        team: Team,
        *,
        max_tokens: int,
        max_seqs: int,
        max_logits: int,
        vocab_size: int,
    ) -> None: ...
    def add_group(self, *, block_size: int, num_blocks: int, sink_blocks: int) -> int: ...
    def add_rows(self, type: str, cols: int, group: int = 0, each: int = 1) -> int:
        """A buffer of one row a token, "f32", "bf16" or "i8" (with a scale for each `group` features)."""

    def add_queries(self, type: str, features: int) -> int: ...
    def add_kv(
        self,
        group: int,
        type: str,
        keys: NDArray[np.uint8] | None,
        values: NDArray[np.uint8],
        *,
        num_kv_heads: int,
        head_dim: int,
        value_dim: int,
        key_scales: NDArray[np.generic] | None = None,
        value_scales: NDArray[np.generic] | None = None,
        recent: int | None = None,
    ) -> int:
        """Without keys the values are part of them, see csrc/tensors.h: KVCache. `recent`: of "i4" the number of the
        "bf16" cache that holds the blocks which are not coded yet."""

    def add_states(self, slots: int) -> int:
        """A group of recurrent states."""

    def add_state(self, group: int, memory: NDArray[np.uint8], floats: int) -> int:
        """One part of a layer's states: `floats` for each slot of the group."""

    def ungroup(
        self,
        source: int,
        parts: Sequence[tuple[int, int, int]],
        *,
        groups: int,
        name: str = "ungroup",
        layer: int = -1,
    ) -> None:
        """Takes rows of groups of columns apart. parts: (columns of a group, buffer, its first column)."""

    def sigmoid_gate(
        self, out: int, gates: int, cols: int, *, name: str = "gate", layer: int = -1
    ) -> None: ...
    def convolution(
        self,
        source: int,
        state: int,
        out: int,
        *,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None = None,
        channels: int,
        width: int,
        gated: bool,
        layer: int = -1,
    ) -> None:
        """A causal convolution over each channel; weight: [width * channels], the oldest position first."""

    def gated_delta(
        self,
        qkv: int,
        gates: int,
        numbers: int,
        state: int,
        out: int,
        *,
        rate: NDArray[np.float32],
        time: NDArray[np.float32],
        norm: NDArray[np.float32],
        eps: float,
        heads: int,
        key_heads: int,
        key_dim: int,
        value_dim: int,
        tiled: bool = ...,
        layer: int = -1,
    ) -> None: ...
    def set_eviction(self, *, budget: int, sinks: int, recent: int, most: int, longest: int) -> None:
        """Let sequences evict tokens; before the calls of `evict`."""

    def evict(
        self,
        q: int,
        cache: int,
        *,
        num_heads: int,
        scale: float,
        soft_cap: float = 0.0,
        learned_sinks: NDArray[np.float32] | None = None,
        layer: int = -1,
    ) -> None:
        """After the attention of a layer that owns the cache."""

    def rotations(self, frequencies: NDArray[np.float64], factor: float, limit: int | None = None) -> int: ...
    def embed(
        self, table: Embeddings, out: int, *, scale: float = 1.0, positions: bool = False, name: str = "embed"
    ) -> None:
        """Writes `scale` times the rows of the tokens; `positions`: adds the rows of their positions."""
    def encode(
        self,
        source: int,
        out: int,
        cols: int,
        *,
        norm: Sequence[NDArray[np.float32]] = (),
        centred: bool = False,
        eps: float = 0.0,
        gate: str = "none",
        times: int | None = None,
        times_column: int = 0,
        scope: str = "tokens",
        name: str,
        layer: int = -1,
        reader: PackedMatrix | None = None,
    ) -> None:
        """norm: none, its weight, or weight and bias. gate: a function of every feature. times: a buffer with a row for
        each token, whose features from `times_column` on multiply the result. reader: the matrix whose order of columns
        the rows take, if it has one."""

    def norm_columns(
        self,
        rows: int,
        first: int,
        count: int,
        *,
        norm: Sequence[NDArray[np.float32]],
        centred: bool = False,
        eps: float = 0.0,
        name: str,
        layer: int = -1,
    ) -> None:
        """Normalises columns first .. first + count in place."""

    def add(
        self,
        source: int,
        out: int,
        cols: int,
        *,
        scale: float = 1.0,
        norm: Sequence[NDArray[np.float32]] = (),
        centred: bool = False,
        eps: float = 0.0,
        norm_cols: int = 0,
        decay: NDArray[np.float32] | None = None,
        scope: str = "tokens",
        name: str,
        layer: int = -1,
    ) -> None:
        """Adds `scale` times the rows, or their norms, to those of `out`, which are then multiplied by `decay` [1].
        norm_cols: so many columns in turn have a norm of their own; 0: all together."""

    def linear(
        self,
        source: int,
        weight: PackedMatrix,
        out: int,
        *,
        epilogue: str = "store",
        gate: str = "none",
        gates: int | None = None,
        column: int = 0,
        scope: str = "tokens",
        name: str,
        layer: int = -1,
    ) -> None:
        """`gates`: the buffer that "multiply" reads. `column`: where in a row of `out` the product begins."""
    def rope(
        self,
        qkv: int,
        cache: int,
        q: int,
        *,
        num_heads: int,
        rotated: int,
        interleaved: bool = False,
        temperature: tuple[float, int, int] | None = None,
        rotation: int | None = None,
        sink_rotation: int | None = None,
        q_sink: int | None = None,
        q_norm: NDArray[np.float32] | None = None,
        k_norm: NDArray[np.float32] | None = None,
        normed: bool = False,
        v_norm: bool = False,
        keys_are_values: bool = False,
        writes: bool = True,
        eps: float = 0.0,
        layer: int = -1,
    ) -> None: ...
    def latent(
        self,
        query: int,
        latent: int,
        cache: int,
        q: int,
        *,
        num_heads: int,
        key_dim: int,
        interleaved: bool,
        rotation: int,
        layer: int = -1,
    ) -> None:
        """Writes the rotated features of `q` and the cache; see csrc/kernels.h: LatentArgs."""
    def heads_linear(
        self,
        source: int,
        weight: PackedMatrix,
        out: int,
        *,
        inputs: int,
        outputs: int,
        scope: str = "tokens",
        name: str,
        layer: int = -1,
    ) -> None:
        """A matrix for each head; `inputs`, `outputs`: features from one head to the next in a row."""
    def attention(
        self,
        q: int,
        q_sink: int | None,
        cache: int,
        out: int,
        *,
        num_heads: int,
        scale: float,
        window: int = 0,
        chunked: bool = False,
        sinks: int = 0,
        soft_cap: float = 0.0,
        slopes: NDArray[np.float32] | None = None,
        learned_sinks: NDArray[np.float32] | None = None,
        layer: int = -1,
    ) -> None: ...
    def add_routing(self, experts: int, each: int) -> int:
        """Memory for the choice of so many experts for each token; routings have numbers of their own."""
    def route(
        self,
        logits: int,
        routing: int,
        *,
        bias: NDArray[np.float32] | None = None,
        expert_scale: NDArray[np.float32] | None = None,
        scores: str,
        normalize: bool,
        scale: float,
        groups: int,
        top_groups: int,
        group_score: str,
        shared: bool,
        scope: str = "tokens",
        layer: int = -1,
    ) -> None:
        """The options are those of `spec.RouterSpec`; `shared`: the logits have one more column."""
    def dispatch(
        self, source: int, routing: int, out: int, *, scope: str = "tokens", layer: int = -1
    ) -> None:
        """Copies encoded rows to their routed rows, in a buffer with `each` rows a token."""
    def experts(
        self,
        source: int,
        weight: PackedMatrix,
        out: int,
        routing: int,
        *,
        epilogue: str = "store",
        gate: str = "none",
        gates: int | None = None,
        scaled: bool = False,
        scope: str = "tokens",
        name: str,
        layer: int = -1,
    ) -> None:
        """`linear` of routed rows, each with its expert's matrix. scaled: by the weights of the choice."""
    def combine(
        self,
        source: int,
        routing: int,
        out: int,
        cols: int,
        *,
        shared: int | None = None,
        gated: bool = False,
        weighted: bool = True,
        added: bool = False,
        scope: str = "tokens",
        layer: int = -1,
    ) -> None:
        """The weighted sum of each token's routed rows, and of the shared expert's output."""
    def logits(self, source: int, head: PackedMatrix, soft_cap: float = 0.0, scale: float = 1.0) -> None: ...
    def run(
        self,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        cu_q: NDArray[np.int32],
        kv_lens: NDArray[np.int32],
        groups: list[TapeGroup],
        wanted_rows: NDArray[np.int64],
        best: NDArray[np.int64] | None = None,
        hidden: tuple[int, Sequence[NDArray[np.float32]], bool, float, NDArray[np.float32]] | None = None,
        states: Sequence[
            tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
        ] = (),
        more: tuple[NDArray[np.int32], Sequence[NDArray[np.int64]]] | None = None,
        evicted: Sequence[NDArray[np.int32] | None] | None = None,
        observed: tuple[NDArray[np.int32], Sequence[NDArray[np.int32] | None]] | None = None,
    ) -> NDArray[np.float32]:
        """Replay the tape for one step; gives logits [R, V] of the wanted rows, valid until the next run.

        `best` [R] receives the token of the largest logit of every row. `hidden` is (buffer of the residual stream,
        final norm, whether it is centred, its eps, output [P, H rounded up to 16]): the last P wanted rows have no
        logits, the output receives their normalised hidden states. `states`: of each group of recurrent states the
        source of each sequence (-1: none), the first of its writes [S + 1], and of each write the number of tokens
        before it and the slot, see StateTables in csrc/tensors.h. `more`: where keys and values of tokens go beside
        the groups' slots, as the first of each token's [T + 1] and the slots of each group. `evicted`: of each KV group
        how many tokens each sequence [S] has given up. `observed`: sequences that evict tokens, each as (number in the
        step, rows, memory, whether it starts, whether it ends) [O, 5], and the blocks [O, B] that tokens are moved to
        in each KV group that evicts, see csrc/eviction.h. Raises ValueError for a
        step that is larger than the tape, or whose indices point outside their arrays; nothing has been run then.
        """

    def profile(self, on: bool) -> None: ...
    def clear_costs(self) -> None: ...
    def costs(self) -> list[tuple[str, int, float, float, float]]:
        """(name, layer or -1, seconds, bytes, operations) of every call, summed over runs with the profile on."""

    @property
    def nbytes(self) -> int: ...

def rotations(
    kernels: Kernels,
    team: Team,
    positions: NDArray[np.int64],
    frequencies: NDArray[np.float64],
    *,
    factor: float = 1.0,
    limit: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, [T, R/2] each, of positions [T] (above `limit` taken as it; 0: none) times frequencies."""

def rope_and_write(
    kernels: Kernels,
    team: Team,
    qkv: NDArray[np.float32],
    keys: Cached,
    values: Cached,
    slots: NDArray[np.int64],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    *,
    num_heads: int,
    head_dim: int,
    block_size: int,
    key_scales: NDArray[np.float32] | None = None,
    value_scales: NDArray[np.float32] | None = None,
    q_norm: NDArray[np.float32] | None = None,
    k_norm: NDArray[np.float32] | None = None,
    eps: float = 0.0,
    sink_cos: NDArray[np.float32] | None = None,
    sink_sin: NDArray[np.float32] | None = None,
    interleaved: bool = False,
    normed: bool = False,
    v_norm: bool = False,
    keys_are_values: bool = False,
    recent: tuple[Cached, Cached, NDArray[np.int64]] | None = None,
) -> tuple[Queries, Queries | None]:
    """Head norms, rope and KV write of qkv [T, (Hq + 2 Hkv) * D]; gives q and (with sink tables) q_sink [Hkv, T, G, D].
    keys_are_values: there are no columns of v, which is k before its norm.

    keys, values [N, Hkv, T * D] and scales [N, Hkv, T] are written in place, in the layout of csrc/tensors.h (T:
    block_size rounded up to 16). q is float32 with a float32 cache, else bfloat16. `recent`: of 4-bit
    codes the keys and values of the recent blocks, and slots [T] in them. ValueError where shapes disagree.
    """

def paged_attention(
    kernels: Kernels,
    team: Team,
    q: Queries,
    keys: Cached,
    values: Cached,
    *,
    cu_q: NDArray[np.int32],
    kv_lens: NDArray[np.int32],
    positions: NDArray[np.int64],
    block_tables: NDArray[np.int32],
    dropped: NDArray[np.int32],
    sink_blocks: int,
    block_size: int,
    scale: float,
    window: int = 0,
    chunked: bool = False,
    sinks: int = 0,
    soft_cap: float = 0.0,
    q_sink: Queries | None = None,
    key_scales: NDArray[np.float32] | None = None,
    value_scales: NDArray[np.float32] | None = None,
    out_dtype: str = "f32",
    learned_sinks: NDArray[np.float32] | None = None,
    slopes: NDArray[np.float32] | None = None,
    recent: tuple[Cached, Cached, NDArray[np.int32], NDArray[np.int32]] | None = None,
) -> Queries:
    """headrace.ops.reference.paged_attention on q [Hkv, T, G, D] and a cache as of `rope_and_write`; gives [T, Hq * D].

    Window, sinks and soft cap of 0: none. `out_dtype`: "f32" or "bf16". `recent`: of 4-bit codes the keys
    and values of the recent blocks, their tables and dropped counts. ValueError where shapes or tables disagree.
    """

def gumbel(seed: int, position: int, token: int) -> float:
    """Noise of one token: headrace.runner.sampling.randomness.noise, for a seed and a position below 2**64."""

@final
class SampleRules:
    """How one sequence's tokens are chosen, see headrace.core.params.SamplingParams.

    ValueError for token ids outside the vocabulary.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        seed: int,
        min_tokens: int,
        stop_ids: list[int],
        allowed: list[int] | None,
        banned: list[int],
        bias_ids: list[int],
        biases: list[float],
    ) -> None: ...

@final
class Sampler:
    """Chooses tokens from rows of logits [R, V] float32; `at` names the rows to read, None: all.

    `seen` is empty, or holds for each row None or the distinct tokens that penalties apply to and what is subtracted
    from their logits. ValueError where lengths, rows or token ids do not fit.
    """

    def __init__(self, kernels: Kernels, team: Team, vocab_size: int) -> None: ...
    def sample(
        self,
        logits: NDArray[np.float32],
        rules: list[SampleRules],
        positions: list[int],
        seen: list[tuple[NDArray[np.int64], NDArray[np.float32]] | None],
        at: Sequence[int] | None,
        masks: tuple[NDArray[np.uint32], list[int]] | None = None,
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens, and (row, Fault) of the rows that have none.

        `masks`: bits [M, W] of the tokens that may be chosen, least first, and for each row its mask or -1.
        """

    def logprobs(
        self, logits: NDArray[np.float32], at: list[int], tokens: list[int], counts: list[int]
    ) -> list[list[tuple[int, float, int]]]:
        """For each token (id, log-probability, rank), followed by the likeliest ones of its row."""

def attention_mass(
    kernels: Kernels,
    q: NDArray[np.generic],
    keys: NDArray[np.generic],
    values: NDArray[np.generic],
    table: NDArray[np.int32],
    sums: NDArray[np.float32],
    *,
    head: int,
    each: int,
    first: int,
    block_size: int,
    scale: float,
    soft_cap: float = 0.0,
    key_scales: NDArray[np.float32] | None = None,
    value_scales: NDArray[np.float32] | None = None,
    learned_sinks: NDArray[np.float32] | None = None,
) -> None:
    """Add to `sums` what the softmax of rows q [tokens * each, D] gives to each key of a KV head, see csrc/isa/mass.h.

    keys, values [N, Hkv, block_size rounded up to 16 * D]; table: the blocks of one sequence; first: the place of the
    first row's token.
    """

def choose_kept(sums: NDArray[np.float32], kept: NDArray[np.int32], *, sinks: int, recent: int) -> None:
    """Fill `kept` with the tokens that stay, see csrc/eviction.h."""

def move_kept(
    keys: NDArray[np.generic],
    values: NDArray[np.generic],
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    tokens: NDArray[np.int32],
    *,
    head: int,
    head_dim: int,
    block_size: int,
    key_scales: NDArray[np.float32] | None = None,
    value_scales: NDArray[np.float32] | None = None,
) -> None:
    """Move keys and values of `tokens` of the blocks `source` to the first places of the blocks `target`."""
