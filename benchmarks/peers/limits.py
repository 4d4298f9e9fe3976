"""The physical limit of every figure: what the machine's measured roofline allows for its bytes and operations.

Computed for the configuration that Headrace ran: packed weights with their scales, its KV cache, and the types in which
it multiplies weights and attention, all of them as its driver reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.peers.models import spec_of
from benchmarks.peers.work_items import Request, Sizes, requests
from headrace.bench.native.roofline import Measurement, Roofline
from headrace.program.lower import lower
from headrace.sim.work import ModelWork, SliceShape, StepShape


def limits(model: str, facts: Mapping[str, Any], sizes: Sizes, roofline: Roofline) -> dict[str, float]:
    """The best figure that this machine allows in each column, none for start-up. `facts`: of Headrace's driver.

    Rates take the work as a whole, as if reading and multiplying always overlapped. Memory is that of the weights.
    Empty where the roofline lacks a type of product that ran.
    """
    if not {facts["weight_product"], facts["attention_product"]} <= roofline.peaks.keys():
        return {}
    work = _model_work(model, facts)
    found = {"memory": float(facts["weight_bytes"])}
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


def describe(facts: Mapping[str, Any]) -> str:
    """The configuration that a limit is for, as text."""
    bits = "" if facts["weight_bits"] == 16 else f" ({facts['weight_bits']:.3f} bits each with scales)"
    return (
        f"{facts['weights']} weights{bits}, {facts['kv']} KV cache, "
        f"products in {facts['weight_product']}, attention in {facts['attention_product']}"
    )


def _model_work(model: str, facts: Mapping[str, Any]) -> ModelWork:
    program = lower(spec_of(model), narrow=False)
    return ModelWork(
        program=program,
        layer_bytes=facts["layer_bytes"],
        head_bytes=facts["head_bytes"],
        groups=tuple(zip(program.kv, facts["token_bytes"], strict=True)),
        weight_product=facts["weight_product"],
        attention_product=facts["attention_product"],
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
    """Every step after the prompts, with the sequences that are not finished."""
    for step in range(max(request.outputs for request in asked) - 1):
        yield tuple(
            SliceShape(1, len(request.prompt) + step, 1) for request in asked if step < request.outputs - 1
        )
