"""The methods: how each changes a layer's weights before they become codes, and how it chooses these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from headrace.models.weights import Weights
from headrace.program.records import WeightRef
from headrace.quantize.awq import awq, awq_factors
from headrace.quantize.folds import Fold
from headrace.quantize.gptq import Order, gptq
from headrace.quantize.hessians import Hessians
from headrace.quantize.scheme import Codes, Scheme, rtn


@dataclass(frozen=True, slots=True)
class Rounding:
    """What a method is told beside the scheme. order, damping: as in `gptq.gptq`."""

    order: Order | None
    damping: float


@dataclass(frozen=True, slots=True)
class Method:
    """summary: for the help. round: the codes of a matrix [R, C] with the Hessian [C, C] of its inputs. factors: what
    the features of a fold are divided by, [F] or [E, F]; the weights given are those of the readers that become codes.
    calibrated: it needs texts. ordered: it has an order of columns."""

    summary: str
    round: Callable[[Tensor, Tensor, Scheme, Rounding], Codes]
    factors: Callable[[Fold, Weights, Hessians, Collection[WeightRef], Scheme], Tensor] | None = None
    calibrated: bool = True
    ordered: bool = False


METHODS: Mapping[str, Method] = {
    "rtn": Method(
        "each weight becomes the nearest code",
        lambda weight, hessian, scheme, how: rtn(weight, scheme),
        calibrated=False,
    ),
    "gptq": Method(
        "the weights that are left make up for each error",
        lambda weight, hessian, scheme, how: gptq(weight, hessian, scheme, how.order, how.damping),
        ordered=True,
    ),
    "awq": Method(
        "features with large inputs are scaled up before rounding, and ranges are clipped, for the least error of the "
        "products",
        lambda weight, hessian, scheme, how: awq(weight, hessian, scheme),
        awq_factors,
    ),
}
