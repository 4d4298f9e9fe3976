"""Lengths, batches and blocks of an engine, and what sequences evict. They raise ConfigError where sizes do not go
together; each leaves its reason in `reasons`."""

from __future__ import annotations

from headrace.config import EVICTION_SIZES, EngineConfig
from headrace.config_resolve.defaults import ASKED, RECOMPUTE_TOKENS, STATE_INTERVAL, Defaults
from headrace.core.eviction import Eviction
from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.plan.eviction import check_eviction, choose_sizes
from headrace.plan.fit import KV_PERCENT_LIMIT, Fit, too_small
from headrace.plan.kv import largest, streaming_spec
from headrace.program.recent import CODED_BLOCKS
from headrace.program.records import Program


def check_context(config: EngineConfig, spec: ModelSpec, streamed: ModelSpec) -> None:
    """Raise ConfigError where `max_model_len` is more than the model, or a stream, can have."""
    asked = config.max_model_len
    if asked is None or asked <= streamed.max_position:
        return
    if config.streaming:
        raise ConfigError(
            f"max_model_len {asked} is longer than a stream may be, {streamed.max_position} tokens"
        )
    raise ConfigError(
        f"max_model_len {asked} is longer than the model's context of {spec.max_position} tokens; "
        "lower --max-model-len, or stream with --attention-sinks and --sliding-window"
    )


def num_seqs(config: EngineConfig, defaults: Defaults, reasons: dict[str, str]) -> int:
    """The most sequences in one step."""
    if config.max_num_seqs is not None:
        reasons["max_num_seqs"] = ASKED
        return config.max_num_seqs
    seqs, reason = defaults.max_num_seqs, "the default for this kind of device"
    if config.batch_size is not None and config.batch_size > seqs:
        seqs, reason = config.batch_size, "a whole batch, batch_size"
    if config.max_num_batched_tokens is not None and config.max_num_batched_tokens < seqs:
        seqs, reason = config.max_num_batched_tokens, "a step of max_num_batched_tokens has no room for more"
    reasons["max_num_seqs"] = reason
    return seqs


def default_tokens(config: EngineConfig, spec: ModelSpec, seqs: int, defaults: Defaults) -> int:
    """Tokens of a step where `max_num_batched_tokens` is open."""
    if config.kv_cache:
        return defaults.max_num_batched_tokens
    return min(RECOMPUTE_TOKENS, seqs * spec.max_position)


def choose_length(
    config: EngineConfig, spec: ModelSpec, fit: Fit, percent: int, reasons: dict[str, str]
) -> tuple[int, tuple[int, ...]]:
    """The longest sequence, and the blocks of each KV group. `spec` is the model without streaming."""
    asked, steps = config.max_model_len, config.max_num_batched_tokens
    if asked is not None:
        if fit.whole_prompts and steps is not None and steps < asked:
            raise ConfigError(
                f"max_num_batched_tokens {steps} is less than max_model_len {asked}, but {why_whole(config)}"
            )
        counts = fit.counts(asked, percent) or fit.counts(asked, KV_PERCENT_LIMIT)
        if counts is None:
            raise too_small(fit, asked)
        reasons["max_model_len"] = ASKED
        return asked, counts
    most, reason = spec.max_position, "the model's context"
    if config.streaming and not fit.whole_prompts:  # or a step of a whole stream would take all the memory
        most, reason = (
            streaming_spec(spec, config.attention_sinks, config.sliding_window).max_position,
            "the longest stream, as no layer attends further back than its window",
        )
    if fit.whole_prompts and steps is not None and steps < most:
        most, reason = steps, f"max_num_batched_tokens, because {why_whole(config)}"
    if fit.counts(1, percent) is None:
        raise too_small(fit, 1)
    length = largest(1, most, lambda tokens: fit.counts(tokens, percent) is not None)
    if length < most:
        reason = f"the longest sequence that the KV cache can hold; {reason} is {most}"
    counts = fit.counts(length, percent)
    assert counts is not None  # `largest` returns a length for which it holds
    reasons["max_model_len"] = reason
    return length, counts


def why_whole(config: EngineConfig) -> str:
    """Why a step takes whole prompts, or whole sequences."""
    if not config.kv_cache:
        return "without a KV cache every step takes the whole sequence"
    return "without chunked prefill one step takes the whole prompt"


def step_budget(config: EngineConfig, reasons: dict[str, str]) -> float | str:
    """Seconds that a step may take while others decode, "auto" or "off"."""
    budget = config.step_time_budget
    if budget == "off":
        reasons["step_time_budget"] = (
            "steps depend on no clock, so that equal runs have equal schedules; `headrace serve` takes auto"
        )
    elif not config.enable_chunked_prefill:
        budget = "off"
        reasons["step_time_budget"] = "off: prompts are not cut into chunks"
    elif budget == "auto":
        reasons["step_time_budget"] = (
            "prompts are cut so that streams wait for them at most about twice as long as for each other, and longer "
            "where prompts queue"
        )
    else:
        reasons["step_time_budget"] = ASKED
    return budget


def state_interval(config: EngineConfig, program: Program, reasons: dict[str, str]) -> int | None:
    """Tokens between the recurrent states that are kept; None for a model without such states."""
    if all(layout.state is None for layout in program.kv):
        reasons["state_interval"] = "the model has no recurrent layers"
        return None
    if not config.enable_prefix_caching:
        reasons["state_interval"] = "states are kept for the prefix cache, which is off"
        return None
    reasons["state_interval"] = (
        "a prompt that diverges computes at most so many tokens twice, and a state takes as much memory as many tokens"
        if config.state_interval is None
        else ASKED
    )
    return config.state_interval or STATE_INTERVAL


def check_coded_blocks(config: EngineConfig, kv_dtype: str, block_size: int) -> None:
    """Raise ConfigError where blocks are too large, or not whole panels of keys, to be coded one by one."""
    if kv_dtype != CODED_BLOCKS:
        return
    if config.kv_layout == "contiguous":
        raise ConfigError(
            f"kv_cache_dtype {kv_dtype} needs --kv-layout paged: it codes a block when it is complete"
        )
    if block_size not in (16, 32, 64):
        raise ConfigError(
            f"kv_cache_dtype {kv_dtype} needs a block_size of 16, 32 or 64, and it is {block_size}"
        )


_EVICTION_REASONS = {
    "kv_eviction_budget": "the default",
    "kv_eviction_window": "as in SnapKV (Li et al. 2024), but no more than a quarter of the budget",
    "kv_eviction_sinks": "the first tokens get attention from everywhere (Xiao et al. 2023)",
    "kv_eviction_recent": "the tokens whose queries decide",
    "kv_eviction_interval": "a quarter of the budget: the cache is chosen again before it is much larger",
}


def choose_eviction(
    config: EngineConfig, spec: ModelSpec, native: bool, reasons: dict[str, str]
) -> Eviction | None:
    """What sequences evict. Raises ConfigError where the model cannot, or the sizes do not go together."""
    on = config.kv_eviction != "off"
    for name, reason in _EVICTION_REASONS.items():
        asked = getattr(config, name) is not None
        reasons[name] = ASKED if asked else reason if on else "nothing is evicted"
    if not on:
        return None
    check_eviction(spec, native=native)
    return choose_sizes(*(getattr(config, name) for name in EVICTION_SIZES))
