"""The residual stream of a model with given weights, as every op of its layers reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from headrace.models.families import read_spec, weight_names
from headrace.models.loader import load_weights
from headrace.models.source import resolve_model
from headrace.models.weights import Weights
from headrace.program.lower import lower
from headrace.program.records import Op, Program
from headrace.quantize.calibration.walk import Walk, segments
from tests.tiny_checkpoint import write

TEXTS = [tuple((7 * text + 3 * at * at) % 2000 for at in range(24 + text)) for text in range(4)]


def model(folder: Path, config: dict[str, Any]) -> tuple[Program, Weights]:
    """Of a small random checkpoint, in float32."""
    write(folder, config)
    source = resolve_model(str(folder))
    spec = read_spec(source.config, source.generation_config)
    program = lower(spec, weight_names(spec), narrow=False)
    return program, load_weights(source, spec, dtype=torch.float32)


def streams(program: Program, weights: Weights, texts: Sequence[Sequence[int]] = TEXTS) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def watch(op: Op[Any], inputs: Sequence[Any]) -> None:
        found.extend(
            value.clone()
            for buffer, value in zip(op.inputs, inputs, strict=True)
            if buffer.name == "stream" and op.layer is not None
        )

    walk = Walk(program, texts)
    for _ in segments(program):
        walk.observe(weights, watch)
        walk.advance(weights)
    return found
