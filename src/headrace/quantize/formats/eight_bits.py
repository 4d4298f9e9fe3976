"""How 8-bit weights are stored whose inputs may be rounded to 8 bits too.

`models.quantized` reads these formats and says how they are laid out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.quantize.formats.base import (
    SCALE_NAMES,
    Form,
    Tensor,
    compressed_config,
    config_group,
    float_arrays,
    weight_config,
)
from headrace.quantize.rounding.fp8 import BLOCK, FloatCodes, FloatScheme
from headrace.quantize.rounding.gptq import Order
from headrace.quantize.rounding.scheme import Codes, Scheme


class IntQuantized:
    """int-quantized, of compressed-tensors: signed codes with a scale for each row; each token of the inputs gets a
    scale when it is there."""

    bits = (8,)
    least_zero = 0

    def fits(self, rows: int, columns: int, scheme: Scheme) -> bool:
        return True

    def forms(self, module: str, rows: int, columns: int, scheme: Scheme) -> list[Form]:
        return [
            Form(f"{module}.weight", "I8", (rows, columns)),
            Form(f"{module}.weight_scale", SCALE_NAMES[scheme.scale], (rows, 1)),
        ]

    def tensors(self, module: str, codes: Codes) -> list[Tensor]:
        signed = (codes.codes.numpy() ^ np.uint8(0x80)).view(np.int8)
        return [
            Tensor(f"{module}.weight", "I8", signed),
            Tensor(f"{module}.weight_scale", *float_arrays(codes.scales)),
        ]

    def config(
        self, coded: Mapping[Scheme, Sequence[str]], order: Order | None, plain: Sequence[str]
    ) -> dict[str, Any]:
        weights = weight_config(8, "int", "channel")
        group = config_group("int-quantized", weights, _inputs("int", "token", dynamic=True))
        return compressed_config("int-quantized", [group], plain)


class FloatQuantized:
    """float-quantized, of compressed-tensors."""

    bits = (8,)
    least_zero = 0

    def fits(self, rows: int, columns: int, scheme: FloatScheme) -> bool:
        return scheme.strategy != "block" or _whole_blocks(rows, columns)

    def forms(self, module: str, rows: int, columns: int, scheme: FloatScheme) -> list[Form]:
        scales: dict[str, tuple[int, ...]] = {
            "tensor": (1,), "channel": (rows, 1), "block": (rows // BLOCK, columns // BLOCK)
        }  # fmt: skip
        found = [
            Form(f"{module}.weight", "F8_E4M3", (rows, columns)),
            Form(f"{module}.weight_scale", SCALE_NAMES[scheme.scale], scales[scheme.strategy]),
        ]
        return [*found, Form(f"{module}.input_scale", "F32", (1,))] if scheme.static else found

    def tensors(self, module: str, codes: FloatCodes) -> list[Tensor]:
        strategy = codes.scheme.strategy
        scales = {
            "tensor": codes.scales[:1, 0], "channel": codes.scales, "block": codes.scales[::BLOCK]
        }[strategy].contiguous()  # fmt: skip
        found = [
            Tensor(f"{module}.weight", "F8_E4M3", codes.codes.numpy()),
            Tensor(f"{module}.weight_scale", *float_arrays(scales)),
        ]
        if codes.input_scale is not None:
            one = np.array([codes.input_scale], dtype=np.float32)
            found.append(Tensor(f"{module}.input_scale", "F32", one))
        return found

    def config(
        self, coded: Mapping[FloatScheme, Sequence[str]], order: Order | None, plain: Sequence[str]
    ) -> dict[str, Any]:
        (scheme,) = coded
        weights = weight_config(8, "float", scheme.strategy)
        if scheme.strategy == "block":
            weights["block_structure"] = [BLOCK, BLOCK]
        inputs = None
        if scheme.static or scheme.dynamic:
            by = "tensor" if scheme.static else "group" if scheme.strategy == "block" else "token"
            inputs = _inputs("float", by, dynamic=scheme.dynamic)
        return compressed_config("float-quantized", [config_group("float-quantized", weights, inputs)], plain)


class BlockFloats:
    """The form of DeepSeek's checkpoints: 8-bit floats with a float32 scale for each 128 x 128."""

    bits = (8,)
    least_zero = 0

    def fits(self, rows: int, columns: int, scheme: FloatScheme) -> bool:
        return _whole_blocks(rows, columns)

    def forms(self, module: str, rows: int, columns: int, scheme: FloatScheme) -> list[Form]:
        return [
            Form(f"{module}.weight", "F8_E4M3", (rows, columns)),
            Form(f"{module}.weight_scale_inv", "F32", (rows // BLOCK, columns // BLOCK)),
        ]

    def tensors(self, module: str, codes: FloatCodes) -> list[Tensor]:
        scales = codes.scales[::BLOCK].float().contiguous()
        return [
            Tensor(f"{module}.weight", "F8_E4M3", codes.codes.numpy()),
            Tensor(f"{module}.weight_scale_inv", *float_arrays(scales)),
        ]

    def config(
        self, coded: Mapping[FloatScheme, Sequence[str]], order: Order | None, plain: Sequence[str]
    ) -> dict[str, Any]:
        return {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": list(plain),
        }


def _whole_blocks(rows: int, columns: int) -> bool:
    return rows % BLOCK == 0 and columns % BLOCK == 0


def _inputs(type: str, strategy: str, *, dynamic: bool) -> dict[str, Any]:
    return {
        **weight_config(8, type, strategy),
        "dynamic": dynamic,
        "group_size": BLOCK if strategy == "group" else None,
        "observer": None if dynamic else "minmax",
    }
