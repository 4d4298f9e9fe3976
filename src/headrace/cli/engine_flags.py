"""Engine options as command line flags, one for each field of EngineConfig."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from headrace.config import EngineConfig, EngineOptions
from headrace.ops.candidates import OPS_NAMES
from headrace.plan.vllm_options import ACCEPTED, RENAMED, TRANSLATED, translate
from headrace.quant.format import GRAMMAR

DEFAULT_MODEL = "tale"


@dataclass(frozen=True, slots=True)
class _Flag:
    field: str
    kind: Callable[[str], object] | None  # None: an on/off switch
    metavar: str
    text: str


def _fields(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a JSON object") from None


_FLAGS = (
    _Flag("dtype", str, "TYPE", "compute type: auto, float32, float16, bfloat16"),
    _Flag("device", str, "NAME", "auto or cpu; cuda is not in this version"),
    _Flag("max_model_len", int, "N", "longest sequence in tokens, prompt and output"),
    _Flag("max_num_seqs", int, "N", "most sequences in one step"),
    _Flag("max_num_batched_tokens", int, "N", "most tokens in one step"),
    _Flag(
        "step_time_budget",
        str,
        "S",
        "seconds that a step may take while others decode, by the cost model: prompts are cut into chunks within it; "
        "auto (default of serve) or off",
    ),
    _Flag("kv_cache_memory", str, "SIZE", "memory of the KV cache, such as 512MiB or 2GB"),
    _Flag(
        "kv_cache_dtype",
        str,
        "TYPE",
        "type of stored keys and values: auto (that of --dtype, or bfloat16 of a 16-bit model that is computed in "
        "float32 by default), float32, bfloat16, int8, fp8, int4",
    ),
    _Flag("block_size", int, "N", "tokens in a KV block"),
    _Flag("num_kv_blocks", int, "N", "KV blocks of each group, instead of a size in bytes"),
    _Flag(
        "state_interval", int, "N", "tokens between the recurrent states that are kept for the prefix cache"
    ),
    _Flag("enable_prefix_caching", None, "", "reuse the KV of equal prefixes"),
    _Flag("enable_chunked_prefill", None, "", "let long prompts be computed in several steps"),
    _Flag("kv_cache", None, "", "keep keys and values; off recomputes everything at every step"),
    _Flag("kv_layout", str, "NAME", "paged, or contiguous: one block of max-model-len a sequence"),
    _Flag("batching", str, "NAME", "continuous, dynamic or static"),
    _Flag("batch_size", int, "N", "requests in a static or dynamic batch"),
    _Flag("batch_wait_s", float, "S", "longest wait in seconds for a dynamic batch to fill"),
    _Flag("batch_max_tokens", int, "N", "prompt tokens that start a dynamic batch"),
    _Flag(
        "scheduling_policy",
        str,
        "NAME",
        "scheduling order: fcfs, priority or fair (serve with several keys: fair)",
    ),
    _Flag(
        "preemption_victim",
        str,
        "NAME",
        "which sequence is preempted when KV memory runs out: last or cheapest",
    ),
    _Flag(
        "attention_sinks", int, "N", "with --sliding-window: keep the first N tokens too (endless streams)"
    ),
    _Flag("sliding_window", int, "N", "keep the last N tokens only"),
    _Flag(
        "kv_eviction",
        str,
        "NAME",
        "snapkv: of a long prompt each KV head keeps only the tokens that get most attention; answers are not exact "
        "(default: off)",
    ),
    _Flag("kv_eviction_budget", int, "N", "with --kv-eviction: tokens that a KV head keeps (default: 1024)"),
    _Flag(
        "kv_eviction_window",
        int,
        "N",
        "last tokens whose queries decide what stays (default: 32, at most budget / 4)",
    ),
    _Flag("kv_eviction_sinks", int, "N", "first tokens that always stay (default: 4, at most budget / 8)"),
    _Flag(
        "kv_eviction_recent",
        int,
        "N",
        "last tokens that always stay (default: as the window, at most budget / 4)",
    ),
    _Flag(
        "kv_eviction_interval",
        int,
        "N",
        "tokens generated until it is chosen again (default: budget / 4, at least the window)",
    ),
    _Flag(
        "stream_interval_s",
        float,
        "S",
        "merge the tokens of short steps into one event of a stream every S seconds (default: 0, every token)",
    ),
    _Flag(
        "max_logprobs", int, "N", "most alternatives that a request may ask for at a position (default: 20)"
    ),
    _Flag("seed", int, "N", "seed of requests without one"),
    _Flag("num_threads", int, "N", "CPU threads"),
    _Flag("pin_threads", None, "", "bind each CPU thread to a core of its own"),
    _Flag("tokenizer", str, "NAME", "bundled name, folder or hub id of another tokenizer"),
    _Flag("revision", str, "NAME", "branch, tag or commit of a hub id"),
    _Flag("download_dir", str, "PATH", "where files of hub ids are kept"),
    _Flag("hf_overrides", _fields, "JSON", "fields that replace those of config.json"),
    _Flag(
        "generation_config",
        str,
        "NAME",
        "where sampling defaults come from: auto (the model's generation_config.json), vllm (nowhere) or a folder",
    ),
    _Flag(
        "override_generation_config", _fields, "JSON", "fields that replace those of generation_config.json"
    ),
    _Flag("ops_force", str, "NAME", f"implementation of the ops: {', '.join(OPS_NAMES)}"),
    _Flag("load_format", str, "NAME", "auto or safetensors"),
    _Flag(
        "quantization",
        str,
        "NAME",
        f"weights rounded at load: {GRAMMAR}; or a8 or a16, for the codes of a quantised checkpoint",
    ),
    _Flag(
        "speculative",
        str,
        "NAME",
        "what drafts tokens to verify: auto, ngram, history, mtp, a smaller model, heads, or some, as in a,b",
    ),
    _Flag("num_speculative_tokens", int, "N", "most tokens to draft for a sequence one after the other"),
    _Flag("speculative_tree_nodes", int, "N", "most tokens of a tree of drafts; 0 drafts chains"),
    _Flag("speculative_quantization", str, "NAME", "as --quantization, for the draft model"),
    _Flag("adaptive_speculation", None, "", "draft as many tokens as pay; off always drafts the most"),
    _Flag(
        "acceptance",
        str,
        "NAME",
        "which drafted tokens stay: exact (as without drafts), rejection (the same distribution) or typical (neither)",
    ),
    _Flag("tensor_parallel_size", int, "N", "devices that share each layer; 1 in this version"),
)


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add every engine option. A flag that is not given leaves its choice to the engine, which explains it
    in `headrace inspect`."""
    group = parser.add_argument_group("engine options (see `headrace inspect` for their values and reasons)")
    for flag in _FLAGS:
        name = "--" + flag.field.replace("_", "-")
        if flag.kind is None:
            group.add_argument(
                name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=flag.text
            )
        else:
            group.add_argument(
                name, type=flag.kind, metavar=flag.metavar, default=argparse.SUPPRESS, help=flag.text
            )
    # vLLM's other flags: accepted, not listed. See docs/options.md.
    for other in (*RENAMED, *TRANSLATED, *ACCEPTED):
        name = "--" + other.replace("_", "-")
        if other in ACCEPTED and ACCEPTED[other].switch:
            group.add_argument(
                name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
        else:
            group.add_argument(name, type=_value, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_model_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m", "--model", default=DEFAULT_MODEL,
        help="bundled name, folder, GGUF file, hub id or shape:NAME (default: %(default)s)",
    )  # fmt: skip


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default=DEFAULT_MODEL,
        help="bundled name, folder, GGUF file, hub id or shape:NAME (default: %(default)s)",
    )  # fmt: skip


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """The options that were given, by EngineConfig's names, without the model.

    Prints to standard error which of them have no effect. Raises ConfigError for one that cannot be used.
    """
    names = (*(flag.field for flag in _FLAGS), *RENAMED, *TRANSLATED, *ACCEPTED)
    options, unheeded = translate({name: getattr(args, name) for name in names if hasattr(args, name)})
    if unheeded is not None:
        print(f"headrace: {unheeded}", file=sys.stderr)
    return cast(EngineOptions, options)


def engine_words(options: Mapping[str, object]) -> list[str]:
    """The flags that give these options, by EngineConfig's names."""
    words = []
    for flag in _FLAGS:
        value, name = options.get(flag.field), flag.field.replace("_", "-")
        if value is None:
            continue
        if flag.kind is None:
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return words


def _value(text: str) -> object:
    """A number, JSON, or the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Raises ConfigError where an option is wrong."""
    return EngineConfig.from_kwargs(model=args.model, **engine_options(args))
