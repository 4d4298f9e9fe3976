"""The speed of one machine, as the cost model needs it: measured by `headrace calibrate`, or from a data sheet.

All rates are those of the whole machine, all of its threads together.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from headrace.errors import ConfigError
from headrace.plan.hardware import Hardware

VERSION = 1
"""Of the JSON; a profile of another one is measured again."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Straight lines through points; proportional to the last point after it, and the first point before it.

    at: rising and positive. `values`: as many, in seconds.
    """

    at: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise(self.at))
        if not self.at or len(self.at) != len(self.values) or self.at[0] <= 0 or not rising:
            raise ConfigError("a profile's curve needs as many values as positions, and positions that rise")
        if not all(math.isfinite(value) and value >= 0 for value in self.values):
            raise ConfigError("a profile's curve has a time that is not a positive number")

    def __call__(self, position: float) -> float:
        at, values = self.at, self.values
        if position <= at[0]:
            return values[0]
        if position >= at[-1]:
            return values[-1] * position / at[-1]
        high = bisect.bisect_right(at, position)
        low = high - 1
        share = (position - at[low]) / (at[high] - at[low])
        return values[low] + share * (values[high] - values[low])


@dataclass(frozen=True, slots=True)
class Levels:
    """One curve for each size of a working set, in bytes, rising: times between two sizes lie between the curves, in
    proportion to the logarithm of the size. Outside of them the nearest curve holds."""

    bytes: tuple[float, ...]
    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in pairwise((0.0, *self.bytes)))
        if not self.bytes or len(self.bytes) != len(self.curves) or not rising:
            raise ConfigError("a profile's levels need one curve for each size of a working set")

    def __call__(self, working_set: float, position: float) -> float:
        low, high, share = _between(self.bytes, working_set)
        first = self.curves[low](position)
        return first if low == high else first + share * (self.curves[high](position) - first)

    def share(self, working_set: float) -> float:
        """How far the working set is on the way from the smallest level, 0, to the largest one, 1."""
        low, high = self.bytes[0], self.bytes[-1]
        if low == high:
            return 1.0
        return min(1.0, max(0.0, math.log(working_set / low) / math.log(high / low)))


@dataclass(frozen=True, slots=True)
class ProductCost:
    """Of products with a matrix: seconds of an element of the matrix, and of an output feature for all rows together,
    by working set and rows. ragged: of an output feature besides, by rows, where the matrix comes from memory and its
    columns are not whole groups of `span` int8 activations. product, bits: the type that it multiplies in, and the
    bits of an element with scales."""

    elements: Levels
    outputs: Levels | None = None
    ragged: Curve | None = None
    span: int | None = None
    product: str = ""
    bits: float = 0.0

    def __call__(
        self,
        working_set: float,
        rows: float,
        elements: float,
        outputs: float,
        columns: int,
        bits: float = 0.0,
    ) -> float:
        """Seconds of a product. bits: of an element, where that is of another format of the same product: what memory
        adds to the time from caches is in proportion to them."""
        seconds = elements * self.elements(working_set, rows)
        if bits and self.bits and bits != self.bits:
            hot = elements * self.elements(self.elements.bytes[0], rows)
            seconds = hot + max(0.0, seconds - hot) * bits / self.bits
        if self.outputs is not None:
            seconds += outputs * self.outputs(working_set, rows)
        if self.ragged is not None and self.span is not None and columns % self.span:
            seconds += outputs * self.ragged(rows) * self.elements.share(working_set)
        return seconds


@dataclass(frozen=True, slots=True)
class AttentionCost:
    """Of attention in one layer. Rows are the tokens of a sequence times the query heads of a KV head.

    elements: seconds of an element of the keys and values that the rows of a KV head visit, by working set and rows.
    scores: seconds of a key of a KV head besides, its softmax, by rows. head_s: of a KV head of a sequence. row_s: of
    an element of its queries. tile: rows that are computed together: all of them visit the keys that the last one sees.
    panel: keys that are visited together.
    """

    elements: Levels
    scores: Curve | None = None
    head_s: float = 0.0
    row_s: float = 0.0
    tile: int = 1
    panel: int = 1

    def __call__(
        self,
        working_set: float,
        rows: float,
        sequences: float,
        keys: float,
        kv_heads: float,
        width: int,
        elements: float,
        tokens: int = 1,
    ) -> float:
        """Seconds of one layer whose rows see `keys` keys, the mean of each sequence's rows summed over the sequences.
        elements: of the keys and values of a token. tokens: of each sequence."""
        visited = keys + sequences * self.padding(rows, tokens)
        scores = 0.0 if self.scores is None else kv_heads * self.scores(rows)
        heads = sequences * kv_heads * (self.head_s + self.row_s * rows * width)
        return visited * (elements * self.elements(working_set, rows) + scores) + heads

    def padding(self, rows: float, tokens: int) -> float:
        """Keys that a row visits without seeing them, on average: later ones of its tile, and the rest of a panel."""
        together = min(float(tokens), max(1.0, self.tile * tokens / rows))
        return (together - 1 + self.panel - 1) / 2


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step beside the model: scheduler, arrays of the step, and the result. token_s: for each token beyond
    the first one of a sequence. prompt_s: for each prompt that ends: what beginning and ending a request takes.
    cold_step_s, cold_sequence_s: besides, where the model's weights push the code and data of the engine out of the
    caches, which they do if they take `cold_bytes`, and in part if they take less."""

    step_s: float = 0.0
    sequence_s: float = 0.0
    token_s: float = 0.0
    cold_step_s: float = 0.0
    cold_sequence_s: float = 0.0
    cold_bytes: float = 0.0
    prompt_s: float = 0.0

    def __call__(self, tokens: int, sequences: int, working_set: float, prompts: int = 0) -> float:
        """Seconds of a step in which so many prompts end."""
        warm = self.step_s + sequences * self.sequence_s + (tokens - sequences) * self.token_s
        warm += prompts * self.prompt_s
        if not self.cold_bytes:
            return warm
        cold = min(1.0, working_set / self.cold_bytes)
        return warm + cold * (self.cold_step_s + sequences * self.cold_sequence_s)


