"""Quantises until what the model lost is within limits: matrices that hurt get more bits, a round at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol, Self, TypeVar

from headrace.errors import ModelError
from headrace.evaluation.measures import Agreement, Divergence
from headrace.evaluation.quality import Limits
from headrace.gguf.types import TYPES
from headrace.quantize.gguf.run import GGUFOptions
from headrace.quantize.options import Report

_AIM = 0.8
"""Of a limit: what a round aims at, since errors do not add up exactly."""
_TRUSTED = 4
"""Rounds that widen as far as errors say is enough. Each later one widens twice as often as the one before it at least,
so that even of thousands of matrices few rounds make all as wide as they can be."""
_ALL = 1 << 40
"""More steps than any model's matrices have."""

_WIDER: Mapping[str, str] = {
    "Q2_K": "Q3_K", "Q3_K": "Q4_K", "Q4_0": "Q5_K", "Q4_1": "Q5_K", "IQ4_NL": "Q5_K", "IQ4_XS": "Q5_K",
    "Q4_K": "Q5_K", "Q5_0": "Q6_K", "Q5_1": "Q6_K", "Q5_K": "Q6_K", "Q6_K": "Q8_0", "Q8_0": "F16",
}  # fmt: skip
"""The next type of tensors that hurt."""


class LimitsNotMet(ModelError):
    """Not even by the widest choices; says which limits would be met."""


class Plan(Protocol):
    """How a model is quantised; see `bits.ladder.FolderPlan` and `GGUFPlan`."""

    @property
    def wide(self) -> tuple[tuple[str, str], ...]:
        """(matrix or tensor, format) of those that got more bits than was asked."""
        ...

    def widened(self, errors: Mapping[str, float], part: float, least: int = 1) -> Self | None:
        """With more bits for the matrices that hurt most, so that about `part` of the squared errors is left, and
        `least` steps are taken, where so many are left; None where all are as wide as they can be."""
        ...


@dataclass(frozen=True, slots=True)
class GGUFPlan:
    """Tensors that hurt get the next wider type; the embedding and the head, whose errors are not known, after all
    others. tensors: those of each weight in layers, with the types that were asked; ends: other matrices."""

    options: GGUFOptions
    tensors: Mapping[str, Mapping[str, str]]
    ends: Mapping[str, str]

    @property
    def wide(self) -> tuple[tuple[str, str], ...]:
        asked = {name: type for one in (*self.tensors.values(), self.ends) for name, type in one.items()}
        return tuple((name, type) for name, type in self.options.types if asked.get(name) != type)

    def widened(self, errors: Mapping[str, float], part: float, least: int = 1) -> Self | None:
        given = dict(self.options.types)
        now = {
            name: given.get(name, type) for weight in errors for name, type in self.tensors[weight].items()
        }
        left = {name: error**2 for name, error in errors.items()}
        whole = sum(left.values())
        moved = 0
        while moved < least or sum(left.values()) > part * whole:
            hurts = [name for name in left if any(now[one] in _WIDER for one in self.tensors[name])]
            if not hurts:
                break
            worst = max(hurts, key=lambda name: left[name])
            for tensor in self.tensors[worst]:
                before = now[tensor]
                now[tensor] = _WIDER.get(before, before)
            types = [now[one] for one in self.tensors[worst]]
            left[worst] *= 0.0 if set(types) == {"F16"} else 0.3  # about one bit
            moved += 1
        if not moved:
            now |= {name: "F16" for name, type in self.ends.items() if given.get(name, type) in _WIDER}
            moved = sum(given.get(name) != type for name, type in now.items() if name in self.ends)
        types_now = tuple({**given, **now}.items())
        return replace(self, options=replace(self.options, types=types_now)) if moved else None


P = TypeVar("P", bound=Plan)
Measure = Callable[[], tuple[Divergence, Agreement]]


def within_limits(
    plan: P, limits: Limits, make: Callable[[P], Report], measure: Measure, tell: Callable[[str], None]
) -> tuple[P, Report, Divergence, Agreement]:
    """Quantise, measure, and widen until the limits are met. What `make` made last is within them.

    Raises LimitsNotMet, saying which limits would be met, where the widest choices do not meet them.
    """
    best: tuple[tuple[float, ...], Divergence] | None = None
    for number in count():
        report = make(plan)
        divergence, agreement = measure()
        excess = limits.excess(divergence)
        if excess <= 1.0:
            return plan, report, divergence, agreement
        # a limit of 0 is exceeded infinitely by all
        order = (excess, _number(divergence.mean), _number(divergence.perplexity_increase))
        if best is None or order < best[0]:
            best = order, divergence
        least = 1 << max(0, number + 1 - _TRUSTED) if math.isfinite(excess) else _ALL
        wider = plan.widened(report.errors, _AIM / excess, least)
        if wider is None:
            break
        tell(
            f"KL divergence {divergence.mean:.2e}, perplexity {divergence.perplexity_increase:+.2%}: not within the "
            f"limits; more bits for {len(wider.wide)} matrices"
        )
        plan = wider
    assert best is not None
    if not math.isfinite(best[1].mean + best[1].perplexity_increase):
        raise LimitsNotMet(
            "the limits are not met: the quantised model gives infinite numbers, or none; give more --bits or a wider "
            "type"
        )
    raise LimitsNotMet(
        f"the limits are not met: the KL divergence is {best[1].mean:.3g} and the perplexity "
        f"{best[1].perplexity_increase:+.3%} at best, with as many bits for the matrices as they "
        f"can have; {limits.would_pass(best[1])} would pass, or more --bits or a wider type"
    )


def _number(value: float) -> float:
    return math.inf if math.isnan(value) else value


assert {*_WIDER, *_WIDER.values()} <= TYPES.keys()
