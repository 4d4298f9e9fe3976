"""Types of a GGUF file's tensors within a budget, from what each costs the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headrace.gguf.types import TYPES
from headrace.models.source import ModelSource
from headrace.models.spec import ModelSpec
from headrace.quantize.bits.budget import Choice, Table
from headrace.quantize.bits.sensitivity import measure
from headrace.quantize.gguf.grids import GRIDS
from headrace.quantize.gguf.mixes import fitting
from headrace.quantize.gguf.rounding import nearest
from headrace.quantize.gguf.run import GGUFOptions, open_job
from headrace.quantize.options import check_texts, check_tokens

CHOICES = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0")
_PROBE = "Q3_K"


def type_table(
    source: ModelSource, spec: ModelSpec, options: GGUFOptions, texts: Sequence[Sequence[int]],
    shown: Callable[[int, int], None] | None = None, num_threads: int | None = None,
) -> Table:  # fmt: skip
    """Raises as `quantize_gguf`, and ConfigError without texts."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    check_texts("auto", len(texts))
    check_tokens(texts, spec)
    job = open_job(source, spec, replace(options, types=()))
    parts = [
        replace(one, choices=CHOICES, probe=_PROBE)
        for one in job.parts()
        if fitting(_PROBE, one.weight.columns).quantized
    ]

    def rounded(rows: Tensor, hessian: Tensor, choice: str) -> Tensor:
        grid = GRIDS[fitting(choice, rows.shape[1]).name]
        return nearest(rows, grid, hessian.diagonal()).dequantize()

    with torch.inference_mode():
        found = measure(job.program, job.stored, texts, parts, rounded, shown)
    rows, weights = {}, {}
    for one in parts:
        columns, price = one.weight.columns, found[one.name]
        weights[one.name] = (one.last - one.first) * columns * (one.weight.experts or 1)
        usable = {
            fitting(type, columns).name: type for type in reversed(CHOICES)
        }  # what stands in is there once
        rows[one.name] = [
            Choice(type, TYPES[type].size(weights[one.name]), price.loss(asked))
            for type, asked in usable.items()
        ]
    return Table(rows, sum(weights.values()), job.size_without(weights))
