"""The scheduler's part of a resolved config."""

from __future__ import annotations

from headrace.core.policy import Batching, Order, SchedulerConfig, Victim
from headrace.plan.resolved import ResolvedConfig


def scheduler_config(
    resolved: ResolvedConfig, vocab_size: int, eos_ids: frozenset[int] = frozenset()
) -> SchedulerConfig:
    """The settings of an engine's scheduler; `eos_ids` end a sequence."""
    return SchedulerConfig(
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        vocab_size=vocab_size,
        eos_ids=eos_ids,
        batching=Batching(resolved.batching),
        batch_size=resolved.batch_size,
        batch_wait_s=resolved.batch_wait_s,
        batch_max_tokens=resolved.batch_max_tokens,
        order=Order(resolved.scheduling_policy),
        victim=Victim(resolved.preemption_victim),
        chunked_prefill=resolved.enable_chunked_prefill,
        kv_cache=resolved.kv_cache,
        max_draft=resolved.num_speculative_tokens,
        seed=resolved.seed,
        max_logprobs=resolved.max_logprobs,
        eviction=resolved.eviction,
    )
