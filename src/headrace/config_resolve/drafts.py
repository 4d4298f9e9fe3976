"""What drafts for a model: how many tokens, which trees, and how a draft model is stored."""

from __future__ import annotations

from dataclasses import replace

from headrace.config import EngineConfig
from headrace.config_resolve.defaults import ASKED
from headrace.errors import ConfigError
from headrace.models.draft_layers import DraftLayers
from headrace.models.spec import ModelSpec
from headrace.plan.draft_methods import DEFAULT_NODES, DEFAULT_TOKENS, MOST_NODES, draft_model_name
from headrace.plan.drafts import DraftModel, draft_program
from headrace.plan.fit import Fit
from headrace.plan.formats import memory_format
from headrace.plan.hardware import Machine
from headrace.plan.kernels import choose_kernels
from headrace.plan.kv import streaming_spec
from headrace.plan.units import format_bytes
from headrace.plan.weight_formats import stored_type
from headrace.quant.format import ACTIVATION_NAMES


def num_drafts(config: EngineConfig, reasons: dict[str, str]) -> int:
    """The most tokens to draft for a sequence, one after the other; 0 where nothing drafts."""
    if config.speculative is None:
        reasons["num_speculative_tokens"] = "nothing is drafted"
        return 0
    reasons["num_speculative_tokens"] = "more are rarely all accepted"
    if config.num_speculative_tokens is None:
        return DEFAULT_TOKENS
    reasons["num_speculative_tokens"] = ASKED
    return config.num_speculative_tokens


def with_trees(config: EngineConfig, fit: Fit, reasons: dict[str, str]) -> Fit:
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


def check_draft_context(config: EngineConfig, spec: ModelSpec) -> None:
    """Raise ConfigError where sequences may become too long for the model that drafts."""
    if config.max_model_len is not None and not config.streaming and config.max_model_len > spec.max_position:
        name = draft_model_name(config.speculative)
        raise ConfigError(
            f"max_model_len {config.max_model_len} is longer than the context of the draft model {name}, "
            f"{spec.max_position} tokens"
        )


def draft_model(
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


def why_draft(config: EngineConfig, draft: DraftModel) -> str:
    """Of `speculative_quantization`, with the bytes of the draft model."""
    kind = draft.weights_dtype if draft.weight_formats is None else draft.weight_formats.main.name
    why = "as the model, or as its checkpoint is" if config.speculative_quantization is None else ASKED
    return f"{why}; the draft model's weights take {format_bytes(draft.weight_bytes)} in {kind}"
