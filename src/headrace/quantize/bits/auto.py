"""Bits and groups of a folder's matrices within a budget, from what each costs the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headrace.errors import ConfigError
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.quantize.bits.budget import Choice, Table
from headrace.quantize.bits.sensitivity import Part, measure
from headrace.quantize.folder_size import folder_size
from headrace.quantize.job import Job
from headrace.quantize.matrices import floats_of
from headrace.quantize.options import QuantizeOptions, Width, check_texts, check_tokens
from headrace.quantize.rounding.scheme import BITS, Scheme, rtn

GROUPS = (32, 64, 128)
_PROBE_BITS = 3


def width_table(
    source: ModelSource,
    spec: ModelSpec,
    options: QuantizeOptions,
    texts: Sequence[Sequence[int]],
    groups: Sequence[int | None] = GROUPS,
    shown: Callable[[int, int], None] | None = None,
    num_threads: int | None = None,
) -> tuple[Table, Mapping[str, Width]]:
    """(What each matrix costs in each width, the widths by name), for `QuantizeOptions.widths`.

    Tensors of one product (q, k and v) get the same one. Errors are those of the nearest codes in whole ranges.
    Raises as `run.quantize`, and ConfigError without texts, and where no matrix fits.
    """
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    check_texts("auto", len(texts))
    check_tokens(texts, spec)
    job = Job(source, spec, replace(options, widths=(), clip=False), floats_of(source, spec))
    widths = [Width(bits, group) for bits in BITS if bits in job.format.bits for group in groups]
    usable = {
        weight: fitting
        for one in job.matrices
        for weight in one
        if (fitting := [width for width in widths if job.can_hold(weight, job.scheme_of(width))])
    }
    if not usable:
        raise ConfigError(
            f"no matrix of {source.name} can be stored in {options.format}: its sizes do not fit; choose "
            "another --group-size"
        )
    by_name = {width.name: width for width in widths}

    def rounded(rows: Tensor, hessian: Tensor, choice: str) -> Tensor:
        scheme = job.scheme_of(by_name[choice])
        assert isinstance(scheme, Scheme)
        return rtn(rows, scheme).dequantize()

    parts = [
        Part(
            weight.name, weight, 0, weight.rows, tuple(width.name for width in fitting), _probe(fitting).name
        )
        for weight, fitting in usable.items()
    ]
    with torch.inference_mode():
        found = measure(job.program, job.stored, texts, parts, rounded, shown)
    rows = {
        weight.name: [
            Choice(
                width.name, job.bytes_of(weight, job.scheme_of(width)), found[weight.name].loss(width.name)
            )
            for width in fitting
        ]
        for weight, fitting in usable.items()
    }
    count = sum(weight.rows * weight.columns * (weight.experts or 1) for weight in usable)
    coded = {
        job.checkpoint.stored_name(name)
        for weight in usable
        for one in weight.each()
        for name, _ in one.parts
    }
    rest = job.stored_bytes([name for name in job.checkpoint.file_of if name not in coded])

    def whole(names: Sequence[tuple[str, str]]) -> int:
        chosen = tuple((name, by_name[choice]) for name, choice in names)
        return folder_size(Job(source, spec, replace(options, widths=chosen), job.stored))

    return Table(rows, count, rest, whole), by_name


def _probe(widths: Sequence[Width]) -> Width:
    """Coarse enough that the divergence is well above rounding, and not so coarse that it is no longer quadratic."""
    return next((one for one in widths if one.bits >= _PROBE_BITS), widths[-1])
