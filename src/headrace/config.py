"""Engine options, validated; `config_resolve` fills in those that were left open."""

from __future__ import annotations

import difflib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from inspect import Parameter, signature
from typing import Any, TypedDict, TypeVar, cast

from headrace.core.params import DEFAULT_MAX_LOGPROBS, MAX_LOGPROBS
from headrace.errors import ConfigError
from headrace.ops.candidates import OPS_NAMES
from headrace.plan.draft_methods import AUTO, MOST_NODES, MOST_TOKENS, draft_methods, draft_model_name
from headrace.plan.units import TIB, parse_bytes
from headrace.plan.vllm_options import translate
from headrace.quant.block_formats import named_format
from headrace.quant.format import ACTIVATION_NAMES

MAX_LENGTH = 2**31 - 1  # tokens of a sequence, a window or a batch; lengths are int32
MAX_SEQS = 65_536
MAX_BLOCK_SIZE = 4096
MAX_BLOCKS = 2**31 - 1  # block ids are int32 in the block tables
MAX_STATE_INTERVAL = 2**31 - 1
MAX_KV_BYTES = 1024 * TIB
MAX_SINKS = 65_536
MAX_WINDOW = 4096  # last tokens whose queries decide what is evicted
MAX_THREADS = 4096
MAX_WAIT_S = 3600.0
MAX_INTERVAL_S = 10.0
LEAST_BUDGET_S, MAX_BUDGET_S = 1e-4, 3600.0
MAX_SEED = 2**63 - 1
MAX_TEXT_CHARS = 4096
MAX_FIELDS_CHARS = 65_536


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Engine options; None and "auto" leave a choice to `resolve`. Names follow vLLM's where they can.

    model: bundled name, folder, file or hub id.
    dtype: compute type of embeddings, dense weights and activations.
    kv_cache_dtype: stored keys and values; only the native CPU kernels take another type than dtype, or int8, fp8
        (E4M3) and int4. "auto" is dtype, but bfloat16 where 16-bit weights are computed in float32 by default.
    quantization: weights in fewer bits, rounded at load: int8 or int4, then -g32, -g64, -g128 or -channel for the
    group, -asym for zero points, -a16 to keep activations in bf16; or nf4, fp8, mxfp4; see quant.format. "a8" and
    "a16" keep the codes of a quantised checkpoint, with activations in int8 or bf16.
    max_model_len: longest sequence, prompt and output, in tokens.
    max_num_seqs, max_num_batched_tokens: most sequences and tokens of one step.
    step_time_budget: seconds that a step with prompts in it may take while others decode, by the cost model: prompts
    are cut into chunks that stay within it. "auto" is a multiple of the time of a step without prompts; see
    sim.step_budget.
    kv_cache_memory: bytes, or text such as "512MiB" or "2GB"; num_kv_blocks: blocks of each KV group instead.
    state_interval: of a model with recurrent layers, tokens between the states that are kept for the prefix cache.
    kv_cache: False recomputes every sequence at every step, the baseline that shows what a cache is worth.
    kv_layout: "contiguous" is one block of max_model_len tokens a sequence.
    batch_size, batch_wait_s, batch_max_tokens: when a "static" or "dynamic" batch starts.
    attention_sinks, sliding_window: keep only the first and the last tokens (StreamingLLM, Xiao et al. 2023).
    kv_eviction: "snapkv" lets each KV head keep only some tokens of a long prompt, those that its last queries attend
    to most (Li et al. 2024), and again while the sequence generates. Answers are not those of the whole cache. In
    tokens: kv_eviction_budget: what a head keeps; kv_eviction_window: the last ones, whose queries decide;
    kv_eviction_sinks, kv_eviction_recent: the first and the last ones, which always stay; kv_eviction_interval: by how
    much the cache grows before tokens are evicted again.
    stream_interval_s: least time between two events of a served stream; tokens of steps in between share
    one event. 0 sends every token as it comes; see serving.engine.outbox.
    max_logprobs: most alternatives that a request may ask for at each position, in logprobs and prompt_logprobs.
    pin_threads: bind each CPU thread to a core of its own.
    tokenizer: bundled name, folder or hub id whose tokenizer is used; None is the model's own.
    revision, download_dir: branch, tag or commit of a hub id, and where its files are kept.
    hf_overrides: fields that replace those of config.json.
    generation_config: where sampling defaults come from: "auto" is the model's generation_config.json, "vllm" leaves it
    out, else a folder that holds one; override_generation_config: fields that replace those of the file.
    ops_force: implementation of the ops: an instruction set of the native kernels, "torch" or "reference".
    speculative: what drafts tokens that the model then verifies: "ngram" (what followed the last tokens in the same
    sequence), "history" (in earlier outputs of the same user), "mtp" (the layer for it in the model's checkpoint), a
    smaller model, a folder of heads, or several in order as in "ngram,tale-draft"; "auto" takes n-grams and what there
    is for the model; num_speculative_tokens: most tokens to draft for a sequence one after the other;
    speculative_tree_nodes: most tokens of a tree of drafts, where heads or layers draft; 0 drafts chains;
    speculative_quantization: as `quantization`, for the draft model, which takes that of the model by default;
    adaptive_speculation: draft as many tokens as pay, by measured acceptance and cost; False always drafts the most;
    acceptance: which drafted tokens stay: "exact" are those that the model draws without drafts, bit for bit; the other
    ways are there for comparison: "rejection" keeps the distribution alone, and "typical" does not keep that either.

    Raises ConfigError from the constructor for a value that is out of range or not supported in this version.
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    step_time_budget: float | str = "off"
    kv_cache_memory: int | str | None = None
    kv_cache_dtype: str = "auto"
    block_size: int | None = None
    num_kv_blocks: int | None = None
    state_interval: int | None = None
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    kv_cache: bool = True
    kv_layout: str = "paged"
    batching: str = "continuous"
    batch_size: int | None = None
    batch_wait_s: float | None = None
    batch_max_tokens: int | None = None
    scheduling_policy: str = "fcfs"
    preemption_victim: str = "last"
    attention_sinks: int | None = None
    sliding_window: int | None = None
    kv_eviction: str = "off"
    kv_eviction_budget: int | None = None
    kv_eviction_window: int | None = None
    kv_eviction_sinks: int | None = None
    kv_eviction_recent: int | None = None
    kv_eviction_interval: int | None = None
    stream_interval_s: float = 0.0
    max_logprobs: int = DEFAULT_MAX_LOGPROBS
    seed: int = 0
    num_threads: int | None = None
    pin_threads: bool = False
    tokenizer: str | None = None
    revision: str | None = None
    download_dir: str | None = None
    hf_overrides: Mapping[str, Any] | None = None
    generation_config: str = "auto"
    override_generation_config: Mapping[str, Any] | None = None
    ops_force: str | None = None
    load_format: str = "auto"
    quantization: str | None = None
    speculative: str | None = None
    num_speculative_tokens: int | None = None
    speculative_tree_nodes: int | None = None
    speculative_quantization: str | None = None
    adaptive_speculation: bool = True
    acceptance: str = "exact"
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        put = object.__setattr__
        if isinstance(self.model, os.PathLike):
            put(self, "model", os.fspath(self.model))
        if isinstance(self.kv_cache_memory, str):
            put(self, "kv_cache_memory", parse_bytes(self.kv_cache_memory))
        _check_text("model", self.model)
        if self.ops_force is not None:
            _check_choice("ops_force", self.ops_force, OPS_NAMES)
        for name in ("quantization", "speculative_quantization"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
                text = getattr(self, name)
                put(self, name, text.lower() if text.lower() in ACTIVATION_NAMES else named_format(text).name)
        if self.speculative is not None:
            _check_text("speculative", self.speculative)
            put(self, "speculative", ",".join(draft_methods(self.speculative)))
        for name in ("tokenizer", "revision", "download_dir", "generation_config"):
            if isinstance(getattr(self, name), os.PathLike):
                put(self, name, os.fspath(getattr(self, name)))
            if getattr(self, name) is not None or name == "generation_config":
                _check_text(name, getattr(self, name))
        for name in ("hf_overrides", "override_generation_config"):
            if getattr(self, name) is not None:
                put(self, name, _checked_fields(name, getattr(self, name)))
        for name, allowed in _CHOICES.items():
            _check_choice(name, getattr(self, name), allowed)
        for name, (low, high) in _INT_RANGES.items():
            if getattr(self, name) is not None or name in _REQUIRED_INTS:
                _check_int(name, getattr(self, name), low, high)
        for name in _BOOLS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {_shown(getattr(self, name))}")
        if self.batch_wait_s is not None:
            put(self, "batch_wait_s", _checked_seconds("batch_wait_s", self.batch_wait_s, MAX_WAIT_S))
        interval_s = _checked_seconds("stream_interval_s", self.stream_interval_s, MAX_INTERVAL_S)
        put(self, "stream_interval_s", interval_s)
        put(self, "step_time_budget", _checked_budget(self.step_time_budget))
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.tensor_parallel_size > 1:
            raise ConfigError(
                f"tensor_parallel_size {self.tensor_parallel_size} is not available in this version; use 1"
            )
        if self.step_time_budget != "off" and not self.kv_cache:
            raise ConfigError(
                "step_time_budget needs the KV cache: without one prompts are not cut into chunks"
            )
        if isinstance(self.step_time_budget, float) and not self.enable_chunked_prefill:
            raise ConfigError("step_time_budget cuts prompts into chunks: it needs enable_chunked_prefill")
        if self.kv_cache_memory is not None and self.num_kv_blocks is not None:
            raise ConfigError(
                "kv_cache_memory and num_kv_blocks both set the size of the KV cache; give one of them"
            )
        for name in ("num_speculative_tokens", "speculative_tree_nodes", "speculative_quantization"):
            if getattr(self, name) is not None and self.speculative is None:
                raise ConfigError(f"{name} has no meaning without speculative, which names what drafts")
        if self.acceptance != "exact" and self.speculative is None:
            raise ConfigError(
                f"acceptance {self.acceptance} has no meaning without speculative, which names what drafts"
            )
        if (
            self.speculative_quantization is not None
            and self.speculative != AUTO
            and draft_model_name(self.speculative) is None
        ):
            raise ConfigError("speculative_quantization has no meaning without a draft model")
        if self.speculative is not None and not self.kv_cache:
            raise ConfigError("speculative needs the KV cache: without one every step computes everything")
        if self.kv_layout == "contiguous" and self.block_size is not None:
            raise ConfigError(
                "block_size belongs to the paged layout; a contiguous block is max_model_len long"
            )
        if self.kv_layout == "contiguous" and self.sliding_window is not None:
            raise ConfigError(
                "sliding_window gives back blocks, which the contiguous layout cannot; use paged"
            )
        if self.attention_sinks is not None and self.sliding_window is None:
            raise ConfigError("attention_sinks needs sliding_window, the number of last tokens to keep")
        self._check_eviction()
        unused = {"continuous": ("batch_size", *_DYNAMIC_ONLY), "static": _DYNAMIC_ONLY, "dynamic": ()}
        for name in unused[self.batching]:
            if getattr(self, name) is not None:
                raise ConfigError(f"{name} has no meaning with {self.batching} batching; leave it out")
        _check_order(self, "batch_size", "max_num_seqs")
        _check_order(self, "max_num_seqs", "max_num_batched_tokens")
        _check_order(self, "batch_size", "max_num_batched_tokens")

    def _check_eviction(self) -> None:
        if self.kv_eviction == "off":
            for name in EVICTION_SIZES:
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} has no meaning without kv_eviction snapkv")
            return
        why = ""
        if not self.kv_cache:
            why = "needs the KV cache"
        elif self.kv_layout == "contiguous":
            why = "gives back blocks, which the contiguous layout cannot; use paged"
        elif self.sliding_window is not None:
            why = "and sliding_window both bound what a sequence keeps; give one of them"
        elif self.speculative is not None:
            why = "cannot run with speculative, whose drafts may be taken back after tokens were evicted"
        elif self.kv_cache_dtype == "int4":
            why = (
                "cannot move single tokens of kv_cache_dtype int4, which codes whole blocks; use int8 or fp8"
            )
        if why:
            raise ConfigError(f"kv_eviction {self.kv_eviction} {why}")

    @property
    def kv_cache_bytes(self) -> int | None:
        """`kv_cache_memory` as the number that the constructor made of it."""
        return None if self.kv_cache_memory is None else int(self.kv_cache_memory)

    @property
    def streaming(self) -> bool:
        """Sinks and window bound every layer's memory, so a sequence may outgrow the model's context."""
        return self.sliding_window is not None

    @classmethod
    def from_kwargs(cls, **options: object) -> EngineConfig:
        """Build from keyword arguments, by vLLM's names too; a warning names options that have no effect here.

        Raises ConfigError with the closest known name for an unknown one.
        """
        options, unheeded = translate(options)
        if unheeded is not None:
            warnings.warn(unheeded, UserWarning, stacklevel=2)
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option {name[:80]!r}{_suggestion(name, known)}")
        if "model" not in options:
            raise ConfigError("the option model is required")
        return cls(**cast(dict[str, Any], options))

    def to_json(self) -> dict[str, object]:
        """Plain values for another process; `from_json` gives an equal config."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> EngineConfig:
        """Inverse of `to_json`, with the same checks as the constructor."""
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            raise ConfigError(
                f"engine options must be an object with named fields, got {type(data).__name__}"
            )
        return cls.from_kwargs(**data)


class EngineOptions(TypedDict, total=False):
    """The fields of EngineConfig but `model`, for type checkers and editors; a test compares the two."""

    dtype: str
    device: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    step_time_budget: float | str
    kv_cache_memory: int | str | None
    kv_cache_dtype: str
    block_size: int | None
    num_kv_blocks: int | None
    state_interval: int | None
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    kv_cache: bool
    kv_layout: str
    batching: str
    batch_size: int | None
    batch_wait_s: float | None
    batch_max_tokens: int | None
    scheduling_policy: str
    preemption_victim: str
    attention_sinks: int | None
    sliding_window: int | None
    kv_eviction: str
    kv_eviction_budget: int | None
    kv_eviction_window: int | None
    kv_eviction_sinks: int | None
    kv_eviction_recent: int | None
    kv_eviction_interval: int | None
    stream_interval_s: float
    max_logprobs: int
    seed: int
    num_threads: int | None
    pin_threads: bool
    tokenizer: str | None
    revision: str | None
    download_dir: str | None
    hf_overrides: Mapping[str, Any] | None
    generation_config: str
    override_generation_config: Mapping[str, Any] | None
    ops_force: str | None
    load_format: str
    quantization: str | None
    speculative: str | None
    num_speculative_tokens: int | None
    speculative_tree_nodes: int | None
    speculative_quantization: str | None
    adaptive_speculation: bool
    acceptance: str
    tensor_parallel_size: int


Init = TypeVar("Init", bound=Callable[..., None])


def shows_options(init: Init) -> Init:
    """A constructor with `**options`, whose signature lists the fields of EngineConfig with their defaults."""
    found = signature(init)
    listed = list(found.parameters.values())
    options = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(EngineConfig)
        if field.name not in found.parameters
    ]
    init.__signature__ = found.replace(parameters=[*listed[:-1], *options, listed[-1]])  # type: ignore[attr-defined]
    return init


EVICTION_SIZES = (
    "kv_eviction_budget",
    "kv_eviction_window",
    "kv_eviction_sinks",
    "kv_eviction_recent",
    "kv_eviction_interval",
)

BUDGETS = ("auto", "off")
"""Step time budgets that are not numbers."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": ("auto", "float32", "float16", "bfloat16"),
    "device": ("auto", "cpu", "cuda"),
    "kv_cache_dtype": ("auto", "float32", "float16", "bfloat16", "int8", "fp8", "fp8_e4m3", "int4"),
    "kv_layout": ("paged", "contiguous"),
    "batching": ("continuous", "static", "dynamic"),
    "scheduling_policy": ("fcfs", "priority", "fair"),
    "preemption_victim": ("last", "cheapest"),
    "kv_eviction": ("off", "snapkv"),
    "load_format": ("auto", "safetensors"),
    "acceptance": ("exact", "rejection", "typical"),
}
_INT_RANGES: dict[str, tuple[int, int]] = {
    "max_model_len": (1, MAX_LENGTH),
    "max_num_seqs": (1, MAX_SEQS),
    "max_num_batched_tokens": (1, MAX_LENGTH),
    "kv_cache_memory": (1, MAX_KV_BYTES),
    "block_size": (1, MAX_BLOCK_SIZE),
    "num_kv_blocks": (1, MAX_BLOCKS),
    "state_interval": (1, MAX_STATE_INTERVAL),
    "batch_size": (1, MAX_SEQS),
    "batch_max_tokens": (1, MAX_LENGTH),
    "num_speculative_tokens": (1, MOST_TOKENS),
    "speculative_tree_nodes": (0, MOST_NODES),
    "attention_sinks": (0, MAX_SINKS),
    "sliding_window": (1, MAX_LENGTH),
    "kv_eviction_budget": (2, MAX_LENGTH),
    "kv_eviction_window": (1, MAX_WINDOW),
    "kv_eviction_sinks": (0, MAX_SINKS),
    "kv_eviction_recent": (1, MAX_LENGTH),
    "kv_eviction_interval": (1, MAX_LENGTH),
    "max_logprobs": (0, MAX_LOGPROBS),
    "seed": (-MAX_SEED - 1, MAX_SEED),
    "num_threads": (1, MAX_THREADS),
    "tensor_parallel_size": (1, 1024),
}
_REQUIRED_INTS = ("max_logprobs", "seed", "tensor_parallel_size")
_BOOLS = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "kv_cache",
    "pin_threads",
    "adaptive_speculation",
)
_DYNAMIC_ONLY = ("batch_wait_s", "batch_max_tokens")

