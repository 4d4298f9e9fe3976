"""The models that are compared: well-known shapes with random weights, the same numbers for every engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.peers.vocabulary import SPECIAL, tokenizer_json
from headrace.models.families import read_spec, weight_names
from headrace.models.shapes import SHAPES
from headrace.models.spec import ModelSpec
from headrace.program.lower import lower

MODELS: Mapping[str, str] = MappingProxyType({"l1b": "tinyllama-1.1b", "l135m": "smollm2-135m-32k"})
"""Name in tables -> shape."""

DEVIATION = 0.02
SEED = 1

Progress = Callable[[int, int], None]


def config_of(shape: str) -> dict[str, Any]:
    """The config.json of a shape, with the special ids of the synthetic vocabulary."""
    return {**SHAPES[shape], "bos_token_id": SPECIAL.index("<s>"), "eos_token_id": SPECIAL.index("</s>")}


def spec_of(model: str) -> ModelSpec:
    """The architecture of a model named in MODELS."""
    return read_spec(config_of(MODELS[model]), {})


def random_tensors(config: Mapping[str, Any], seed: int = SEED) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a checkpoint in bfloat16, by name: norms are one, the rest normal with deviation 0.02."""
    spec = read_spec(config, {})
    generator = torch.Generator().manual_seed(seed)
    for name, shape in sorted(lower(spec, weight_names(spec)).tensors().items()):
        if "norm" in name:
            yield name, torch.ones(shape, dtype=torch.bfloat16)
        else:
            values = torch.randn(math.prod(shape), generator=generator).mul_(DEVIATION)
            yield name, values.to(torch.bfloat16).view(shape)


def write_folder(
    folder: Path, config: Mapping[str, Any], seed: int = SEED, progress: Progress | None = None
) -> None:
    """Write a Hugging Face folder: config, weights, tokenizer. config.json comes last and marks it complete."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = read_spec(config, {})
    total = len(lower(spec, weight_names(spec)).tensors())
    tensors = {}
    for done, (name, tensor) in enumerate(random_tensors(config, seed), 1):
        tensors[name] = tensor
        if progress is not None:
            progress(done, total)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "tokenizer.json", tokenizer_json(config["vocab_size"]))
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"},
    )
    _write_json(folder / "config.json", config)


def is_written(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether `write_folder` finished there, for this config."""
    file = folder / "config.json"
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")) == dict(config)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
