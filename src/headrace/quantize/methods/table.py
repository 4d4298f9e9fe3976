"""The methods: how each changes a layer's weights before they become codes, and how it chooses these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headrace.models.weights import Weights
from headrace.program.records import WeightRef
from headrace.quantize.calibration.hessians import Hessians
from headrace.quantize.formats.base import Format
from headrace.quantize.formats.eight_bits import BlockFloats, FloatQuantized, IntQuantized
from headrace.quantize.formats.integers import FORMATS
from headrace.quantize.methods.awq import awq, awq_factors
from headrace.quantize.methods.smoothquant import smooth_factors
from headrace.quantize.rounding.fp8 import encode_floats
from headrace.quantize.rounding.gptq import Order, gptq
from headrace.quantize.rounding.scheme import Codes, Scheme, rtn
from headrace.quantize.rounding.shrinkage import rescaled
from headrace.quantize.transforms.folds import Fold


@dataclass(frozen=True, slots=True)
class Settings:
    """What a method gets beside the scheme. order, damping: as in `gptq.gptq`. smoothing: the strength of
    SmoothQuant."""

    order: Order | None
    damping: float
    smoothing: float


@dataclass(frozen=True, slots=True)
class Inputs:
    """Of a matrix [R, C]. hessian: [C, C], the mean of x x^T, and peak: the largest magnitude; None without
    calibration. parts: rows of each stored tensor of the matrix. rescaled: where ranges are clipped, rows get factors
    against what rounding shrinks."""

    hessian: Tensor | None
    peak: float | None
    parts: tuple[int, ...]
    rescaled: bool = False

    @property
    def power(self) -> Tensor:
        """The Hessian of a method that needs texts."""
        assert self.hessian is not None
        return self.hessian


@dataclass(frozen=True, slots=True)
class Method:
    """round: the codes of a matrix [R, C] in a scheme. factors: what the features of a fold are divided by, [F] or
    [E, F]; the weights given are those of the readers that become codes, and the function gives their schemes.
    formats: what holds the codes, by the names of options. calibrated: it needs texts. ordered: it has an order of
    columns. floats: its scheme is a `FloatScheme`.
    """

    round: Callable[[Tensor, Inputs, Any, Settings], Any]
    factors: (
        Callable[
            [Fold, Weights, Hessians, Collection[WeightRef], Callable[[WeightRef], Any], Settings], Tensor
        ]
        | None
    ) = None
    formats: Mapping[str, Format] = field(default_factory=lambda: FORMATS)
    calibrated: bool = True
    ordered: bool = False
    floats: bool = False

    @property
    def only_eight(self) -> bool:
        """Its weights have 8 bits, and formats of their own."""
        return self.formats is not FORMATS


def _rtn(weight: Tensor, inputs: Inputs, scheme: Scheme, how: Settings) -> Codes:
    found = rtn(weight, scheme)
    return rescaled(weight, found) if inputs.rescaled and scheme.clip else found


def _gptq(weight: Tensor, inputs: Inputs, scheme: Scheme, how: Settings) -> Codes:
    found = gptq(weight, inputs.power, scheme, how.order, how.damping)
    return rescaled(weight, found, inputs.power) if inputs.rescaled and scheme.clip else found


def _awq(weight: Tensor, inputs: Inputs, scheme: Scheme, how: Settings) -> Codes:
    found = awq(weight, inputs.power, scheme)
    return rescaled(weight, found, inputs.power) if inputs.rescaled else found


def _awq_factors(
    fold: Fold, weights: Weights, inputs: Hessians, coded: Collection[WeightRef],
    schemes: Callable[[WeightRef], Any], how: Settings,
) -> Tensor:  # fmt: skip
    return awq_factors(fold, weights, inputs, coded, schemes)


METHODS: Mapping[str, Method] = {
    "rtn": Method(_rtn, calibrated=False),
    "gptq": Method(_gptq, ordered=True),
    "awq": Method(_awq, _awq_factors),
    "awq-gptq": Method(_gptq, _awq_factors, ordered=True),
    "smoothquant": Method(
        lambda weight, inputs, scheme, how: rtn(weight, scheme, inputs.hessian),
        lambda fold, weights, inputs, coded, schemes, how: smooth_factors(
            fold, weights, inputs, coded, how.smoothing
        ),
        {"compressed-tensors": IntQuantized()},
    ),
    "fp8": Method(
        lambda weight, inputs, scheme, how: encode_floats(
            weight, inputs.hessian, scheme, inputs.parts, inputs.peak if scheme.static else None
        ),
        None,
        {"compressed-tensors": FloatQuantized(), "fp8": BlockFloats()},
        calibrated=False,
        floats=True,
    ),
}
