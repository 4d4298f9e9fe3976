"""Memory use, line by line, with the computation of each number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.types import KVGroupSpec, Retention
from headrace.models.families import weight_names
from headrace.models.spec import KVLayout, ModelSpec
from headrace.plan.activations import activation_parts
from headrace.plan.drafts import DraftHeads, DraftModel
from headrace.plan.eviction import eviction_bytes
from headrace.plan.formats import KVFormat
from headrace.plan.kv import KVDemand, kv_demands, scratch_bytes, sequence_bytes, streaming_spec
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import format_count
from headrace.plan.weights import parameter_count, weight_bytes
from headrace.program.lower import lower
from headrace.program.recent import with_recent


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """`bytes` of one thing, and how it was computed."""

    name: str
    bytes: int
    how: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """Memory of one model on one device under one config.

    `weights`, `kv_pools` (one line a KV group) and `activations` add up to `total`. `kv_per_token` (one line
    a group) and `kv_per_sequence` (the worst moment of a sequence of max_model_len tokens) say what the pools
    are made of and add nothing, nor does `kv_after_eviction`, what a sequence holds at most while it generates. A
    token in a window group costs memory only while the window holds it.
    """

    parameters: int
    weights: tuple[LedgerLine, ...]
    kv_per_token: tuple[LedgerLine, ...]
    kv_per_sequence: LedgerLine
    kv_pools: tuple[LedgerLine, ...]
    activations: tuple[LedgerLine, ...]
    kv_after_eviction: LedgerLine | None = None

    @property
    def weight_bytes(self) -> int:
        return sum(line.bytes for line in self.weights)

    @property
    def kv_token_bytes(self) -> int:
        """KV bytes of one token over all layers."""
        return sum(line.bytes for line in self.kv_per_token)

    @property
    def kv_pool_bytes(self) -> int:
        return sum(line.bytes for line in self.kv_pools)

    @property
    def activation_bytes(self) -> int:
        return sum(line.bytes for line in self.activations)

    @property
    def total(self) -> int:
        return self.weight_bytes + self.kv_pool_bytes + self.activation_bytes


def ledger(spec: ModelSpec, resolved: ResolvedConfig) -> Ledger:
    """The ledger of `spec` (with or without the config's streaming applied) under a resolved config."""
    streamed = streaming_spec(spec, resolved.attention_sinks, resolved.sliding_window)
    program = with_recent(lower(streamed, weight_names(spec)), resolved.kv_cache_dtype)
    memory = resolved.memory_format
    draft = resolved.draft_model
    drafters = () if draft is None else draft.program.kv
    demands = kv_demands(
        (*program.kv, *drafters),
        block_size=resolved.block_size,
        max_model_len=resolved.max_model_len,
        max_num_seqs=resolved.max_num_seqs,
        chunk=resolved.max_num_batched_tokens,
        stored=memory.kv,
        state_interval=resolved.state_interval,
        drafts=resolved.num_speculative_tokens,
        num_drafter=len(drafters),
        eviction=resolved.eviction,
    )
    own, theirs = demands[: len(program.kv)], demands[len(program.kv) :]
    groups = list(zip(resolved.kv_groups, demands, strict=True))
    return Ledger(
        parameters=parameter_count(program),
        weights=(
            *(LedgerLine(part.name, part.bytes, part.how) for part in weight_bytes(program, memory)),
            *_draft_weights(draft),
            *_heads(resolved.draft_heads),
        ),
        kv_per_token=tuple(
            LedgerLine(
                group.name,
                memory.kv.token_bytes(demand.layout, resolved.block_size),
                _token_text(demand.layout, memory.kv),
            )
            for group, demand in groups
            if not demand.layout.recent
        ),
        kv_per_sequence=LedgerLine(
            "one sequence", sequence_bytes(demands), _sequence_text(demands, resolved.max_model_len)
        ),
        kv_pools=tuple(
            LedgerLine(
                group.name,
                group.num_blocks * demand.block_bytes,
                _pool_text(group, demand, memory.kv),
            )
            for group, demand in groups
        ),
        activations=(
            *(
                LedgerLine(part.name, part.bytes, part.how)
                for part in activation_parts(
                    program, resolved.max_num_batched_tokens, resolved.most_segments, memory, own
                )
            ),
            *_tree_scratch(resolved, (*own, *theirs)),
            *_eviction(program.kv, resolved),
            *_draft_activations(draft, resolved, theirs),
        ),
        kv_after_eviction=_after_eviction(demands, resolved),
    )


def _eviction(layouts: Sequence[KVLayout], resolved: ResolvedConfig) -> list[LedgerLine]:
    sizes = resolved.eviction
    if sizes is None:
        return []
    seqs, length, threads = resolved.most_segments, resolved.max_model_len, resolved.num_threads
    size = eviction_bytes(layouts, sizes, seqs=seqs, length=length, threads=threads)
    most = format_count(sizes.most_within(length))
    how = f"sums of attention to {most} tokens of {seqs} sequences, and room to choose"
    return [LedgerLine("KV eviction", size, how)]


def _after_eviction(demands: Sequence[KVDemand], resolved: ResolvedConfig) -> LedgerLine | None:
    sizes = resolved.eviction
    if sizes is None:
        return None
    most = sizes.most_within(resolved.max_model_len)
    blocks = -(-most // resolved.block_size)
    held = [
        min(demand.per_sequence, blocks) if demand.layout.retention is Retention.FULL else demand.per_sequence
        for demand in demands
    ]
    size = sum(count * demand.block_bytes for count, demand in zip(held, demands, strict=True))
    newer = f"up to {format_count(most - sizes.budget)} newer ones"
    how = f"{format_count(sizes.budget)} tokens of each KV head, and {newer}; not exact"
    return LedgerLine("one sequence after eviction", size, how)


def _draft_weights(draft: DraftModel | None) -> list[LedgerLine]:
    if draft is None:
        return []
    count = format_count(parameter_count(draft.program))
    kind = draft.weights_dtype if draft.weight_formats is None else draft.weight_formats.main.name
    return [LedgerLine("draft model", draft.weight_bytes, f"{count} parameters of {draft.name} in {kind}")]


def _heads(heads: DraftHeads | None) -> list[LedgerLine]:
    return [] if heads is None else [LedgerLine("draft heads", heads.bytes, f"{heads.name} in float32")]


def _draft_activations(
    draft: DraftModel | None, resolved: ResolvedConfig, demands: tuple[KVDemand, ...]
) -> list[LedgerLine]:
    if draft is None:
        return []
    size = draft.activation_bytes(resolved.max_num_batched_tokens, resolved.most_segments, demands)
    return [LedgerLine("draft model", size, "its own step, as large as the model's")]


def _tree_scratch(resolved: ResolvedConfig, demands: tuple[KVDemand, ...]) -> list[LedgerLine]:
    scratch = max(group.scratch for group in resolved.kv_groups)
    if not scratch:
        return []
    how = f"{format_count(scratch)} KV blocks for branches of up to {resolved.speculative_tree_nodes} drafts"
    return [LedgerLine("trees of drafts", scratch_bytes(demands, scratch), how)]


def _pool_text(group: KVGroupSpec, demand: KVDemand, stored: KVFormat) -> str:
    if demand.layout.state is not None:
        kept = "" if group.interval is None else f" and every {group.interval} tokens"
        return (
            f"{format_count(group.num_blocks)} states x {format_count(demand.block_bytes)} B: one a sequence, and "
            f"copies at the ends of prompts and of answers{kept}"
        )
    text = (
        f"{format_count(group.num_blocks)} blocks x {group.block_size} tokens x "
        f"{format_count(stored.token_bytes(demand.layout, group.block_size))} B"
    )
    padding = -group.block_size % stored.stride
    return text + (f", each with room for {padding} more tokens" if padding else "")


def _token_text(layout: KVLayout, stored: KVFormat) -> str:
    layers = len(layout.layers)
    if layout.state is not None:
        return f"{layers} recurrent layers, whose states have one size at any length"
    kept = "all tokens" if layout.window is None else f"the last {layout.window} tokens"
    if layout.sinks:
        kept += f" and the first {layout.sinks}"
    bits = stored.element_bits
    each = f"{layout.head_dim} x {f'{bits // 8} B' if bits % 8 == 0 else f'{bits} bits'}"
    if stored.feature_bytes:
        each = f"({each}), {stored.scale_bytes} B scale a value, {stored.feature_bytes} B a block and feature of keys"
    elif stored.scale_bytes:
        each = f"({each} + {stored.scale_bytes} B scale)"
    if layout.value_in_key is not None:
        return f"{layers} layers x one latent and key x {each}; keeps {kept}"
    return f"{layers} layers x 2 x {layout.num_kv_heads} heads x {each}; keeps {kept}"


def _sequence_text(demands: tuple[KVDemand, ...], length: int) -> str:
    blocks = " + ".join(format_count(demand.per_sequence) for demand in demands)
    return f"{format_count(length)} tokens; blocks: {blocks}"
