"""How codes are stored: the tensors of a matrix, and the `quantization_config` that describes them.

`models.quantized` reads both formats and says how they are laid out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import __version__
from headrace.errors import ConfigError
from headrace.quantize.gptq import DAMPING, Order
from headrace.quantize.scheme import Codes, Scheme

AWQ_EACH = 8
"""Output features of a word."""
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # lowest bits first


@dataclass(frozen=True, slots=True)
class Tensor:
    """dtype: the name in safetensors; arrays of bfloat16 are their bits."""

    name: str
    dtype: str
    array: NDArray[Any]


class Format(Protocol):
    """One way to store matrices that are all quantised alike: by a `Scheme` as `Codes`, or by a `FloatScheme` as
    `FloatCodes`. bits: what it holds."""

    @property
    def bits(self) -> tuple[int, ...]: ...

    @property
    def least_zero(self) -> int: ...

    def fits(self, rows: int, columns: int, scheme: Any) -> bool:
        """Whether it can hold such a matrix, and others read it."""
        ...

    def tensors(self, module: str, codes: Any) -> list[Tensor]: ...

    def config(
        self, scheme: Any, order: Order | None, coded: Sequence[str], plain: Sequence[str]
    ) -> dict[str, Any]:
        """The `quantization_config`. coded, plain: names of modules that are quantised, and of those that are not."""
        ...


class CompressedTensors:
    """pack-quantized, of compressed-tensors; versions since 0.20 refuse groups that are not in the columns' order."""

    bits = (4, 8)
    least_zero = 0

    def fits(self, rows: int, columns: int, scheme: Scheme) -> bool:
        return columns % (scheme.group or 1) == 0 and columns * scheme.bits % 32 == 0

    def tensors(self, module: str, codes: Codes) -> list[Tensor]:
        rows, columns = codes.codes.shape
        bits = codes.scheme.bits
        found = [
            Tensor(f"{module}.weight_packed", "I32", pack(codes.codes.numpy(), bits)),
            Tensor(f"{module}.weight_scale", *float_arrays(codes.scales)),
            Tensor(f"{module}.weight_shape", "I64", np.array([rows, columns], dtype=np.int64)),
        ]
        if not codes.scheme.symmetric:
            words = np.ascontiguousarray(pack(codes.zeros.numpy().T, bits).T)
            found.append(Tensor(f"{module}.weight_zero_point", "I32", words))
        return found

    def config(
        self, scheme: Scheme, order: Order | None, coded: Sequence[str], plain: Sequence[str]
    ) -> dict[str, Any]:
        weights = weight_config(scheme.bits, "int", "channel" if scheme.group is None else "group")
        weights["symmetric"], weights["group_size"] = scheme.symmetric, scheme.group
        weights["actorder"] = order if scheme.group is not None else None
        return compressed_config("pack-quantized", weights, plain)


class GPTQ:
    """The format of AutoGPTQ and GPTQModel, version 1 of its zero points."""

    bits = (2, 3, 4, 8)
    least_zero = 1  # stored as zero - 1, which readers add without the bits' limit

    def fits(self, rows: int, columns: int, scheme: Scheme) -> bool:
        whole = columns % (scheme.group or 1) == 0
        return whole and rows * scheme.bits % 32 == 0 and columns * scheme.bits % 32 == 0

    def tensors(self, module: str, codes: Codes) -> list[Tensor]:
        bits = codes.scheme.bits
        zeros = (codes.zeros.numpy() - np.uint8(1)) & np.uint8(codes.scheme.levels)
        words = np.ascontiguousarray(pack(codes.codes.numpy(), bits).T)
        scales = codes.scales.T.contiguous()
        return [
            Tensor(f"{module}.qweight", "I32", words),
            Tensor(f"{module}.qzeros", "I32", pack(zeros.T, bits)),
            Tensor(f"{module}.scales", *float_arrays(scales)),
            Tensor(f"{module}.g_idx", "I32", codes.groups().numpy().astype(np.int32)),
        ]

    def config(
        self, scheme: Scheme, order: Order | None, coded: Sequence[str], plain: Sequence[str]
    ) -> dict[str, Any]:
        skipped: dict[str, Any] = {f"-:^{pattern}$": {} for pattern in module_patterns(plain, coded)}
        return {
            "quant_method": "gptq",
            "bits": scheme.bits,
            "group_size": scheme.group or -1,
            "sym": scheme.symmetric,
            "desc_act": order == "group" and scheme.group is not None,
            "static_groups": order == "static",
            "true_sequential": False,
            "damp_percent": DAMPING,
            "lm_head": any(name.endswith("lm_head") for name in coded),
            "checkpoint_format": "gptq",
            "pack_dtype": "int32",
            **({"dynamic": skipped} if skipped else {}),
            "meta": {"quantizer": [f"headrace:{__version__}"]},
        }


