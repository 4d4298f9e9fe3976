"""Resolve open options, each with a reason: EngineConfig, model and machine -> ResolvedConfig."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from headrace.config import EVICTION_SIZES, EngineConfig
from headrace.core.eviction import Eviction
from headrace.errors import ConfigError
from headrace.models.draft_layers import DraftLayers
from headrace.models.families import weight_names
from headrace.models.spec import ModelSpec
from headrace.plan.draft_methods import DEFAULT_NODES, DEFAULT_TOKENS, MOST_NODES, draft_model_name
from headrace.plan.drafts import DraftHeads, DraftModel, check_draft, draft_program
from headrace.plan.dtypes import DtypeInfo, choose_dtype, dtype_info
from headrace.plan.eviction import check_eviction, choose_sizes
from headrace.plan.fit import KV_PERCENT_LIMIT, Fit, check_memory, too_small
from headrace.plan.formats import memory_format
from headrace.plan.hardware import DeviceKind, Machine
from headrace.plan.kernels import choose_kernels, choose_kv_dtype
from headrace.plan.kv import kv_groups, largest, pool_bytes, streaming_spec, useful_bytes
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.units import GIB, format_bytes
from headrace.plan.weight_formats import CODE_ACTIVATIONS, describe_formats, stored_type
from headrace.program.lower import lower
from headrace.program.recent import CODED_BLOCKS, with_recent
from headrace.program.records import Program
from headrace.quant.format import ACTIVATION_NAMES, WeightFormats

ASKED = "asked for"


@dataclass(frozen=True, slots=True)
class _Defaults:
    """Choices by kind of device. KV takes `kv_percent` of the free memory, at most `kv_most` bytes."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_percent: int
    kv_most: int | None


_DEFAULTS: dict[DeviceKind, _Defaults] = {
    "cpu": _Defaults(max_num_seqs=64, max_num_batched_tokens=512, kv_percent=50, kv_most=4 * GIB),
    "cuda": _Defaults(max_num_seqs=256, max_num_batched_tokens=2048, kv_percent=90, kv_most=None),
}
_BLOCK_SIZE, _NATIVE_BLOCK_SIZE = 16, 32
_STATE_INTERVAL = 512
_RECOMPUTE_TOKENS = 4096  # a step without a KV cache takes whole sequences
_BATCH_SIZE, _BATCH_WAIT_S, _BATCH_MAX_TOKENS = 8, 0.05, 8192

