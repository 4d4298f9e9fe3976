"""What a model is quantised to, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError
from headrace.models.spec import ModelSpec
from headrace.quantize.formats.integers import check_format
from headrace.quantize.methods.smoothquant import STRENGTH
from headrace.quantize.methods.table import METHODS
from headrace.quantize.rounding.fp8 import Strategy
from headrace.quantize.rounding.gptq import DAMPING, Order
from headrace.quantize.rounding.scheme import BITS


@dataclass(frozen=True, slots=True)
class Width:
    """How fine the codes of one matrix are. group: input features with a common scale; None: all of a row."""

    bits: int
    group: int | None

    @property
    def name(self) -> str:
        return f"{self.bits} bits, " + ("whole rows" if self.group is None else f"groups of {self.group}")


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """method: one of METHODS. group: input features with a common scale, or None for all. order, damping: of gptq, as
    in `gptq.gptq`. strategy: of fp8, as in `fp8.FloatScheme`; static, dynamic: what readers that round inputs to
    8-bit floats as well take for their scales. smoothing: of smoothquant.
    rotate: the model first, as `rotations` says, by matrices of `seed`. head: it becomes codes as well. keep: names of
    weights that stay as they are. widths: in place of bits and group, by the names of weights."""

    method: str = "gptq"
    bits: int = 4
    group: int | None = 128
    symmetric: bool = True
    clip: bool = False
    order: Order | None = None
    damping: float = DAMPING
    format: str = "compressed-tensors"
    strategy: Strategy = "channel"
    static: bool = False
    dynamic: bool = False
    smoothing: float = STRENGTH
    rotate: bool = False
    seed: int = 0
    keep: tuple[str, ...] = ()
    head: bool = False
    widths: tuple[tuple[str, Width], ...] = ()

    @property
    def calibrated(self) -> bool:
        """Whether texts are needed."""
        return METHODS[self.method].calibrated or self.static

    def check(self) -> None:
        """Raises ConfigError for what no format holds, or the method does not have."""
        for one in (Width(self.bits, self.group), *(width for _, width in self.widths)):
            if one.bits not in BITS:
                raise ConfigError(f"bits must be one of {', '.join(map(str, BITS))}, got {one.bits}")
            if one.group is not None and not 16 <= one.group <= 256:
                raise ConfigError(f"the group size must be 16 to 256, or the whole row, got {one.group}")
        if self.order is not None and not METHODS[self.method].ordered:
            raise ConfigError(
                f"{self.method} has no order of columns: --act-order is for gptq, awq-gptq and auto: leave it out"
            )
        self._check_eight_bits()
        if self.widths and METHODS[self.method].only_eight:
            raise ConfigError(
                f"{self.method} gives all matrices 8 bits: widths are for rtn, gptq, awq and awq-gptq"
            )
        for bits in {self.bits, *(width.bits for _, width in self.widths)}:
            check_format(METHODS[self.method].formats, self.format, bits, self.order)
        if len({width for _, width in self.widths}) > 1 and self.format == "awq":
            raise ConfigError("awq gives all matrices the same groups: --format gptq holds different ones")

    def _check_eight_bits(self) -> None:
        method = METHODS[self.method]
        if method.only_eight and (self.bits != 8 or self.group is not None or not self.symmetric):
            raise ConfigError(
                f"{self.method} has symmetric codes of 8 bits, and no groups of input features: leave out --bits, "
                "--group-size and --asymmetric, or use another --method"
            )
        if not method.floats and (self.strategy != "channel" or self.static or self.dynamic):
            raise ConfigError(
                f"{self.method} has no scales of tensors and blocks, and none of inputs: --static-inputs and "
                "--dynamic-inputs are for --method fp8, leave them out"
            )
        if self.format == "fp8" and self.strategy != "block":
            raise ConfigError("--format fp8 holds a scale for each 128 x 128: use --group-size 128x128")
        if self.static and self.strategy == "block":
            raise ConfigError(
                "weights in blocks go with dynamic scales of the inputs: leave out --static-inputs"
            )
        if self.static and self.dynamic:
            raise ConfigError(
                "inputs have calibrated scales or dynamic ones, not both: give one of --static-inputs and "
                "--dynamic-inputs"
            )
        if not 0.0 <= self.smoothing <= 1.0:
            raise ConfigError(f"the strength of smoothing must be 0 to 1, got {self.smoothing}")


def check_texts(method: str, count: int) -> None:
    """Raises ConfigError where a method that needs calibration texts has none."""
    if not count:
        raise ConfigError(f"{method} needs calibration texts: give --samples of at least 1")


def check_tokens(texts: Sequence[Sequence[int]], spec: ModelSpec) -> None:
    """Raises ConfigError where a text has a token that the model does not have."""
    most = max((max(one) for one in texts if one), default=0)
    if most >= spec.vocab_size:
        raise ConfigError(
            f"the calibration texts have the token id {most}, which is outside the model's vocabulary of "
            f"{spec.vocab_size} ids: its tokenizer is another model's"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """errors: of each weight, by name, |change of its products| / |its products| over the calibration inputs (of
    experts the root of the mean square); without calibration, of the weights themselves.

    weights: how many are codes now. bits: a weight of these, scales and zeros included. kept: names of matrices in
    layers that stayed floats, because the format cannot hold them or a reader would not find them; not those that
    were asked to stay. unscaled: those that are codes, but not of scaled weights although the method scales, because
    nothing before them can take up the factors. size: bytes of all tensors. floats: weights of the matrices in layers
    that stayed floats, and float_bytes: what these take. inputs: the most features that one of the matrices of codes
    reads.
    """

    errors: Mapping[str, float]
    weights: int
    bits: float
    kept: tuple[str, ...]
    size: int
    unscaled: tuple[str, ...] = ()
    floats: int = 0
    float_bytes: int = 0
    inputs: int = 0

    @property
    def all_bits(self) -> float:
        """A weight of all matrices, those that stayed floats included."""
        return (self.bits * self.weights + 8 * self.float_bytes) / max(1, self.weights + self.floats)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Report:
        """The inverse of `dataclasses.asdict`, after JSON."""
        return cls(**{**facts, "kept": tuple(facts["kept"]), "unscaled": tuple(facts["unscaled"])})
