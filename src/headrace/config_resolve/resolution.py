"""Resolves open options, each with a reason: EngineConfig, model and machine -> ResolvedConfig."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.config import EngineConfig
from headrace.config_resolve.defaults import (
    ACCEPTANCE,
    ASKED,
    BATCH_MAX_TOKENS,
    BATCH_SIZE,
    BATCH_WAIT_S,
    BLOCK_SIZE,
    DEFAULTS,
    NATIVE_BLOCK_SIZE,
    PASSED,
    is_default,
)
from headrace.config_resolve.drafts import check_draft_context, draft_model, num_drafts, why_draft, with_trees
from headrace.config_resolve.reasons import (
    explain_block,
    explain_kv,
    explain_step,
    explain_switches,
    where_weights_lie,
    why_formats,
    why_quantization,
)
from headrace.config_resolve.sizes import (
    check_coded_blocks,
    check_context,
    choose_eviction,
    choose_length,
    default_tokens,
    num_seqs,
    state_interval,
    step_budget,
)
from headrace.errors import ConfigError
from headrace.models.draft_layers import DraftLayers
from headrace.models.families import weight_names
from headrace.models.spec import ModelSpec
from headrace.plan.draft_methods import draft_model_name
from headrace.plan.drafts import DraftHeads, check_draft
from headrace.plan.dtypes import DtypeInfo, automatic_kv_dtype, choose_dtype, dtype_info
from headrace.plan.fit import Fit, check_memory
from headrace.plan.formats import memory_format
from headrace.plan.hardware import DeviceKind, Machine
from headrace.plan.kernels import choose_kernels, choose_kv_dtype
from headrace.plan.kv import kv_groups, pool_bytes, streaming_spec
from headrace.plan.resolved import ResolvedConfig
from headrace.plan.weight_formats import stored_type
from headrace.program.lower import lower
from headrace.program.recent import with_recent


def resolve(
    config: EngineConfig,
    spec: ModelSpec,
    machine: Machine,
    dtypes: DtypeInfo | None = None,
    *,
    mapped: bool = False,
    packed_kv: str | None = None,
    draft: ModelSpec | None = None,
    heads: DraftHeads | None = None,
    layers: DraftLayers | None = None,
) -> ResolvedConfig:
    """Resolve every open option. A pure function of its arguments; `dtypes` None: by the machine's CPU flags.

    draft: the model that `config.speculative` names, where it names one; heads, layers: the same for heads of this
    model, and for layers that read its states.

    mapped: weights lie in a packed folder, and may be larger than memory. packed_kv: the type of keys and values
    that such a folder names.

    Weights, activations and KV pools together stay within `machine.memory_available`, and the pools hold at
    least one sequence of max_model_len tokens. Raises ConfigError if that or an option is impossible.
    """
    reasons = {name: reason if is_default(config, name) else ASKED for name, reason in PASSED.items()}
    reasons["acceptance"] = ACCEPTANCE[config.acceptance]
    device = choose_device(config, machine, reasons)
    quantized = config.quantization is not None or spec.codes is not None

    def dtype_in(info: DtypeInfo) -> tuple[str, str]:
        return choose_dtype(config.dtype, spec.checkpoint_dtype, info, ASKED, quantized=quantized)

    dtype, reasons["dtype"] = dtype_in(dtypes or dtype_info(machine, config.ops_force))
    streamed = streaming_spec(spec, config.attention_sinks, config.sliding_window)
    program = lower(streamed, weight_names(spec))
    kernels = choose_kernels(spec, program, machine, dtype, config.quantization, config.ops_force)
    if kernels.name is None and dtypes is None and config.ops_force is None:
        # Torch may compute in another type than the kernels, which refuse this model.
        dtype, reasons["dtype"] = dtype_in(dtype_info(machine, "torch"))
        kernels = choose_kernels(spec, program, machine, dtype, config.quantization, None)
    native, reasons["kernels"] = kernels.name is not None, kernels.reason
    reasons["weight_formats"] = why_formats(config, spec, kernels.weights)
    reasons["quantization"] = why_quantization(config, spec, kernels.weights)
    stored, reasons["weights_dtype"] = stored_type(spec, dtype, native=native)
    automatic = automatic_kv_dtype(config.dtype, spec.checkpoint_dtype, dtype, quantized=quantized)
    if packed_kv is not None:
        automatic = packed_kv, "what the packed folder was made with"
    kv_dtype, reasons["kv_cache_dtype"] = choose_kv_dtype(
        config.kv_cache_dtype, dtype, native, ASKED, automatic
    )
    program = with_recent(program, kv_dtype)
    check_context(config, spec, streamed)
    eviction = choose_eviction(config, spec, native, reasons)
    drafts = num_drafts(config, reasons)
    if heads is not None and config.speculative_quantization is not None:
        raise ConfigError(
            f"speculative_quantization has no meaning for {heads.name}: heads are not quantised"
        )
    drafter = None
    defaults = DEFAULTS[device]
    seqs = num_seqs(config, defaults, reasons)
    threads = config.num_threads or machine.cores
    if layers is not None:
        drafter = draft_model(config, layers.spec, layers, machine, dtype, kv_dtype, native, threads)
    elif draft is not None:
        check_draft(draft, spec, draft_model_name(config.speculative) or "")
        check_draft_context(config, draft)
        drafter = draft_model(config, draft, None, machine, dtype, kv_dtype, native, threads)
        if config.streaming is False:
            spec = replace(spec, max_position=min(spec.max_position, draft.max_position))
    reasons["speculative_quantization"] = "no model drafts" if drafter is None else why_draft(config, drafter)
    default_block = NATIVE_BLOCK_SIZE if native else BLOCK_SIZE
    check_coded_blocks(config, kv_dtype, config.block_size or default_block)
    fit = Fit(
        program=program,
        memory=machine.memory_available,
        stored=memory_format(
            dtype, kv_dtype, kernels.weights, threads, stored, tiled=config.ops_force != "reference"
        ),
        max_num_seqs=seqs,
        block_size=None if config.kv_layout == "contiguous" else config.block_size or default_block,
        batched_tokens=config.max_num_batched_tokens,
        default_tokens=default_tokens(config, spec, seqs, defaults),
        whole_prompts=not (config.enable_chunked_prefill and config.kv_cache),
        kv_bytes=config.kv_cache_bytes,
        kv_blocks=config.num_kv_blocks,
        kv_default_most=defaults.kv_most,
        state_interval=state_interval(config, program, reasons),
        mapped=mapped,
        drafts=drafts,
        draft=drafter,
        heads=heads,
        eviction=eviction,
    )
    fit = with_trees(config, fit, reasons)
    check_memory(fit)
    weights_from, reasons["weights_from"] = where_weights_lie(fit)
    length, counts = choose_length(config, spec, fit, defaults.kv_percent, reasons)
    demands = fit.demands(length)
    groups = kv_groups(demands, counts, fit.scratch(length))
    pool = pool_bytes(demands, counts)
    explain_step(config, fit, length, defaults, reasons)
    explain_block(config, fit, native, reasons)
    explain_kv(config, fit, length, defaults, reasons)
    explain_switches(config, reasons)
    if eviction is not None and eviction.budget < length and fit.step_tokens(length) < fit.busy_tokens:
        raise ConfigError(
            f"kv_eviction_window {eviction.window}: these queries are computed in one step, which takes at most "
            f"{fit.step_tokens(length)} tokens, and one of each other sequence; lower it or --max-num-seqs "
            f"{fit.max_num_seqs}, or raise --max-num-batched-tokens to {fit.busy_tokens}"
        )
    chunked = config.enable_chunked_prefill and config.kv_cache
    prefix = config.enable_prefix_caching and config.kv_cache and config.kv_layout == "paged"
    passed: dict[str, Any] = {name: getattr(config, name) for name in PASSED}
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
        step_time_budget=step_budget(config, reasons),
        block_size=groups[0].block_size,
        state_interval=next((group.interval for group in groups if group.is_state), None),
        kv_cache_memory=pool,
        num_kv_blocks=max(counts),
        kv_groups=groups,
        enable_prefix_caching=prefix,
        enable_chunked_prefill=chunked,
        batch_size=config.batch_size or min(BATCH_SIZE, fit.max_num_seqs),
        batch_wait_s=BATCH_WAIT_S if config.batch_wait_s is None else config.batch_wait_s,
        batch_max_tokens=config.batch_max_tokens or BATCH_MAX_TOKENS,
        num_threads=threads,
        kernels=kernels.name,
        reasons=tuple(sorted(reasons.items())),
    )


def choose_device(config: EngineConfig, machine: Machine, reasons: dict[str, str]) -> DeviceKind:
    """The kind of device. Raises ConfigError for another one than the machine has."""
    if config.device not in ("auto", machine.kind):
        if machine.kind == "cpu":
            raise ConfigError(f"device {config.device}: this version runs models on CPUs only")
        raise ConfigError(f"device {config.device}: the machine to plan for is a GPU, {machine.name}")
    reasons["device"] = f"the machine is {machine.name}" if config.device == "auto" else ASKED
    return machine.kind