# Options that pass through unchanged, with the reason for their default.
_PASSED: dict[str, str] = {
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


def resolve(
    config: EngineConfig,
    spec: ModelSpec,
    machine: Machine,
    dtypes: DtypeInfo | None = None,
    *,
    mapped: bool = False,
    draft: ModelSpec | None = None,
    heads: DraftHeads | None = None,
    layers: DraftLayers | None = None,
) -> ResolvedConfig:
    """Resolve every open option. A pure function of its arguments; `dtypes` None: by the machine's CPU flags.

    draft: the model that `config.speculative` names, where it names one; heads, layers: the same for heads of this
    model, and for layers that read its states.

    mapped: weights lie in a packed folder, and may be larger than memory.

    Weights, activations and KV pools together stay within `machine.memory_available`, and the pools hold at
    least one sequence of max_model_len tokens. Raises ConfigError if that or an option is impossible.
    """
    reasons = {name: reason if _is_default(config, name) else ASKED for name, reason in _PASSED.items()}
    device = _device(config, machine, reasons)
    dtype, reasons["dtype"] = choose_dtype(
        config.dtype,
        spec.checkpoint_dtype,
        dtypes or dtype_info(machine, config.ops_force),
        ASKED,
        quantized=config.quantization is not None or spec.codes is not None,
    )
    streamed = streaming_spec(spec, config.attention_sinks, config.sliding_window)
    program = lower(streamed, weight_names(spec))
    kernels = choose_kernels(spec, program, machine, dtype, config.quantization, config.ops_force)
    native, reasons["kernels"] = kernels.name is not None, kernels.reason
    reasons["weight_formats"] = _why_formats(config, spec, kernels.weights)
    reasons["quantization"] = _why_quantization(config, spec, kernels.weights)
    stored, reasons["weights_dtype"] = stored_type(spec, dtype, native=native)
    kv_dtype, reasons["kv_cache_dtype"] = choose_kv_dtype(config.kv_cache_dtype, dtype, native, ASKED)
    program = with_recent(program, kv_dtype)
    _check_context(config, spec, streamed)
    eviction = _eviction(config, spec, native, reasons)
    drafts = _num_drafts(config, reasons)
    if heads is not None and config.speculative_quantization is not None:
        raise ConfigError(
            f"speculative_quantization has no meaning for {heads.name}: heads are not quantised"
        )
    drafter = None
    defaults = _DEFAULTS[device]
    seqs = _num_seqs(config, defaults, reasons)
    threads = config.num_threads or machine.cores
    if layers is not None:
        drafter = _draft_model(config, layers.spec, layers, machine, dtype, kv_dtype, native, threads)
    elif draft is not None:
        check_draft(draft, spec, draft_model_name(config.speculative) or "")
        _check_draft_context(config, draft)
        drafter = _draft_model(config, draft, None, machine, dtype, kv_dtype, native, threads)
        if config.streaming is False:
            spec = replace(spec, max_position=min(spec.max_position, draft.max_position))
    reasons["speculative_quantization"] = (
        "no model drafts" if drafter is None else _why_draft(config, drafter)
    )
    default_block = _NATIVE_BLOCK_SIZE if native else _BLOCK_SIZE
    _check_coded_blocks(config, kv_dtype, config.block_size or default_block)
    fit = Fit(
        program=program,
        memory=machine.memory_available,
        stored=memory_format(
            dtype, kv_dtype, kernels.weights, threads, stored, tiled=config.ops_force != "reference"
        ),
        max_num_seqs=seqs,
        block_size=None if config.kv_layout == "contiguous" else config.block_size or default_block,
        batched_tokens=config.max_num_batched_tokens,
        default_tokens=_default_tokens(config, spec, seqs, defaults),
        whole_prompts=not (config.enable_chunked_prefill and config.kv_cache),
        kv_bytes=config.kv_cache_bytes,
        kv_blocks=config.num_kv_blocks,
        kv_default_most=defaults.kv_most,
        state_interval=_state_interval(config, program, reasons),
        mapped=mapped,
        drafts=drafts,
        draft=drafter,
        heads=heads,
        eviction=eviction,
    )
    fit = _with_trees(config, fit, reasons)
    check_memory(fit)
    weights_from, reasons["weights_from"] = _weights_from(fit)
    length, counts = _length(config, spec, fit, defaults.kv_percent, reasons)
    demands = fit.demands(length)
    groups = kv_groups(demands, counts, fit.scratch(length))
    pool = pool_bytes(demands, counts)
    _explain_step(config, fit, length, defaults, reasons)
    _explain_block(config, fit, native, reasons)
    _explain_kv(config, fit, length, defaults, reasons)
    _explain_switches(config, reasons)
    if eviction is not None and eviction.budget < length and fit.step_tokens(length) < fit.busy_tokens:
        raise ConfigError(
            f"kv_eviction_window {eviction.window}: these queries are computed in one step, which takes at most "
            f"{fit.step_tokens(length)} tokens, and one of each other sequence; lower it or --max-num-seqs "
            f"{fit.max_num_seqs}, or raise --max-num-batched-tokens to {fit.busy_tokens}"
        )
    chunked = config.enable_chunked_prefill and config.kv_cache
    prefix = config.enable_prefix_caching and config.kv_cache and config.kv_layout == "paged"
    passed: dict[str, Any] = {name: getattr(config, name) for name in _PASSED}
    return ResolvedConfig(
        **passed,
        kv_eviction_budget=None if eviction is None else eviction.budget,
        kv_eviction_window=None if eviction is None else eviction.window,
        kv_eviction_sinks=None if eviction is None else eviction.sinks,
        kv_eviction_recent=None if eviction is None else eviction.recent,
        kv_eviction_interval=None if eviction is None else eviction.interval,
        num_speculative_tokens=drafts,
        speculative_tree_nodes=fit.tree_nodes,
        speculative_quantization=None if drafter is None else drafter.quantization,
        draft_model=drafter,
        draft_heads=heads,
        device=device,
        dtype=dtype,
        weights_dtype=stored,
        weight_formats=kernels.weights,
        weights_from=weights_from,
        kv_cache_dtype=kv_dtype,
        max_model_len=length,
        max_num_seqs=fit.max_num_seqs,
        max_num_batched_tokens=fit.step_tokens(length),
        step_time_budget=_step_budget(config, reasons),
        block_size=groups[0].block_size,
        state_interval=next((group.interval for group in groups if group.is_state), None),
        kv_cache_memory=pool,
        num_kv_blocks=max(counts),
        kv_groups=groups,
        enable_prefix_caching=prefix,
        enable_chunked_prefill=chunked,
        batch_size=config.batch_size or min(_BATCH_SIZE, fit.max_num_seqs),
        batch_wait_s=_BATCH_WAIT_S if config.batch_wait_s is None else config.batch_wait_s,
        batch_max_tokens=config.batch_max_tokens or _BATCH_MAX_TOKENS,
        num_threads=threads,
        kernels=kernels.name,
        reasons=tuple(sorted(reasons.items())),
    )


def _check_coded_blocks(config: EngineConfig, kv_dtype: str, block_size: int) -> None:
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


def _eviction(
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


def _num_drafts(config: EngineConfig, reasons: dict[str, str]) -> int:
    if config.speculative is None:
        reasons["num_speculative_tokens"] = "nothing is drafted"
        return 0
    reasons["num_speculative_tokens"] = "more are rarely all accepted"
    if config.num_speculative_tokens is None:
        return DEFAULT_TOKENS
    reasons["num_speculative_tokens"] = ASKED
    return config.num_speculative_tokens


def _with_trees(config: EngineConfig, fit: Fit, reasons: dict[str, str]) -> Fit:
    """With the size of the trees that are drafted. Raises ConfigError where they cannot be what was asked for."""
    asked, known = config.speculative_tree_nodes, 0 if fit.heads is None else fit.heads.nodes
    layers = fit.draft is not None and fit.draft.layers is not None
    if layers:
        known = MOST_NODES
    least = fit.step_tokens(1) - 1
    why = ""
    if not known:
        why = "only heads with a tree, and layers on the model's states, draft trees"
    elif layers and config.acceptance == "rejection":  # trees keep likely drafts
        why = "rejection sampling needs drafts that are taken whatever their probability is"
    elif any(layout.state is not None for layout in fit.program.kv):
        why = "a recurrent state follows one chain of tokens"
    elif fit.block_size is None:
        why = "in the contiguous layout each branch of a tree would need the memory of a sequence"
    if asked and why:
        raise ConfigError(f"speculative_tree_nodes {asked}: {why}")
    if asked and asked > least:
        raise ConfigError(
            f"speculative_tree_nodes {asked}: a tree and the token before it are verified in one step, which takes at "
            f"most {least + 1} tokens; lower it, or raise --max-num-batched-tokens"
        )
    reasons["speculative_tree_nodes"] = why or "more are rarely worth what verifying them costs"
    if asked is not None:
        reasons["speculative_tree_nodes"] = ASKED
    nodes = 0 if why else min(DEFAULT_NODES if asked is None else asked, known, least)
    return replace(fit, tree_nodes=nodes)


def _check_draft_context(config: EngineConfig, spec: ModelSpec) -> None:
    """Raise ConfigError where sequences may become too long for the model that drafts."""
    if config.max_model_len is not None and not config.streaming and config.max_model_len > spec.max_position:
        name = draft_model_name(config.speculative)
        raise ConfigError(
            f"max_model_len {config.max_model_len} is longer than the context of {name}, which is to draft: "
            f"{spec.max_position} tokens"
        )


def _draft_model(
    config: EngineConfig, spec: ModelSpec, layers: DraftLayers | None, machine: Machine, dtype: str, kv_dtype: str,
    native: bool, threads: int,
) -> DraftModel:  # fmt: skip
    """How a model that drafts is stored, or layers. Raises ConfigError where it cannot run beside the other one."""
    name = draft_model_name(config.speculative) or ""
    asked = config.speculative_quantization
    if asked is None and spec.codes is None and config.quantization not in ACTIVATION_NAMES:
        asked = config.quantization
    if not native and asked is not None:
        raise ConfigError(
            f"speculative_quantization {asked} needs the native CPU kernels, which do not serve here"
        )
    streamed = streaming_spec(spec, config.attention_sinks, config.sliding_window)
    layers = None if layers is None else replace(layers, spec=streamed)
    program = draft_program(streamed, layers, kv_dtype)
    choice = choose_kernels(spec, program, machine, dtype, asked, config.ops_force)
    if (choice.name is not None) != native:
        raise ConfigError(f"{name} cannot draft here: {choice.reason}")
    stored, _ = stored_type(spec, dtype, native=native)
    memory = memory_format(
        dtype, kv_dtype, choice.weights, threads, stored, tiled=config.ops_force != "reference"
    )
    return DraftModel(name, streamed, program, memory, asked, stored, choice.weights, layers)


def _why_draft(config: EngineConfig, draft: DraftModel) -> str:
    kind = draft.weights_dtype if draft.weight_formats is None else draft.weight_formats.main.name
    why = "as the model, or as its checkpoint is" if config.speculative_quantization is None else ASKED
    return f"{why}; the draft model's weights take {format_bytes(draft.weight_bytes)} in {kind}"


def _why_formats(config: EngineConfig, spec: ModelSpec, formats: WeightFormats | None) -> str:
    method = None if spec.codes is None else spec.codes.method
    if formats is None:
        return "plain tensors in the compute type" + (
            "" if method is None else f", decoded from those of {method}"
        )
    if config.quantization is not None and not formats.others:
        return ASKED
    return describe_formats(formats, method)


def _why_quantization(config: EngineConfig, spec: ModelSpec, formats: WeightFormats | None) -> str:
    if spec.codes is None or formats is None or config.quantization not in (None, *ACTIVATION_NAMES):
        return _PASSED["quantization"] if config.quantization is None else ASKED
    usual = spec.codes.activations or CODE_ACTIVATIONS
    default = next(name for name, kind in ACTIVATION_NAMES.items() if kind == usual)
    bits = (config.quantization or default)[1:]
    kept = f"the checkpoint's codes ({spec.codes.method}) meet activations in {bits} bits"
    if config.quantization is None:
        return kept
    return f"{ASKED}: {kept}" + (", as they do by default" if config.quantization == default else "")


_FIELD_DEFAULTS = {entry.name: entry.default for entry in fields(EngineConfig)}


def _weights_from(fit: Fit) -> tuple[Literal["memory", "file", "disk"], str]:
    if not fit.mapped:
        return "memory", "loaded at start; `headrace pack` writes a folder that is mapped instead"
    if fit.weight_bytes <= fit.resident_bytes:
        return "file", "mapped from the packed folder, and shared by all processes that run it"
    room = f"{format_bytes(fit.resident_bytes)} of {format_bytes(fit.weight_bytes)}"
    return (
        "disk",
        f"memory has room for {room} of weights: the rest is read from the packed folder again in every step, which is "
        "as slow as the disk",
    )


def _is_default(config: EngineConfig, name: str) -> bool:
    return bool(getattr(config, name) == _FIELD_DEFAULTS[name])


def _device(config: EngineConfig, machine: Machine, reasons: dict[str, str]) -> DeviceKind:
    if config.device not in ("auto", machine.kind):
        if machine.kind == "cpu":
            raise ConfigError(f"device {config.device}: this version runs models on CPUs only")
        raise ConfigError(f"device {config.device}: the machine to plan for is a GPU, {machine.name}")
    reasons["device"] = f"the machine is {machine.name}" if config.device == "auto" else ASKED
    return machine.kind


def _check_context(config: EngineConfig, spec: ModelSpec, streamed: ModelSpec) -> None:
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


def _num_seqs(config: EngineConfig, defaults: _Defaults, reasons: dict[str, str]) -> int:
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


def _default_tokens(config: EngineConfig, spec: ModelSpec, seqs: int, defaults: _Defaults) -> int:
    if config.kv_cache:
        return defaults.max_num_batched_tokens
    return min(_RECOMPUTE_TOKENS, seqs * spec.max_position)


def _length(
    config: EngineConfig, spec: ModelSpec, fit: Fit, percent: int, reasons: dict[str, str]
) -> tuple[int, tuple[int, ...]]:
    """The longest sequence, and the blocks of each KV group. `spec` is the model without streaming."""
    asked, steps = config.max_model_len, config.max_num_batched_tokens
    if asked is not None:
        if fit.whole_prompts and steps is not None and steps < asked:
            raise ConfigError(
                f"max_num_batched_tokens {steps} is less than max_model_len {asked}, but {_whole(config)}"
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
        most, reason = steps, f"max_num_batched_tokens, because {_whole(config)}"
    if fit.counts(1, percent) is None:
        raise too_small(fit, 1)
    length = largest(1, most, lambda tokens: fit.counts(tokens, percent) is not None)
    if length < most:
        reason = f"the longest sequence that the KV cache can hold; {reason} is {most}"
    counts = fit.counts(length, percent)
    assert counts is not None  # `largest` returns a length for which it holds
    reasons["max_model_len"] = reason
    return length, counts


def _whole(config: EngineConfig) -> str:
    if not config.kv_cache:
        return "without a KV cache every step takes the whole sequence"
    return "without chunked prefill one step takes the whole prompt"


def _explain_step(
    config: EngineConfig, fit: Fit, length: int, defaults: _Defaults, reasons: dict[str, str]
) -> None:
    tokens = fit.step_tokens(length)
    if config.max_num_batched_tokens is not None:
        reason = ASKED
    elif fit.whole_prompts and tokens == length:
        reason = f"max_model_len, because {_whole(config)}"
    elif not config.kv_cache:
        reason = f"room for whole sequences, because {_whole(config)}"
    elif tokens > defaults.max_num_batched_tokens:
        reason = "one token for each of max_num_seqs sequences"
        if fit.eviction is not None:
            reason += ", and kv_eviction_window of one of them"
    else:
        reason = (
            "enough rows to keep the matrix units busy, few enough that decoding waits little for a prefill"
        )
    reasons["max_num_batched_tokens"] = reason


def _step_budget(config: EngineConfig, reasons: dict[str, str]) -> float | str:
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


def _state_interval(config: EngineConfig, program: Program, reasons: dict[str, str]) -> int | None:
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
    return config.state_interval or _STATE_INTERVAL


def _explain_block(config: EngineConfig, fit: Fit, native: bool, reasons: dict[str, str]) -> None:
    if fit.block_size is None:
        reasons["block_size"] = "max_model_len, the contiguous layout"
    elif config.block_size is not None:
        reasons["block_size"] = ASKED
    elif native:
        reasons["block_size"] = "as many keys as one step of a matrix unit multiplies"
    else:
        reasons["block_size"] = "wastes half a block a sequence on average, and keeps block tables short"


def _explain_kv(
    config: EngineConfig, fit: Fit, length: int, defaults: _Defaults, reasons: dict[str, str]
) -> None:
    useful = useful_bytes(fit.demands(length))
    share = fit.free(length) * defaults.kv_percent // 100
    if fit.kv_bytes is not None:
        reason = f"whole blocks within the {format_bytes(fit.kv_bytes)} asked for"
        if useful <= fit.kv_bytes:
            reason = f"all that max_num_seqs sequences can use of the {format_bytes(fit.kv_bytes)} asked for"
    elif fit.kv_blocks is not None:
        reason = "num_kv_blocks blocks, as asked for"
    elif useful <= share and (fit.kv_default_most is None or useful <= fit.kv_default_most):
        reason = "what max_num_seqs sequences of max_model_len tokens can use at most"
    elif fit.needed(length) > share:
        reason = "one sequence of max_model_len tokens"
    elif fit.kv_default_most is not None and fit.kv_default_most < share:
        reason = (
            f"{format_bytes(fit.kv_default_most)}, or one sequence of max_model_len tokens if that is more"
        )
    else:
        free = format_bytes(fit.free(length))
        reason = f"{defaults.kv_percent}% of the {free} that weights and activations leave"
    reasons["kv_cache_memory"] = reason
    reasons["num_kv_blocks"] = ASKED if fit.kv_blocks is not None else "as many as kv_cache_memory holds"
    reasons["kv_groups"] = (
        "one pool for the layers of one KV shape; windows get what their sequences can hold"
    )
    if any(layout.recent for layout in fit.program.kv):
        reasons["kv_groups"] += "; a second one, in bfloat16, keeps of each sequence the blocks it is writing"


def _explain_switches(config: EngineConfig, reasons: dict[str, str]) -> None:
    chunked = "a long prompt is computed between the tokens of others"
    prefix = "what prompts have in common is computed once"
    if not config.kv_cache:
        chunked = prefix = f"off: {_whole(config)}"
    elif config.kv_layout == "contiguous":
        prefix = "off: a prefix is shared in whole blocks, and a contiguous block is a whole sequence"
    reasons["enable_chunked_prefill"] = chunked if config.enable_chunked_prefill else ASKED
    reasons["enable_prefix_caching"] = prefix if config.enable_prefix_caching else ASKED
    unused = {"continuous": "not used by continuous batching", "static": "not used by static batching"}
    for name in ("batch_size", "batch_wait_s", "batch_max_tokens"):
        reason = "the default" if name == "batch_size" and config.batching == "static" else None
        reason = reason or unused.get(config.batching, "the default")
        reasons[name] = reason if getattr(config, name) is None else ASKED
    reasons["num_threads"] = ASKED if config.num_threads else "every core that this process may use"
