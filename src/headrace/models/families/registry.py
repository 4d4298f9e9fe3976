"""Every family by the architecture that a config.json names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.config_reader import ConfigReader
from headrace.models.families.alibi import ALIBI
from headrace.models.families.gemma import GEMMA
from headrace.models.families.gemma4 import GEMMA4
from headrace.models.families.glm_moe import GLM_MOE
from headrace.models.families.gpt import GPT
from headrace.models.families.gpt_oss import GPT_OSS
from headrace.models.families.latent import LATENT
from headrace.models.families.limits import MAX_ALL_EXPERTS
from headrace.models.families.llama import LLAMA_LIKE
from headrace.models.families.llama4 import LLAMA4
from headrace.models.families.mixtures import MIXTURES
from headrace.models.families.others import OTHERS
from headrace.models.families.reading import DTYPES, Family
from headrace.models.families.recurrent import RECURRENT
from headrace.models.names import WeightNames
from headrace.models.spec import ExpertsSpec, ModelSpec

ARCHITECTURES: Mapping[str, Family] = {
    **LLAMA_LIKE,
    **LLAMA4,
    **GEMMA,
    **GEMMA4,
    **OTHERS,
    **GPT,
    **ALIBI,
    **GPT_OSS,
    **MIXTURES,
    **GLM_MOE,
    **LATENT,
    **RECURRENT,
}

FAMILIES: dict[str, Family] = {
    **ARCHITECTURES,
    # model_type, for configs that name no architecture
    **{family.name: family for family in ARCHITECTURES.values()},
    "MPTForCausalLM": ARCHITECTURES["MptForCausalLM"],  # as published
    "llama4_text": ARCHITECTURES["Llama4ForCausalLM"],
    "gemma3_text": ARCHITECTURES["Gemma3ForCausalLM"],
    "qwen3_5_text": ARCHITECTURES["Qwen3_5ForCausalLM"],
    "qwen3_5_moe_text": ARCHITECTURES["Qwen3_5MoeForCausalLM"],
    "gemma4_text": ARCHITECTURES["Gemma4ForCausalLM"],
    "gemma4_unified_text": ARCHITECTURES["Gemma4UnifiedForCausalLM"],
}


def add_family(architecture: str, family: Family) -> None:
    """Make a family known that this package does not have, by the architecture that its configs name."""
    FAMILIES.update({architecture: family, family.name: family})


_OUTER = (
    "tie_word_embeddings",
    "torch_dtype",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "quantization_config",
)
"""Fields that a checkpoint with several parts may give outside of its text part."""


def has_text_part(config: Mapping[str, Any]) -> bool:
    """It is the config of a model of text and images or sound, whose text part alone runs."""
    return isinstance(config.get("text_config"), Mapping) and "hidden_size" not in config


def contradicts_ties(config: Mapping[str, Any]) -> bool:
    """The whole and its text part disagree on whether embeddings are tied."""
    stated = (config, config["text_config"]) if has_text_part(config) else ()
    return (
        len(
            {one["tie_word_embeddings"] for one in stated if isinstance(one.get("tie_word_embeddings"), bool)}
        )
        > 1
    )


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text part, or the whole one where there is no other."""
    if not has_text_part(config):
        return config
    outer = {name: config[name] for name in _OUTER if name in config}
    return {**outer, **{name: value for name, value in config["text_config"].items() if value is not None}}


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a config.json by its first architecture, or by `model_type` where it names none.

    Raises UnsupportedModel, naming the families that are known.
    """
    config = text_part(config)
    architectures = config.get("architectures")
    named = (
        architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    )
    if named is None:
        raise UnsupportedModel(
            "config.json names no architecture and no model_type, so its family is unknown"
        )
    family = FAMILIES.get(named) if isinstance(named, str) else None
    if family is None:
        raise UnsupportedModel(f"model architecture {named!r:.80} is not supported{_nearest(named)}")
    return family


def _nearest(named: object) -> str:
    """What the user may have meant, and where the list is."""
    near = difflib.get_close_matches(named, ARCHITECTURES, 3, 0.6) if isinstance(named, str) else []
    return f"; the nearest that are: {', '.join(near)}" if near else "; the README lists those that are"


def weight_names(spec: ModelSpec) -> WeightNames:
    """Checkpoint tensor names of a spec's family."""
    return FAMILIES[spec.family].names


def read_spec(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelSpec:
    """Translate a HF config.json, and the end-of-sequence ids of a generation_config.json, into a ModelSpec.

    Raises UnsupportedModel for what is not implemented and CheckpointError for missing or absurd values.
    """
    family = find_family(config)
    stated = {name: value for name, value in text_part(config).items() if value is not None}
    reader = ConfigReader({**family.defaults, **stated})
    spec = family.read(reader)
    _check_experts(spec, reader.where)
    generation = ConfigReader(generation_config or {}, "generation_config.json")
    vocab = spec.vocab_size
    eos = (*reader.token_ids("eos_token_id", vocab), *generation.token_ids("eos_token_id", vocab))
    bos = reader.token_ids("bos_token_id", vocab)
    return replace(
        spec,
        checkpoint_dtype=_read_dtype(reader),
        bos_id=bos[0] if bos else None,
        eos_ids=tuple(dict.fromkeys(eos)),
    )


def _check_experts(spec: ModelSpec, where: str) -> None:
    """Each expert has tensors of its own to plan and look for."""
    parts = (part for layer in spec.layers for part in (layer.feed_forward, layer.beside))
    total = sum(part.num_experts for part in parts if isinstance(part, ExpertsSpec))
    if total > MAX_ALL_EXPERTS:
        raise CheckpointError(
            f"{where} asks for {total} experts in {len(spec.layers)} layers, more than the {MAX_ALL_EXPERTS} supported"
        )


def _read_dtype(reader: ConfigReader) -> str:
    """`dtype` (transformers 5) or `torch_dtype` (before); float32 where neither is given."""
    name = reader.text("dtype", reader.text("torch_dtype", "float32"))
    if name not in DTYPES:
        raise UnsupportedModel(f"checkpoint dtype {name!r:.80} is not supported, only {', '.join(DTYPES)}")
    return name
