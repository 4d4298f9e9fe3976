"""The matrices of a model that may become codes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from headrace.errors import ModelError, UnsupportedModel
from headrace.models.packed.header import is_packed
from headrace.models.quantized.methods import quantization_of
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.models.stored import StoredWeights, open_weights
from headrace.models.weights import Weights
from headrace.program.records import Op, WeightRef
from headrace.quantize.calibration.walk import Segment


def floats_of(source: ModelSource, spec: ModelSpec) -> StoredWeights:
    """The weights of a model that is stored as floats in safetensors files; UnsupportedModel for any other."""
    if source.path is None:
        raise UnsupportedModel(f"{source.name} has random weights: there is nothing to quantise")
    if source.files is not None:
        raise UnsupportedModel(
            f"{source.name} is a GGUF file: give the safetensors folder that it was made from"
        )
    if is_packed(source.path):
        raise UnsupportedModel(f"{source.name} is a packed folder: give the model that it was packed from")
    named = quantization_of(source.config, source.path)
    if named is not None:
        raise UnsupportedModel(
            f"{source.name} is quantised already, with {named[0]}: give the original model"
        )
    return open_weights(source, spec)


def layer_matrices(segment: Segment) -> list[WeightRef]:
    """The matrices of a layer that may be quantised, each once."""
    return list(
        dict.fromkeys(weight for op in segment.ops for weight in op.weights if _may_be_codes(op, weight))
    )


def stacked(weights: Weights, weight: WeightRef) -> torch.Tensor:
    """[E, R, C] of the experts of a weight, or [1, R, C] of one without experts; a view."""
    found = weights.matrices[weight.name].weight
    assert isinstance(found, torch.Tensor)
    return found if weight.experts is not None else found[None]


def check_finite(name: str, matrices: torch.Tensor) -> None:
    """Raises ModelError for weights that no codes stand for."""
    if not bool(torch.isfinite(matrices).all()):
        raise ModelError(f"the weights of {name} are infinite or not numbers: they cannot be quantised")


def mean_error(name: str, squares: Sequence[float]) -> float:
    """The root of the mean of the squared errors of a weight's matrices. Raises ModelError where these are infinite."""
    if not math.isfinite(sum(squares)):
        raise ModelError(f"the weights of {name} are too large: what rounding them loses cannot be told")
    return math.sqrt(sum(squares) / len(squares))


def is_rescaled(weight: WeightRef) -> bool:
    """Whether its rows get factors against what rounding shrinks (see `rounding.shrinkage`): those of feed-forward
    matrices do. In attention, error in the scores makes them sharper, which shrinking makes up for."""
    return weight.part == "feed-forward"


def _may_be_codes(op: Op[Any], weight: WeightRef) -> bool:
    """Not those of the ends of a model, routers, which are exact, and matrices of heads, which share tensors."""
    multiplies = op.kind in ("linear", "experts") and weight.kind == "matrix"
    return multiplies and weight.layer is not None and not weight.exact and weight.in_heads is None