@dataclass(frozen=True, slots=True)
class SampleCost:
    """Seconds of drawing tokens: a call, a row, and an element of its logits."""

    call_s: float = 0.0
    row_s: float = 0.0
    element_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerCost:
    """Seconds that the server adds: to the time to the first token of a request, and to the processor's work for each
    request and for each token that is streamed."""

    first_token_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """Between devices that share a model: bytes a second of one device in one direction, seconds of one exchange."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Reach:
    """What programs reach of a data sheet's memory bandwidth, and of its peak in products with weights and in
    attention: shares from 0 to 1."""

    memory: float = 1.0
    products: float = 1.0
    attention: float = 1.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The speed of a machine.

    memory: (bytes of a working set, bytes a second) pairs, rising in size: the last one is main memory. peaks:
    operations a second by type of product, as in `bench.native.roofline.PRODUCTS`; for GPUs also "f16", "fp8", "int4".
    products: by format of the weights. attention: by type of the KV cache. rowwise: seconds of a call of an op without
    a matrix, by its elements, by "kind:type it writes", by kind, or as "other". Where these three lack an entry,
    `memory`, `peaks` and `reach` decide. call_s: seconds of starting one op with a matrix, or one of those that
    `rowwise` lacks. step, samples (by setting), server: what the engine and the server add. link: between devices.
    error: what `headrace calibrate` found on sizes that it did not fit: name -> share. key: see `profile_store`. busy:
    the share of the cores that other programs took while it was measured.
    """

    name: str
    source: Literal["measured", "data sheet"]
    memory: tuple[tuple[float, float], ...]
    peaks: Mapping[str, float]
    reach: Reach = Reach()
    products: Mapping[str, ProductCost] = field(default_factory=dict)
    attention: Mapping[str, AttentionCost] = field(default_factory=dict)
    rowwise: Mapping[str, Curve] = field(default_factory=dict)
    call_s: float = 0.0
    step: StepCost = StepCost()
    samples: Mapping[str, SampleCost] = field(default_factory=dict)
    server: ServerCost = ServerCost()
    link: Link | None = None
    error: Mapping[str, float] = field(default_factory=dict)
    key: str = ""
    busy: float = 0.0

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.memory]
        rates = [rate for _, rate in self.memory] + list(self.peaks.values())
        shares = [self.reach.memory, self.reach.products, self.reach.attention]
        links = [] if self.link is None else [self.link.bytes_per_s]
        if not sizes or any(low >= high for low, high in pairwise([0.0, *sizes])):
            raise ConfigError("a profile needs the speed of memory at one size or more, and sizes that rise")
        if not all(math.isfinite(one) and one > 0 for one in (*rates, *shares, *links)):
            raise ConfigError("a profile has a rate that is not a positive number")
        costs: list[StepCost | ServerCost | SampleCost] = [self.step, self.server, *self.samples.values()]
        times = [self.call_s, *(time for cost in costs for time in dataclasses.astuple(cost))]
        times += [] if self.link is None else [self.link.latency_s]
        times += [time for cost in self.attention.values() for time in (cost.head_s, cost.row_s)]
        if not all(math.isfinite(time) and time >= 0 for time in times):
            raise ConfigError("a profile has a time that is negative or no number")

    def bandwidth(self, working_set: float | None = None) -> float:
        """Bytes a second of reading a working set of so many bytes again and again; None: from main memory."""
        if working_set is None:
            return self.memory[-1][1]
        low, high, share = _between([size for size, _ in self.memory], working_set)
        first, last = self.memory[low][1], self.memory[high][1]
        return first + share * (last - first)

    def peak(self, product: str) -> float:
        """Operations a second. A type that the machine lacks is multiplied in the next wider one that it has."""
        for name in (product, *_WIDER.get(product, ())):
            if name in self.peaks:
                return self.peaks[name]
        raise ConfigError(f"the profile of {self.name} has no peak for products of {product}")

    def product_cost(self, format: str, product: str, bits: float) -> ProductCost | None:
        """The cost of a format's products: as measured, or of the measured format of the same product whose elements
        have the most similar number of bits."""
        if format in self.products:
            return self.products[format]
        alike = [one for one in self.products.values() if one.product == product and one.bits > 0 < bits]
        return min(alike, key=lambda one: abs(math.log(bits / one.bits)), default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, which `from_json` reads."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        """Raises ConfigError for anything that `to_json` did not write in this version."""
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise ConfigError(
                "this is not a profile of this version of headrace: run `headrace calibrate` again"
            )
        try:
            if data["source"] not in ("measured", "data sheet"):
                raise ValueError("source")
            if not isinstance(data["name"], str):
                raise ValueError("name")
            _check_numbers(data)
            return cls(
                name=data["name"],
                source=data["source"],
                memory=tuple((float(size), float(rate)) for size, rate in data["memory"]),
                peaks={name: float(rate) for name, rate in data["peaks"].items()},
                reach=Reach(**data["reach"]),
                products={name: _product(one) for name, one in data["products"].items()},
                attention={name: _attention(one) for name, one in data["attention"].items()},
                rowwise={name: _curve(one) for name, one in data["rowwise"].items()},
                call_s=float(data["call_s"]),
                step=StepCost(**data["step"]),
                samples={name: SampleCost(**one) for name, one in data["samples"].items()},
                server=ServerCost(**data["server"]),
                link=None if data["link"] is None else Link(**data["link"]),
                error={name: float(share) for name, share in data["error"].items()},
                key=str(data["key"]),
                busy=float(data.get("busy", 0.0)),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ConfigError(
                f"this profile is damaged ({error!r:.80}): run `headrace calibrate` again"
            ) from error

    @classmethod
    def of_hardware(cls, hardware: Hardware) -> Profile:
        """The profile of one device that is only known by its data sheet."""
        gpu = hardware.kind == "cuda"
        return cls(
            name=hardware.name,
            source="data sheet",
            memory=((float(hardware.memory), hardware.bandwidth),),
            peaks=dict(hardware.peak),
            reach=GPU_REACH if gpu else CPU_REACH,
            call_s=GPU_CALL_S if gpu else CPU_CALL_S,
            step=GPU_STEP if gpu else CPU_STEP,
            samples={"greedy": GPU_SAMPLE if gpu else SampleCost()},
            server=SERVER,
            link=Link(hardware.link, LINK_LATENCY_S) if hardware.link else None,
        )


_WIDER: Mapping[str, tuple[str, ...]] = {
    "int4": ("i8", "fp8", "bf16", "f16", "f32"), "i8": ("bf16", "f16", "f32"), "fp8": ("bf16", "f16", "f32"),
    "bf16": ("f16", "f32"), "f16": ("bf16", "f32"), "f32": ("bf16", "f16"),
}  # fmt: skip
GPU_REACH = Reach(memory=0.85, products=0.70, attention=0.50)
"""Assumed for GPUs that nothing was measured on. attention: FlashAttention-2 reaches 50 to 73 % of an A100's peak (Dao
2023, abstract); on an H100 it reaches 35 %, and FlashAttention-3 up to 75 % (Shah et al. 2024, abstract). memory and
products: what is left of the data sheet after gaps between kernels, tails of waves and lower clocks under load."""
CPU_REACH = Reach(memory=0.80, products=0.60, attention=0.30)
"""Assumed likewise; `headrace calibrate` measures these."""
GPU_CALL_S, CPU_CALL_S = 2e-6, 2e-6
"""Assumed: the gap between two kernels of a CUDA graph, and the barrier of all threads between two ops of the tape."""
GPU_STEP, CPU_STEP = StepCost(1e-3, 10e-6, 20e-9), StepCost(100e-6, 8e-6, 50e-9)
"""Assumed: the scheduler here; a GPU's step also starts from the processor and copies its result back."""
GPU_SAMPLE = SampleCost(call_s=100e-6)
"""Assumed: several small kernels over the logits."""
_LARGEST = 1e18
"""Of any number in a profile: more than bytes, operations and seconds that a device can have."""
LINK_LATENCY_S = 10e-6
"""Assumed: an exchange of few bytes between the devices of one machine."""
SERVER = ServerCost(first_token_s=3e-3, request_s=1e-3, token_s=20e-6)
"""Assumed: HTTP, JSON, the tokenizer and the way between two processes."""


