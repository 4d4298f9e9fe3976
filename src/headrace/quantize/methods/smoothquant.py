"""SmoothQuant (Xiao et al. 2022, https://arxiv.org/abs/2211.10438): large features hand a part of their size to
the columns that read them, so that inputs can be rounded to 8 bits as well."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from headrace.models.weights import Weights
from headrace.program.records import WeightRef
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.matrices import stacked
from headrace.quantize.transforms.folds import Fold

STRENGTH = 0.5
_SMALLEST = 1e-5


def smooth_factors(
    fold: Fold, weights: Weights, inputs: Hessians, coded: Collection[WeightRef], strength: float
) -> Tensor:
    """[F], or [E, F]: what the features of a fold are divided by, max|x|^a / max|w|^(1-a) (equation 4).

    coded: those of the readers that become codes. strength: the exponent a; 0 leaves inputs as they are large, 1 gives
    all of it to the weights.
    """
    readers = [reader for reader in fold.readers if reader in coded]
    values = torch.stack([_each(inputs.peaks(one.name), fold) for one in readers]).amax(0)
    sizes = torch.stack([_each(stacked(weights, one).abs().amax(1), fold) for one in readers]).amax(0)
    if not fold.by_expert:
        values, sizes = values[0], sizes[0]
    values, sizes = fold.gather(values), fold.gather(sizes)
    dead = (values <= _SMALLEST * values.max()) | (sizes <= _SMALLEST * sizes.max())
    factors = values**strength / sizes ** (1.0 - strength)
    return torch.where(dead, 1.0, factors.clamp(min=_SMALLEST))


def _each(columns: Tensor, fold: Fold) -> Tensor:
    """[E, C] where experts have factors of their own, else [1, C]: the largest of all."""
    return columns if fold.by_expert else columns.amax(0, keepdim=True)
