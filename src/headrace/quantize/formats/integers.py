"""How whole numbers are stored: the tensors of a matrix, and the `quantization_config` that describes them.

`models.quantized` reads these formats and says how they are laid out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace import __version__
from headrace.errors import ConfigError
from headrace.quantize.formats.base import (
    SCALE_NAMES,
    Form,
    Format,
    Tensor,
    compressed_config,
    config_group,
    float_arrays,
    weight_config,
)
from headrace.quantize.rounding.gptq import DAMPING, Order
from headrace.quantize.rounding.scheme import Codes, Scheme

AWQ_EACH = 8
"""Output features of a word."""
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # lowest bits first
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LONGEST_PATTERN = 400


class CompressedTensors:
    """pack-quantized, of compressed-tensors; versions since 0.20 refuse groups that are not in the columns' order."""

    bits = (2, 3, 4, 8)
    least_zero = 0

    def fits(self, rows: int, columns: int, scheme: Scheme) -> bool:
        return columns % (scheme.group or 1) == 0 and columns * scheme.bits % 32 == 0

    def forms(self, module: str, rows: int, columns: int, scheme: Scheme) -> list[Form]:
        groups = columns // (scheme.group or columns)
        found = [
            Form(f"{module}.weight_packed", "I32", (rows, words(columns, scheme.bits))),
            Form(f"{module}.weight_scale", SCALE_NAMES[scheme.scale], (rows, groups)),
            Form(f"{module}.weight_shape", "I64", (2,)),
        ]
        if not scheme.symmetric:
            found.append(Form(f"{module}.weight_zero_point", "I32", (words(rows, scheme.bits), groups)))
        return found

    def tensors(self, module: str, codes: Codes) -> list[Tensor]:
        rows, columns = codes.codes.shape
        bits = codes.scheme.bits
        found = [
            Tensor(f"{module}.weight_packed", "I32", pack(codes.codes.numpy(), bits)),
            Tensor(f"{module}.weight_scale", *float_arrays(codes.scales)),
            Tensor(f"{module}.weight_shape", "I64", np.array([rows, columns], dtype=np.int64)),
        ]
        if not codes.scheme.symmetric:
            zeros = np.ascontiguousarray(pack(codes.zeros.numpy().T, bits).T)
            found.append(Tensor(f"{module}.weight_zero_point", "I32", zeros))
        return found

    def config(
        self, coded: Mapping[Scheme, Sequence[str]], order: Order | None, plain: Sequence[str]
    ) -> dict[str, Any]:
        groups = []
        for scheme, modules in coded.items():
            weights = weight_config(scheme.bits, "int", "channel" if scheme.group is None else "group")
            weights["symmetric"], weights["group_size"] = scheme.symmetric, scheme.group
            weights["actorder"] = order if scheme.group is not None else None
            groups.append(
                config_group("pack-quantized", weights, targets=modules if len(coded) > 1 else ("Linear",))
            )
        found = compressed_config("pack-quantized", groups, plain)
        if len(coded) == 1 and not next(iter(coded)).symmetric:
            # transformers 5 with compressed-tensors 0.20 makes room for zero points that are not packed, unless it
            # decodes the codes while it reads them. Others ignore this.
            found["dequantize"] = True
        return found