def _between(sizes: Any, size: float) -> tuple[int, int, float]:
    """The positions before and after a size, and the share of the way between them on a logarithmic scale."""
    high = bisect.bisect_right(sizes, size)
    if high == 0 or high == len(sizes):
        only = min(high, len(sizes) - 1) if high == 0 else len(sizes) - 1
        return only, only, 0.0
    low = high - 1
    return low, high, math.log(size / sizes[low]) / math.log(sizes[high] / sizes[low])


def _check_numbers(part: Any) -> None:
    """Raises ValueError for a number below 0 or above _LARGEST, or one that is not a number, anywhere in a profile."""
    if isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            _check_numbers(one)
    elif isinstance(part, int | float) and not 0 <= part <= _LARGEST:
        raise ValueError(part)


def _curve(data: Mapping[str, Any]) -> Curve:
    return Curve(tuple(map(float, data["at"])), tuple(map(float, data["values"])))


def _levels(data: Mapping[str, Any]) -> Levels:
    return Levels(tuple(map(float, data["bytes"])), tuple(map(_curve, data["curves"])))


def _product(data: Mapping[str, Any]) -> ProductCost:
    outputs = None if data["outputs"] is None else _levels(data["outputs"])
    ragged = None if data["ragged"] is None else _curve(data["ragged"])
    product, bits = str(data.get("product", "")), float(data.get("bits", 0.0))
    span = None if data["span"] is None else _whole(data["span"])
    return ProductCost(_levels(data["elements"]), outputs, ragged, span, product, bits)


def _attention(data: Mapping[str, Any]) -> AttentionCost:
    scores = None if data["scores"] is None else _curve(data["scores"])
    return AttentionCost(
        _levels(data["elements"]), scores, float(data["head_s"]), float(data["row_s"]), _whole(data["tile"]),
        _whole(data["panel"]),
    )  # fmt: skip


def _whole(value: Any) -> int:
    """A whole number from 1. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(value)
    return value
