"""What every format of folders has: tensors with and without values, the protocol, and compressed-tensors' config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.models.safetensors_reader import ITEM_BYTES
from headrace.quantize.rounding.gptq import Order

SCALE_NAMES = {"f16": "F16", "bf16": "BF16", "f32": "F32"}
"""In safetensors, by the names of schemes."""


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor of a file without its values. dtype: the name in safetensors."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype: the name in safetensors; arrays of bfloat16 are their bits."""

    name: str
    dtype: str
    array: NDArray[Any]

    @property
    def form(self) -> Form:
        return Form(self.name, self.dtype, self.array.shape)


class Format(Protocol):
    """One way to store matrices: by a `Scheme` as `Codes`, or by a `FloatScheme` as `FloatCodes`. bits: what it
    holds."""

    @property
    def bits(self) -> tuple[int, ...]: ...

    @property
    def least_zero(self) -> int: ...

    def fits(self, rows: int, columns: int, scheme: Any) -> bool:
        """Whether it can hold such a matrix, and others read it."""
        ...

    def forms(self, module: str, rows: int, columns: int, scheme: Any) -> list[Form]:
        """Of the tensors of such a matrix."""
        ...

    def tensors(self, module: str, codes: Any) -> list[Tensor]: ...

    def config(
        self, coded: Mapping[Any, Sequence[str]], order: Order | None, plain: Sequence[str]
    ) -> dict[str, Any]:
        """The `quantization_config`. coded: names of the modules that are quantised, by their schemes. plain: of those
        that are not."""
        ...


def weight_config(bits: int, type: str, strategy: str) -> dict[str, Any]:
    """What compressed-tensors says of codes."""
    return {
        "num_bits": bits,
        "type": type,
        "symmetric": True,
        "strategy": strategy,
        "group_size": None,
        "actorder": None,
        "dynamic": False,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }


def config_group(
    format: str,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    targets: Sequence[str] = ("Linear",),
) -> dict[str, Any]:
    """Modules that compressed-tensors stores alike. targets: their names, or the class of all of them."""
    return {
        "targets": list(targets),
        "weights": dict(weights),
        "input_activations": None if inputs is None else dict(inputs),
        "output_activations": None,
        "format": format,
    }


def compressed_config(
    format: str, groups: Sequence[Mapping[str, Any]], plain: Sequence[str]
) -> dict[str, Any]:
    """The `quantization_config` of compressed-tensors."""
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": dict(group) for number, group in enumerate(groups)},
        "ignore": list(plain),
        "kv_cache_scheme": None,
    }


def float_arrays(scales: torch.Tensor) -> tuple[str, NDArray[Any]]:
    """(the name in safetensors, the array) of a tensor."""
    if scales.dtype == torch.bfloat16:
        return "BF16", scales.contiguous().view(torch.int16).numpy().view(np.uint16)
    if scales.dtype == torch.float32:
        return "F32", scales.contiguous().numpy()
    return "F16", scales.contiguous().numpy()
