"""The physical limit of every figure: what the machine's measured roofline allows for the bytes and operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.peers.models import spec_of
from benchmarks.peers.work_items import Request, Sizes, requests
from headrace.bench.roofline import Measurement, Roofline
from headrace.bench.work import ModelWork, SliceShape, StepShape
from headrace.plan.weights import weight_parts


@dataclass(frozen=True, slots=True)
class Widths:
    """Bits of a weight and of a number in the KV cache, and the fastest type of product with such weights."""

    weight: float
    kv: float
    product: str


WIDTHS: Mapping[str, Widths] = MappingProxyType(
    {"bf16": Widths(16, 16, "bf16"), "int8": Widths(8, 8, "i8"), "int4": Widths(4, 8, "i8")}
)
"""What each format needs at least: scales and zero points are left out, and no engine has narrower KV."""


def limits(model: str, format_: str, sizes: Sizes, roofline: Roofline) -> dict[str, float]:
    """The best figure that this machine could give in each column, none for start-up.

    Rates take the work as a whole, as if reading and multiplying always overlapped. Memory is that of the weights.
    """
    work, widths = _model_work(model, format_), WIDTHS[format_]
    if widths.product not in roofline.peaks:
        return {}
    parameters = sum(part.parameters for part in weight_parts(work.spec))
    found = {"memory": parameters * widths.weight / 8}
    for column in ("prefill", "decode1", "decode8", "decode32", "mixed"):
        asked = requests(column, sizes)
        decode = list(_decode_steps(asked))
        if column == "prefill":
            tokens, steps = sizes.prefill, [_prompts(asked)]
        elif column == "mixed":
            tokens, steps = sum(request.outputs for request in asked), [_prompts(asked), *decode]
        else:
            tokens, steps = sum(request.outputs - 1 for request in asked), decode
        found[column] = tokens / roofline.limit(work.steps(steps)).seconds
    return found


def _model_work(model: str, format_: str) -> ModelWork:
    spec, widths = spec_of(model), WIDTHS[format_]
    parameters = {part.name: part.parameters for part in weight_parts(spec)}
    return ModelWork(
        spec=spec,
        layer_bytes=int((parameters["attention"] + parameters["feed-forward"]) * widths.weight / 8),
        head_bytes=int((parameters["head"] or parameters["embeddings"]) * widths.weight / 8),
        groups=tuple((layout, int(layout.elements_per_token * widths.kv / 8)) for layout in spec.kv_shapes),
        weight_product=widths.product,
        attention_product=widths.product,
    )


def roofline_from_json(data: Mapping[str, Any]) -> Roofline:
    """Inverse of `Roofline.to_json`."""
    return Roofline(
        kernels=data["kernels"],
        threads=data["threads"],
        buffer_bytes=data["buffer_bytes"],
        read=Measurement(**data["read_bytes_per_s"]),
        read_one=Measurement(**data["read_one_thread_bytes_per_s"]),
        peaks={name: Measurement(**peak) for name, peak in data["peak_operations_per_s"].items()},
    )


def _prompts(asked: list[Request]) -> StepShape:
    """All prompts in one step: nothing reads the weights less often."""
    return tuple(SliceShape(len(request.prompt), 0, 1) for request in asked)


def _decode_steps(asked: list[Request]) -> Iterator[StepShape]:
    """Every step after the prompts, with the sequences that still want tokens."""
    for step in range(max(request.outputs for request in asked) - 1):
        yield tuple(
            SliceShape(1, len(request.prompt) + step, 1) for request in asked if step < request.outputs - 1
        )