# Names of the same options in other engines.
_KNOWN_ELSEWHERE: dict[str, str] = {
    "max_seq_len": "max_model_len",
    "context_length": "max_model_len",
    "n_ctx": "max_model_len",
    "n_threads": "num_threads",
    "torch_dtype": "dtype",
}


def _suggestion(name: str, known: list[str]) -> str:
    close = _KNOWN_ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name[:80], known, 1)), None)
    return f"; did you mean {close}?" if close else ""


def _shown(value: object) -> str:
    """The value for an error message: short, on one line."""
    try:
        return repr(value)[:80]
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return "a huge number"


def _check_order(config: EngineConfig, smaller: str, larger: str) -> None:
    low, high = getattr(config, smaller), getattr(config, larger)
    if low is not None and high is not None and low > high:
        raise ConfigError(f"{smaller} {low} is greater than {larger} {high}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_CHARS or "\0" in value:
        raise ConfigError(f"{name} must be text of 1 to {MAX_TEXT_CHARS} characters, got {_shown(value)}")


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)} in this version, got {_shown(value)}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got {_shown(value)}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must be between {low} and {high}, got {_shown(value)}")


def _checked_fields(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{name} must be an object with named fields, got {_shown(value)}")
    try:
        text = json.dumps(dict(value))
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"{name} must hold what JSON can hold") from None
    if len(text) > MAX_FIELDS_CHARS:
        raise ConfigError(f"{name} must be at most {MAX_FIELDS_CHARS} characters of JSON, got {len(text)}")
    return dict(value)


def _checked_budget(value: object) -> float | str:
    """ "auto", "off", or seconds, which may be written as text."""
    if isinstance(value, str) and value not in BUDGETS:
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(
                f"step_time_budget must be auto, off or a number of seconds, got {_shown(value)}"
            ) from None
    if isinstance(value, str):
        return value
    seconds = _checked_seconds("step_time_budget", value, MAX_BUDGET_S)
    if seconds < LEAST_BUDGET_S:
        raise ConfigError(
            f"step_time_budget must be at least {LEAST_BUDGET_S:g} seconds, or off, got {seconds:g}"
        )
    return seconds


def _checked_seconds(name: str, value: object, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name} must be a number of seconds, got {_shown(value)}")
    if not 0.0 <= value <= high:  # NaN is in no range
        raise ConfigError(f"{name} must be between 0 and {high:g} seconds, got {_shown(value)}")
    return float(value)
