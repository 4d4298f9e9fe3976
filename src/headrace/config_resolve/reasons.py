"""Why settings have their values, as `headrace inspect` prints it."""

from __future__ import annotations

from typing import Literal

from headrace.config import EngineConfig
from headrace.config_resolve.defaults import ASKED, PASSED, Defaults
from headrace.config_resolve.sizes import why_whole
from headrace.models.spec import ModelSpec
from headrace.plan.fit import Fit
from headrace.plan.kv import useful_bytes
from headrace.plan.units import format_bytes
from headrace.plan.weight_formats import CODE_ACTIVATIONS, describe_formats
from headrace.quant.format import ACTIVATION_NAMES, WeightFormats


def why_formats(config: EngineConfig, spec: ModelSpec, formats: WeightFormats | None) -> str:
    """Of `weight_formats`, which are the packed formats of the native path."""
    method = None if spec.codes is None else spec.codes.method
    if formats is None:
        return "plain tensors in the compute type" + (
            "" if method is None else f", decoded from those of {method}"
        )
    if config.quantization is not None and not formats.others:
        return ASKED
    return describe_formats(formats, method)


def why_quantization(config: EngineConfig, spec: ModelSpec, formats: WeightFormats | None) -> str:
    """Of `quantization`, with what the checkpoint stores already."""
    if spec.codes is None or formats is None or config.quantization not in (None, *ACTIVATION_NAMES):
        return PASSED["quantization"] if config.quantization is None else ASKED
    usual = spec.codes.activations or CODE_ACTIVATIONS
    default = next(name for name, kind in ACTIVATION_NAMES.items() if kind == usual)
    bits = (config.quantization or default)[1:]
    kept = f"the checkpoint's codes ({spec.codes.method}) meet activations in {bits} bits"
    if config.quantization is None:
        return kept
    return f"{ASKED}: {kept}" + (", as they do by default" if config.quantization == default else "")


def where_weights_lie(fit: Fit) -> tuple[Literal["memory", "file", "disk"], str]:
    """The setting `weights_from`, and its reason."""
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


def explain_step(
    config: EngineConfig, fit: Fit, length: int, defaults: Defaults, reasons: dict[str, str]
) -> None:
    """The reason of `max_num_batched_tokens`."""
    tokens = fit.step_tokens(length)
    if config.max_num_batched_tokens is not None:
        reason = ASKED
    elif fit.whole_prompts and tokens == length:
        reason = f"max_model_len, because {why_whole(config)}"
    elif not config.kv_cache:
        reason = f"room for whole sequences, because {why_whole(config)}"
    elif tokens > defaults.max_num_batched_tokens:
        reason = "one token for each of max_num_seqs sequences"
        if fit.eviction is not None:
            reason += ", and kv_eviction_window of one of them"
    else:
        reason = (
            "enough rows to keep the matrix units busy, few enough that decoding waits little for a prefill"
        )
    reasons["max_num_batched_tokens"] = reason


def explain_block(config: EngineConfig, fit: Fit, native: bool, reasons: dict[str, str]) -> None:
    """The reason of `block_size`."""
    if fit.block_size is None:
        reasons["block_size"] = "max_model_len, the contiguous layout"
    elif config.block_size is not None:
        reasons["block_size"] = ASKED
    elif native:
        reasons["block_size"] = "as many keys as one step of a matrix unit multiplies"
    else:
        reasons["block_size"] = "wastes half a block a sequence on average, and keeps block tables short"


def explain_kv(
    config: EngineConfig, fit: Fit, length: int, defaults: Defaults, reasons: dict[str, str]
) -> None:
    """The reasons of `kv_cache_memory`, `num_kv_blocks` and `kv_groups`."""
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


def explain_switches(config: EngineConfig, reasons: dict[str, str]) -> None:
    """The reasons of chunked prefill, prefix caching, batches and threads."""
    chunked = "a long prompt is computed between the tokens of others"
    prefix = "what prompts have in common is computed once"
    if not config.kv_cache:
        chunked = prefix = f"off: {why_whole(config)}"
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