class GPTQ:
    """The format of AutoGPTQ and GPTQModel, version 1 of its zero points."""

    bits = (2, 3, 4, 8)
    least_zero = 1  # stored as zero - 1, which readers add without the bits' limit

    def fits(self, rows: int, columns: int, scheme: Scheme) -> bool:
        whole = columns % (scheme.group or 1) == 0
        return whole and rows * scheme.bits % 32 == 0 and columns * scheme.bits % 32 == 0

    def forms(self, module: str, rows: int, columns: int, scheme: Scheme) -> list[Form]:
        groups = columns // (scheme.group or columns)
        return [
            Form(f"{module}.qweight", "I32", (words(columns, scheme.bits), rows)),
            Form(f"{module}.qzeros", "I32", (groups, words(rows, scheme.bits))),
            Form(f"{module}.scales", SCALE_NAMES[scheme.scale], (groups, rows)),
            Form(f"{module}.g_idx", "I32", (columns,)),
        ]

    def tensors(self, module: str, codes: Codes) -> list[Tensor]:
        bits = codes.scheme.bits
        zeros = (codes.zeros.numpy() - np.uint8(1)) & np.uint8(codes.scheme.levels)
        packed = np.ascontiguousarray(pack(codes.codes.numpy(), bits).T)
        scales = codes.scales.T.contiguous()
        return [
            Tensor(f"{module}.qweight", "I32", packed),
            Tensor(f"{module}.qzeros", "I32", pack(zeros.T, bits)),
            Tensor(f"{module}.scales", *float_arrays(scales)),
            Tensor(f"{module}.g_idx", "I32", codes.groups().numpy().astype(np.int32)),
        ]

    def config(
        self, coded: Mapping[Scheme, Sequence[str]], order: Order | None, plain: Sequence[str]
    ) -> dict[str, Any]:
        usual = max(coded, key=lambda scheme: len(coded[scheme]))
        every = [module for modules in coded.values() for module in modules]
        rules: dict[str, Any] = {f"-:^{pattern}$": {} for pattern in module_patterns(plain, every)}
        for scheme, modules in coded.items():
            if scheme != usual:
                others = {*every, *plain}.difference(modules)
                sizes = {"bits": scheme.bits, "group_size": scheme.group or -1}
                rules |= {f"+:^{pattern}$": dict(sizes) for pattern in module_patterns(modules, others)}
        return {
            "quant_method": "gptq",
            "bits": usual.bits,
            "group_size": usual.group or -1,
            "sym": usual.symmetric,
            "desc_act": order == "group" and usual.group is not None,
            "static_groups": order == "static",
            "true_sequential": False,
            "damp_percent": DAMPING,
            "lm_head": any(name.endswith("lm_head") for name in every),
            "checkpoint_format": "gptq",
            "pack_dtype": "int32",
            **({"dynamic": rules} if rules else {}),
            "meta": {"quantizer": [f"headrace:{__version__}"]},
        }


class AWQ:
    """The format of AutoAWQ, in the layout of its product GEMM."""

    bits = (4,)
    least_zero = 0

    def fits(self, rows: int, columns: int, scheme: Scheme) -> bool:
        return columns % (scheme.group or 1) == 0 and rows % AWQ_EACH == 0

    def forms(self, module: str, rows: int, columns: int, scheme: Scheme) -> list[Form]:
        groups = columns // (scheme.group or columns)
        return [
            Form(f"{module}.qweight", "I32", (columns, rows // AWQ_EACH)),
            Form(f"{module}.qzeros", "I32", (groups, rows // AWQ_EACH)),
            Form(f"{module}.scales", SCALE_NAMES[scheme.scale], (groups, rows)),
        ]

    def tensors(self, module: str, codes: Codes) -> list[Tensor]:
        return [
            Tensor(f"{module}.qweight", "I32", self._words(codes.codes)),
            Tensor(f"{module}.qzeros", "I32", self._words(codes.zeros)),
            Tensor(f"{module}.scales", *float_arrays(codes.scales.T.contiguous())),
        ]

    def config(
        self, coded: Mapping[Scheme, Sequence[str]], order: Order | None, plain: Sequence[str]
    ) -> dict[str, Any]:
        (scheme,) = coded
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


def words(count: int, bits: int) -> int:
    """Of 32 bits, that so many codes fill."""
    return -(-count * bits // 32)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """Words [R, ceil(C * bits / 32)] of codes [R, C]: a row is one run of bits, lowest first."""
    rows, columns = codes.shape
    packed = np.zeros((rows, words(columns, bits) * 4), dtype=np.uint8)
    step = max(1, (1 << 20) // max(1, columns))
    for first in range(0, rows, step):
        part = np.ascontiguousarray(codes[first : first + step])
        loose = np.unpackbits(part[..., None], axis=2, bitorder="little")[..., :bits]
        run = np.packbits(loose.reshape(len(part), -1), axis=1, bitorder="little")
        packed[first : first + step, : run.shape[1]] = run
    return packed.view(np.int32)


def module_patterns(modules: Collection[str], others: Collection[str]) -> list[str]:
    """Regular expressions for `modules` that match none of `others`: one for all layers, or else for some, or else for
    each module."""
    by_name: dict[str, list[str]] = {}
    for module in modules:
        by_name.setdefault(_wide(module), []).append(module)
    found: dict[str, None] = {}
    for wide, own in by_name.items():
        layers = list(dict.fromkeys(number.group() for one in own if (number := _NUMBER.search(one))))
        some = wide.replace(r"\d+", f"({'|'.join(layers)})", 1)
        for pattern in (wide, some) if len(own) > 1 else (wide,):
            clear = re.compile(pattern)
            if len(pattern) <= _LONGEST_PATTERN and not any(clear.fullmatch(other) for other in others):
                found[pattern] = None
                break
        else:
            found |= dict.fromkeys(map(re.escape, own))
    return list(found)


def _wide(module: str) -> str:
    """For the modules that differ from this one in numbers alone."""
    return re.sub(r"(?<=\\\.)\d+(?=\\\.)", r"\\d+", re.escape(module))
