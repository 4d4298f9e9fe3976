"""What fits in memory besides the weights: KV pools as a function of the longest sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.core.eviction import Eviction
from headrace.errors import DoesNotFit
from headrace.plan.activations import activation_bytes
from headrace.plan.draft_methods import branches, scratch_blocks
from headrace.plan.drafts import DraftHeads, DraftModel
from headrace.plan.eviction import eviction_bytes
from headrace.plan.formats import MemoryFormat
from headrace.plan.kv import (
    KVDemand,
    blocks_within,
    kv_demands,
    largest,
    pool_bytes,
    scratch_bytes,
    sequence_bytes,
)
from headrace.plan.units import format_bytes
from headrace.plan.weights import total_weight_bytes
from headrace.program.records import Program

KV_PERCENT_LIMIT = 90
"""Most of the free memory, in percent, that KV of open size may take: the process needs some room too."""

MAPPED_PERCENT = 75
"""Most of the memory, in percent, that the plan keeps for the pages of mapped weights."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Everything that sizes the KV pools except the longest sequence, `length` below, in tokens.

    mapped: weights lie in a file that is mapped, and need not all be in memory at once.
    memory: bytes for weights, activations and KV together; stored: their formats.
    block_size: None is the contiguous layout, one block of `length` tokens a sequence.
    state_interval: tokens between recurrent states that are kept for the prefix cache.
    drafts: most tokens that are drafted for a sequence one after the other; tree_nodes: most tokens of a tree of
    drafts; draft, heads: what drafts them. eviction: tokens that sequences give up.
    batched_tokens: most tokens of a step, or None for `default_tokens`, raised where more are needed;
    whole_prompts: a step must take the longest sequence at once.
    kv_bytes, kv_blocks: size of the KV cache where the user fixed it; kv_default_most caps it where not.
    """

    program: Program
    memory: int
    stored: MemoryFormat
    max_num_seqs: int
    block_size: int | None
    batched_tokens: int | None
    default_tokens: int
    whole_prompts: bool
    kv_bytes: int | None
    kv_blocks: int | None
    kv_default_most: int | None
    state_interval: int | None = None
    mapped: bool = False
    drafts: int = 0
    draft: DraftModel | None = None
    heads: DraftHeads | None = None
    tree_nodes: int = 0
    eviction: Eviction | None = None

    @property
    def weight_bytes(self) -> int:
        own = total_weight_bytes(self.program, self.stored)
        if self.heads is not None:
            own += self.heads.bytes
        return own if self.draft is None else own + self.draft.weight_bytes

    @property
    def resident_bytes(self) -> int:
        """Weights that memory is kept for: all, or of a mapped file as much as leaves room for the rest."""
        return (
            min(self.weight_bytes, self.memory * MAPPED_PERCENT // 100) if self.mapped else self.weight_bytes
        )

    def step_tokens(self, length: int) -> int:
        """Most tokens of one step."""
        if self.batched_tokens is not None:
            return self.batched_tokens
        return max(self.default_tokens, self.busy_tokens, length if self.whole_prompts else 0)

    @property
    def busy_tokens(self) -> int:
        """Tokens of a step in which a prompt advances while all other sequences decode: where tokens are evicted, the
        queries that decide come in one slice."""
        return self.max_num_seqs - 1 + (1 if self.eviction is None else self.eviction.window)

    def free(self, length: int) -> int:
        """Bytes left for KV after weights and activations; never negative."""
        own = len(self.program.kv)
        tokens, demands = self.step_tokens(length), self.demands(length)
        seqs = self.max_num_seqs + branches(self.tree_nodes)
        step = activation_bytes(self.program, tokens, seqs, self.stored, demands[:own])
        step += scratch_bytes(demands, self.scratch(length))
        if self.eviction is not None:
            threads = self.stored.threads
            step += eviction_bytes(self.program.kv, self.eviction, seqs=seqs, length=length, threads=threads)
        if self.draft is not None:
            step += self.draft.activation_bytes(tokens, seqs, demands[own:])
        return max(0, self.memory - self.resident_bytes - step)

    def scratch(self, length: int) -> int:
        """Blocks of each KV group for trees of drafts."""
        return scratch_blocks(self.tree_nodes, self.drafts, self.block_size or length)

    def demands(self, length: int) -> tuple[KVDemand, ...]:
        """What the KV groups need for sequences of up to `length` tokens."""
        drafters = () if self.draft is None else self.draft.program.kv
        return kv_demands(
            (*self.program.kv, *drafters),
            block_size=self.block_size or length,
            max_model_len=length,
            max_num_seqs=self.max_num_seqs,
            chunk=self.step_tokens(length),
            least_chunk=self.step_tokens(length) if self.whole_prompts else 1,
            stored=self.stored.kv,
            state_interval=self.state_interval,
            drafts=self.drafts,
            num_drafter=len(drafters),
            eviction=self.eviction,
        )

    def needed(self, length: int) -> int:
        """KV bytes of one sequence of `length` tokens."""
        return sequence_bytes(self.demands(length))

    def counts(self, length: int, percent: int) -> tuple[int, ...] | None:
        """Blocks of each group, or None when not one sequence of `length` tokens fits.

        A KV cache of open size takes at most `percent` of what is free, no more than can ever be used, and no
        more than the default cap unless one sequence needs it. None stays None as `length` grows.
        """
        demands, free = self.demands(length), self.free(length)
        if self.kv_blocks is not None:
            counts = tuple(
                self.kv_blocks if demand.layout.window is None else min(self.kv_blocks, demand.most)
                for demand in demands
            )
            counts = tuple(
                count if demand.layout.state is None else min(demand.blocks(count), demand.most)
                for count, demand in zip(counts, demands, strict=True)
            )
            enough = all(n >= demand.per_sequence for n, demand in zip(counts, demands, strict=True))
            return counts if enough and pool_bytes(demands, counts) <= free else None
        if self.kv_bytes is not None:
            # More blocks than all sequences can use are still useful: prefixes stay in the cache longer.
            return blocks_within(demands, self.kv_bytes, spare=True) if self.kv_bytes <= free else None
        budget = free * percent // 100
        if self.kv_default_most is not None:
            budget = min(budget, max(self.kv_default_most, sequence_bytes(demands)))
        return blocks_within(demands, budget)


def check_memory(fit: Fit) -> None:
    """Raise DoesNotFit when weights and the activations of one step leave nothing for KV."""
    left = fit.memory - fit.resident_bytes
    if fit.free(1) > 0:
        return
    if left > 0:
        trees = ", or trees of drafts with --speculative-tree-nodes" if fit.tree_nodes else ""
        raise DoesNotFit(
            f"weights of {format_bytes(fit.resident_bytes)} leave {format_bytes(left)} of "
            f"{format_bytes(fit.memory)}, too little for the activations of a step; "
            f"lower --max-num-batched-tokens or --max-num-seqs{trees}"
        )
    each = f"at {fit.stored.element_bytes} bytes each"
    hint = "" if fit.stored.element_bytes == 2 else ", or halve it with --dtype bfloat16"
    if fit.stored.weights is not None:
        each = f"in {fit.stored.weights.main.name}"
        four = fit.stored.weights.main.bits <= 4
        hint = "" if four else ", or store them in 4 bits with --quantization int4"
    raise DoesNotFit(
        f"the weights need {format_bytes(fit.weight_bytes)} {each}, but "
        f"{format_bytes(fit.memory)} of memory is available; use a smaller model{hint}"
    )


def too_small(fit: Fit, length: int) -> DoesNotFit:
    """Why not one sequence of `length` tokens fits, how much it needs, and which option to change."""
    needed, free = fit.needed(length), fit.free(length)
    tokens = "one token" if length == 1 else f"{length} tokens"
    what = f"a sequence of {tokens} needs {format_bytes(needed)} of KV cache"
    left = f"{format_bytes(free)} of {format_bytes(fit.memory)} is free after weights and activations"
    shorter = 0
    if length > 1 and fit.counts(1, KV_PERCENT_LIMIT) is not None:
        shorter = largest(1, length, lambda tokens: fit.counts(tokens, KV_PERCENT_LIMIT) is not None)
    lower = (
        f"lower --max-model-len to {shorter}"
        if shorter
        else "lower --max-num-batched-tokens or --max-num-seqs"
    )
    trees = ""
    if fit.tree_nodes and replace(fit, tree_nodes=0).counts(length, KV_PERCENT_LIMIT) is not None:
        trees = ", or trees of drafts with --speculative-tree-nodes"
    lower += trees
    if fit.kv_bytes is not None and fit.kv_bytes > free:
        return DoesNotFit(
            f"kv_cache_memory is {format_bytes(fit.kv_bytes)}, but {left}; lower --kv-cache-memory{trees}"
        )
    if fit.kv_bytes is not None:
        raise_to = f"raise --kv-cache-memory to {needed}"
        return DoesNotFit(
            f"{what}, but kv_cache_memory is {format_bytes(fit.kv_bytes)}; "
            + (f"{lower}, or {raise_to}" if shorter else raise_to)
        )
    if fit.kv_blocks is not None:
        blocks = max(demand.per_sequence for demand in fit.demands(length))
        if fit.kv_blocks < blocks:
            raise_to = f"raise --num-kv-blocks to {blocks}"
            return DoesNotFit(
                f"{what} in {blocks} blocks, but num_kv_blocks is {fit.kv_blocks}; "
                + (f"{lower}, or {raise_to}" if shorter else raise_to)
            )
        return DoesNotFit(f"num_kv_blocks {fit.kv_blocks} does not fit: {left}; lower --num-kv-blocks{trees}")
    return DoesNotFit(f"{what}, but {left}, of which at most {KV_PERCENT_LIMIT}% may hold KV; {lower}")
