"""Every engine setting with its final value and the reason for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from headrace.core.eviction import Eviction
from headrace.core.types import KVGroupSpec
from headrace.plan.draft_methods import branches
from headrace.plan.drafts import DraftHeads, DraftModel
from headrace.plan.eviction import choose_sizes
from headrace.plan.formats import MemoryFormat, memory_format
from headrace.plan.hardware import DeviceKind
from headrace.quant.format import WeightFormat, WeightFormats

_NOT_SETTINGS = ("reasons", "draft_model", "draft_heads")


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """What `config_resolve.resolve` decided; no setting is None or "auto" any more. Meanings as in EngineConfig.

    kv_cache_memory: bytes of all KV pools together; num_kv_blocks: blocks of the largest of them.
    weights_dtype: embeddings, and matrices that are not quantised, as stored in memory.
    weights_from: "memory": copied into this process; "file": a packed folder, mapped and shared; "disk": the same,
    with more weights than memory has room for, so that pages are read again in every step.
    step_time_budget: seconds, "auto" or "off".
    kernels: instruction set of the native kernels that run the model, None where torch does.
    quantization: as `quant.format.WeightFormat.name`, or one of `quant.format.ACTIVATION_NAMES`.
    weight_formats: how the native kernels' matrices are packed; None where torch runs on plain tensors.
    kv_groups: a pool for each of the `kv_shapes` of `streaming_spec(spec, attention_sinks, sliding_window)`, then one
    for each of the draft model's.
    num_speculative_tokens: most tokens that are drafted for a sequence one after the other, 0 where nothing is drafted.
    speculative_tree_nodes: most tokens of a tree of drafts, 0 where drafts are chains.
    reasons: (setting, reason) pairs, in order of the setting's name.
    """

    model: str
    device: DeviceKind
    dtype: str
    weights_dtype: str
    weight_formats: WeightFormats | None
    weights_from: Literal["memory", "file", "disk"]
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    step_time_budget: float | str
    kv_layout: str
    block_size: int
    state_interval: int | None
    kv_cache_memory: int
    num_kv_blocks: int
    kv_groups: tuple[KVGroupSpec, ...]
    kv_cache: bool
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    attention_sinks: int | None
    sliding_window: int | None
    kv_eviction: str
    kv_eviction_budget: int | None
    kv_eviction_window: int | None
    kv_eviction_sinks: int | None
    kv_eviction_recent: int | None
    kv_eviction_interval: int | None
    batching: str
    batch_size: int
    batch_wait_s: float
    batch_max_tokens: int
    scheduling_policy: str
    preemption_victim: str
    seed: int
    num_threads: int
    stream_interval_s: float
    max_logprobs: int
    pin_threads: bool
    tokenizer: str | None
    revision: str | None
    download_dir: str | None
    hf_overrides: Mapping[str, Any] | None
    generation_config: str
    override_generation_config: Mapping[str, Any] | None
    ops_force: str | None
    kernels: str | None
    load_format: str
    quantization: str | None
    speculative: str | None
    num_speculative_tokens: int
    speculative_tree_nodes: int
    speculative_quantization: str | None
    adaptive_speculation: bool
    acceptance: str
    tensor_parallel_size: int
    reasons: tuple[tuple[str, str], ...] = field(repr=False)
    draft_model: DraftModel | None = field(default=None, repr=False)
    draft_heads: DraftHeads | None = field(default=None, repr=False)

    @property
    def weight_format(self) -> WeightFormat | None:
        """The one of `weight_formats` that represents the model."""
        return None if self.weight_formats is None else self.weight_formats.main

    @property
    def eviction(self) -> Eviction | None:
        """What sequences evict; None where they keep everything, also because none is longer than the budget."""
        sizes = (
            self.kv_eviction_budget, self.kv_eviction_window, self.kv_eviction_sinks, self.kv_eviction_recent,
            self.kv_eviction_interval,
        )  # fmt: skip
        if self.kv_eviction == "off":
            return None
        chosen = choose_sizes(*sizes)
        return chosen if chosen.budget < self.max_model_len else None

    @property
    def tree_branches(self) -> int:
        """The most branches of trees of drafts in one step, beside their main chains."""
        return branches(self.speculative_tree_nodes)

    @property
    def most_segments(self) -> int:
        """The most sequences of the model's batch: a branch counts as one."""
        return self.max_num_seqs + self.tree_branches

    @property
    def num_draft_groups(self) -> int:
        """How many of the KV groups, the last ones, are the draft model's."""
        return 0 if self.draft_model is None else len(self.draft_model.program.kv)

    @property
    def memory_format(self) -> MemoryFormat:
        """How weights, KV and activations are stored in memory."""
        return memory_format(
            self.dtype, self.kv_cache_dtype, self.weight_formats, self.num_threads, self.weights_dtype,
            tiled=self.ops_force != "reference",
        )  # fmt: skip

    def explain(self) -> list[tuple[str, object, str]]:
        """(name, value, reason) of every setting, each once, in the order above."""
        reasons = dict(self.reasons)
        names = [entry.name for entry in fields(self) if entry.name not in _NOT_SETTINGS]
        return [(name, getattr(self, name), reasons[name]) for name in names]