class AWQ:
    """The format of AutoAWQ, in the layout of its product GEMM."""

    bits = (4,)
    least_zero = 0

    def fits(self, rows: int, columns: int, scheme: Scheme) -> bool:
        return columns % (scheme.group or 1) == 0 and rows % AWQ_EACH == 0

    def tensors(self, module: str, codes: Codes) -> list[Tensor]:
        return [
            Tensor(f"{module}.qweight", "I32", self._words(codes.codes)),
            Tensor(f"{module}.qzeros", "I32", self._words(codes.zeros)),
            Tensor(f"{module}.scales", *float_arrays(codes.scales.T.contiguous())),
        ]

    def config(
        self, scheme: Scheme, order: Order | None, coded: Sequence[str], plain: Sequence[str]
    ) -> dict[str, Any]:
        return {
            "quant_method": "awq",
            "bits": scheme.bits,
            "group_size": scheme.group or -1,
            "zero_point": True,  # all are stored: readers expect them
            "version": "gemm",
            "modules_to_not_convert": list(plain),
        }

    def _words(self, codes: torch.Tensor) -> NDArray[np.int32]:
        """[C, R / 8] of codes [R, C]."""
        columns = codes.T.numpy().reshape(codes.shape[1], -1, AWQ_EACH)
        return pack(columns[:, :, _AWQ_ORDER].reshape(codes.shape[1], -1), 4)


FORMATS: Mapping[str, Format] = {
    "compressed-tensors": CompressedTensors(),
    "gptq": GPTQ(),
    "awq": AWQ(),
}


def check_format(formats: Mapping[str, Format], name: str, bits: int, order: Order | None) -> None:
    """Raises ConfigError for a name, bits or an order of columns that are not among a method's formats."""
    if name not in formats:
        known_names = f"{', '.join(formats)} or gguf:TYPE" if formats is FORMATS else " or ".join(formats)
        raise ConfigError(f"there is no format {name!r:.40} of such codes: give {known_names}")
    known = formats[name].bits
    if bits not in known:
        others = [other for other, one in formats.items() if bits in one.bits]
        raise ConfigError(
            f"{name} holds {', '.join(map(str, known))} bits, not {bits}"
            + (f": --format {others[0]} does" if others else "")
        )
    if name != "gptq" and order == "group":
        raise ConfigError(
            f"{name} does not hold the group of each column: use --act-order static, or --format gptq"
        )


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


def compressed_config(
    format: str, weights: Mapping[str, Any], plain: Sequence[str], inputs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The `quantization_config` of compressed-tensors with one group of modules."""
    group = {
        "targets": ["Linear"],
        "weights": dict(weights),
        "input_activations": None if inputs is None else dict(inputs),
        "output_activations": None,
        "format": format,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(plain),
        "kv_cache_scheme": None,
    }


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Words [R, ceil(C * bits / 32)] of codes [R, C]: a row is one run of bits, lowest first."""
    rows, columns = codes.shape
    words = -(-columns * bits // 32)
    packed = np.zeros((rows, words * 4), dtype=np.uint8)
    step = max(1, (1 << 20) // max(1, columns))
    for first in range(0, rows, step):
        part = np.ascontiguousarray(codes[first : first + step])
        loose = np.unpackbits(part[..., None], axis=2, bitorder="little")[..., :bits]
        run = np.packbits(loose.reshape(len(part), -1), axis=1, bitorder="little")
        packed[first : first + step, : run.shape[1]] = run
    return packed.view(np.int32)


def module_patterns(modules: Collection[str], others: Collection[str]) -> list[str]:
    """Regular expressions for `modules`, one for all layers where it matches none of `others`."""
    found: dict[str, None] = {}
    for module in modules:
        exact = re.escape(module)
        wide = re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", exact)
        clear = re.compile(wide)
        found[exact if any(clear.fullmatch(other) for other in others) else wide] = None
    return list(found)


def float_arrays(scales: torch.Tensor) -> tuple[str, NDArray[Any]]:
    """(the name in safetensors, the array) of a tensor."""
    if scales.dtype == torch.bfloat16:
        return "BF16", scales.contiguous().view(torch.int16).numpy().view(np.uint16)
    if scales.dtype == torch.float32:
        return "F32", scales.contiguous().numpy()
    return "F16", scales.contiguous().numpy()
