"""vLLM's engine options that have another name here, or nothing to do: pasted options are accepted with one warning.

docs/options.md has the table. Unsupported options that would change an answer are errors, not warnings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError

RENAMED = {
    "num_gpu_blocks_override": "num_kv_blocks",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "speculative_model": "speculative",
    "speculative_model_quantization": "speculative_quantization",
    "spec_decoding_acceptance_method": "acceptance",
}
"""The same thing here: vLLM's name -> ours."""

TRANSLATED = ("speculative_config",)
"""Options that become several of ours."""

DTYPES = {"half": "float16", "float": "float32"}
"""vLLM's other names of compute types."""

ACCEPTANCE = {"rejection_sampler": "rejection", "typical_acceptance_sampler": "typical"}
"""vLLM's names of ways to decide which drafted tokens stay."""

_VALUES: Mapping[str, Mapping[str, str]] = {"dtype": DTYPES, "acceptance": ACCEPTANCE}


def _off(value: object) -> bool:
    return value in (None, False, 0, "", "auto") or value == {} or value == []


def _one(value: object) -> bool:
    return value in (None, 1)


@dataclass(frozen=True, slots=True)
class Accepted:
    """An option without effect: what happens instead, and for which values no warning is given.

    must: only these values are accepted, because others would change what the user gets.
    """

    instead: str
    quiet: Callable[[object], bool] = _off
    must: bool = False
    switch: bool = False  # a flag without a value on the command line


_GRAPHS = "the native path replays a tape, the torch path runs eagerly: there are no graphs to capture"
_NO_SWAP = "preempted sequences are recomputed; nothing is swapped out or offloaded"
_LOGS = "see `headrace serve --log-level` for logs and /metrics for counters"

ACCEPTED: dict[str, Accepted] = {
    "gpu_memory_utilization": Accepted("models run on the CPU here: kv_cache_memory sizes the KV cache"),
    "enforce_eager": Accepted(_GRAPHS, switch=True),
    "max_seq_len_to_capture": Accepted(_GRAPHS),
    "compilation_config": Accepted(_GRAPHS),
    "cuda_graph_sizes": Accepted(_GRAPHS),
    "swap_space": Accepted(_NO_SWAP),
    "cpu_offload_gb": Accepted(_NO_SWAP),
    "preemption_mode": Accepted(_NO_SWAP),
    "disable_log_stats": Accepted(_LOGS, switch=True),
    "disable_log_requests": Accepted(_LOGS, switch=True),
    "enable_log_requests": Accepted(_LOGS, switch=True),
    "max_log_len": Accepted(_LOGS),
    "trust_remote_code": Accepted("code of a checkpoint is never run", switch=True),
    "tokenizer_mode": Accepted("tokenizer.json is read as it is"),
    "skip_tokenizer_init": Accepted(
        "the tokenizer is loaded; prompts of token ids do not use it", switch=True
    ),
    "guided_decoding_backend": Accepted("grammars are compiled by llguidance"),
    "structured_outputs_config": Accepted("grammars are compiled by llguidance"),
    "distributed_executor_backend": Accepted("the engine is one process"),
    "disable_custom_all_reduce": Accepted("there is one device, and nothing to reduce", switch=True),
    "worker_cls": Accepted("the engine is one process"),
    "scheduler_cls": Accepted("scheduling_policy sets the scheduling order"),
    "async_scheduling": Accepted("a step is planned when the one before it has ended", switch=True),
    "num_scheduler_steps": Accepted("every step is planned", _one),
    "max_num_partial_prefills": Accepted("max_num_batched_tokens is shared out in scheduling order", _one),
    "max_long_partial_prefills": Accepted("max_num_batched_tokens is shared out in scheduling order", _one),
    "long_prefill_token_threshold": Accepted("max_num_batched_tokens is shared out in scheduling order"),
    "use_v2_block_manager": Accepted("there is one block manager", switch=True),
    "disable_hybrid_kv_cache_manager": Accepted("layers with a window keep the window only", switch=True),
    "prefix_caching_hash_algo": Accepted("blocks are named by SHA-256, and their tokens are compared"),
    "enable_sleep_mode": Accepted("an engine keeps its memory until it ends", switch=True),
    "calculate_kv_scales": Accepted(
        "int8 keys and values have a scale for each position and head", switch=True
    ),
    "mm_processor_kwargs": Accepted("models read text only"),
    "limit_mm_per_prompt": Accepted("models read text only"),
    "allowed_local_media_path": Accepted("models read text only"),
    "config_format": Accepted("config.json is read"),
    "model_loader_extra_config": Accepted("safetensors are mapped and read once"),
    "kv_transfer_config": Accepted("there is one engine: no other one can take KV blocks"),
    "enable_lora": Accepted(
        "adapters are not in this version: merge it into the weights", must=True, switch=True
    ),
    "lora_modules": Accepted("adapters are not in this version: merge them into the weights", must=True),
    "quantization_param_path": Accepted("kv_cache_dtype int8 makes its scales itself", must=True),
    "pipeline_parallel_size": Accepted("one device runs the model in this version", _one, must=True),
    "data_parallel_size": Accepted("one engine serves the model: start several servers", _one, must=True),
    "runner": Accepted(
        "models generate and embed", lambda value: value in (None, "auto", "generate", "pooling"), True
    ),
    "task": Accepted(
        "models generate and embed", lambda value: value in (None, "auto", "generate", "embed"), True
    ),
}
"""vLLM's options that have no effect here."""


