"""Defaults of engine options by kind of device, and why options that pass through unchanged have theirs."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.config import EngineConfig
from headrace.plan.hardware import DeviceKind
from headrace.plan.units import GIB

ASKED = "asked for"


@dataclass(frozen=True, slots=True)
class Defaults:
    """Choices by kind of device. KV takes `kv_percent` of the free memory, at most `kv_most` bytes."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_percent: int
    kv_most: int | None


DEFAULTS: dict[DeviceKind, Defaults] = {
    "cpu": Defaults(max_num_seqs=64, max_num_batched_tokens=512, kv_percent=50, kv_most=4 * GIB),
    "cuda": Defaults(max_num_seqs=256, max_num_batched_tokens=2048, kv_percent=90, kv_most=None),
}
BLOCK_SIZE, NATIVE_BLOCK_SIZE = 16, 32
STATE_INTERVAL = 512
RECOMPUTE_TOKENS = 4096  # a step without a KV cache takes whole sequences
BATCH_SIZE, BATCH_WAIT_S, BATCH_MAX_TOKENS = 8, 0.05, 8192

# Options that pass through unchanged, with the reason for their default.
PASSED: dict[str, str] = {
    "model": ASKED,
    "kv_layout": "paged blocks waste less than one block a sequence (Kwon et al. 2023)",
    "kv_cache": "computing keys and values once is always faster than computing them again",
    "batching": "requests join at every step, so none waits for a batch to end (Yu et al. 2022)",
    "scheduling_policy": "first come, first served",
    "preemption_victim": "the sequence that would be served last is preempted first",
    "attention_sinks": "none beyond what the model says",
    "sliding_window": "none beyond what the model says",
    "kv_eviction": "sequences keep all of their tokens: answers are exact",
    "stream_interval_s": "every token is sent as it comes",
    "max_logprobs": "the most that OpenAI's API allows for, and vLLM by default",
    "seed": "fixed, so that two runs give the same tokens",
    "pin_threads": "the system assigns threads to cores",
    "tokenizer": "the model's own",
    "revision": "the hub's main branch",
    "download_dir": "the hub's cache",
    "hf_overrides": "config.json as it is",
    "generation_config": "sampling defaults are those that the model's authors recommend, as in vLLM",
    "override_generation_config": "generation_config.json as it is",
    "ops_force": "every op takes its first candidate that accepts",
    "load_format": "chosen by the files in the model's folder",
    "quantization": "weights keep the bits that the compute type has",
    "speculative": "nothing is drafted: each step gives a sequence one token",
    "adaptive_speculation": "as many tokens are drafted as pay, by measured acceptance and cost",
    "acceptance": "drafts never change an answer",
    "tensor_parallel_size": "one device; more are not available in this version",
}

ACCEPTANCE = {
    "exact": PASSED["acceptance"],
    "rejection": f"{ASKED}: answers have the same distribution, but tokens of a seed depend on drafts",
    "typical": f"{ASKED}: it is not lossless, likely drafts come too often",
}

_FIELD_DEFAULTS = {entry.name: entry.default for entry in fields(EngineConfig)}


def is_default(config: EngineConfig, name: str) -> bool:
    return bool(getattr(config, name) == _FIELD_DEFAULTS[name])