def translate(options: Mapping[str, object]) -> tuple[dict[str, object], str | None]:
    """(options under our names, a warning about those that have no effect, or None).

    Raises ConfigError where an option is given twice under two names, or would change the answer and is not supported.
    """
    kept: dict[str, object] = {}
    ignored: list[str] = []
    options = dict(options)
    pasted = options.pop("speculative_config", None)
    for name, value in _speculation(pasted).items():
        if options.get(name) is not None:
            raise ConfigError(f"speculative_config and {name} are the same option; give one of them")
        options[name] = value
    for name, value in options.items():
        known = ACCEPTED.get(name)
        if known is None:
            ours = RENAMED.get(name, name)
            if ours in kept or (ours != name and options.get(ours) is not None):
                raise ConfigError(f"{name} and {ours} are the same option; give one of them")
            kept[ours] = _VALUES.get(ours, {}).get(value, value) if isinstance(value, str) else value
        elif known.quiet(value):
            continue
        elif known.must:
            raise ConfigError(f"{name} {value!r:.80} is not supported: {known.instead}")
        else:
            ignored.append(f"{name} ({known.instead})")
    if isinstance(pasted, Mapping):
        ignored += [
            f"speculative_config {name} ({known.instead})"
            for name, known in _UNUSED.items()
            if not known.quiet(pasted.get(name))
        ]
    if not ignored:
        return kept, None
    return kept, f"accepted without effect: {', '.join(ignored)}; see docs/options.md"


_DRAFTERS = (None, "ngram", "draft_model", "eagle", "medusa", "mtp")
_SPECULATION = {
    "num_speculative_tokens": "num_speculative_tokens",
    "quantization": "speculative_quantization",
    "acceptance_method": "acceptance",
}
"""Fields of vLLM's speculative_config -> options here."""
_UNUSED = {
    "prompt_lookup_max": Accepted("runs of 2 and 4 equal tokens are looked up"),
    "prompt_lookup_min": Accepted("runs of 2 and 4 equal tokens are looked up"),
    "draft_tensor_parallel_size": Accepted("one device runs what drafts", _one),
    "max_model_len": Accepted("what drafts reads sequences as long as the model's"),
}
"""Those without effect."""


def _speculation(config: object) -> dict[str, object]:
    """Options in place of vLLM's speculative_config. Raises ConfigError for a method that is not here."""
    if config is None or config == {}:
        return {}
    if not isinstance(config, Mapping):
        raise ConfigError("speculative_config must be an object with named fields, such as method and model")
    method, model = config.get("method"), config.get("model")
    if isinstance(method, str) and method.endswith("_mtp"):  # deepseek_mtp, qwen3_next_mtp and so on
        method = "mtp"
    if method not in _DRAFTERS:
        raise ConfigError(
            f"speculative_config: method {method!r:.80} is not here; {', '.join(filter(None, _DRAFTERS))} are"
        )
    if method == "mtp":
        model = "mtp"
    if model == "[ngram]" or (method == "ngram" and model is None):
        model = "ngram"
    if method == "ngram" and model != "ngram":
        raise ConfigError(
            f"speculative_config: ngram needs no model, so {model!r:.80} would not run; leave it out"
        )
    if model is None:
        raise ConfigError("speculative_config names neither the method ngram or mtp nor a model")
    unknown = [name for name in config if name not in {"method", "model", *_SPECULATION, *_UNUSED}]
    if unknown:
        raise ConfigError(f"speculative_config: {unknown[0]!r:.80} is not supported; leave it out")
    return {"speculative": model} | {
        ours: config[name] for name, ours in _SPECULATION.items() if config.get(name) is not None
    }
