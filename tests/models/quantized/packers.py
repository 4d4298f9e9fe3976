"""Writes quantised matrices the way the methods' own packages lay them out, bit by bit, without the package's code.

Every packer draws codes, scales and zeros at random, and gives the tensors of a checkpoint with the weights that
they mean. Matrices of the same input features have one activation order, as those of one product do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Tensors = dict[str, torch.Tensor]
Packed = tuple[Tensors, torch.Tensor]
"""Tensors by suffix of the module's name, and the weights float32 [R, C]."""
Pack = Callable[[int, int, np.random.Generator], Packed]


@dataclass(frozen=True)
class Case:
    """A way to store a matrix. config: the `quantization_config`. pack: of (rows, columns, generator)."""

    config: dict[str, Any]
    pack: Pack
    exact: bool = True  # the weights are equal to the last bit; else to a few parts in a million


def words(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Codes one after the other in one number, lowest first, cut into words; the last may have room."""
    number = sum(int(code) << (bits * index) for index, code in enumerate(codes))
    return np.frombuffer(number.to_bytes(-(-len(codes) * bits // 32) * 4, "little"), dtype="<i4")


def fields(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """32 // bits codes a word, the rest of the word left empty."""
    each = 32 // bits
    numbers = [
        sum(int(code) << (bits * place) for place, code in enumerate(codes[first : first + each]))
        for first in range(0, len(codes), each)
    ]
    return np.array(numbers, dtype=np.uint32).view(np.int32)


def tensor(array: NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    made = torch.from_numpy(np.ascontiguousarray(array))
    return made if dtype is None else made.to(dtype)


def scales_of(
    shape: tuple[int, ...], dtype: torch.dtype, draw: np.random.Generator, bits: int
) -> torch.Tensor:
    """Scales such that the weights are about 0.05."""
    return torch.from_numpy(draw.uniform(0.05, 0.15, shape) / (1 << (bits - 1))).to(dtype)


def spread(values: Any, blocks: tuple[int, int], shape: tuple[int, int]) -> NDArray[np.float32]:
    """The number of each weight's block."""
    out = np.empty(shape, dtype=np.float32)
    for row in range(shape[0]):
        for column in range(shape[1]):
            out[row, column] = values[row // blocks[0]][column // blocks[1]]
    return out


# ---- GPTQ ----


def gptq(
    bits: int, group: int, *, symmetric: bool = True, order: bool = False, version: int = 1,
    dtype: torch.dtype = torch.float16,
) -> Case:  # fmt: skip
    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        size = columns if group == -1 else group
        groups, top = -(-columns // size), (1 << bits) - 1
        codes = draw.integers(0, top + 1, (rows, columns))
        zeros = np.full((groups, rows), (top + 1) // 2)
        if not symmetric:
            zeros = draw.integers(0, top + 1, (groups, rows))
        group_of = np.arange(columns) // size
        if order:
            group_of = np.random.default_rng(columns).permutation(group_of)
        scales = scales_of((groups, rows), dtype, draw, bits)
        stored = (zeros - 1) & top if version == 1 else zeros
        weights = np.empty((rows, columns), dtype=np.float32)
        for column, g in enumerate(group_of):
            weights[:, column] = scales[g].float().numpy() * (codes[:, column] - zeros[g]).astype(np.float32)
        tensors = {
            ".qweight": tensor(np.stack([words(row, bits) for row in codes], axis=1)),
            ".qzeros": tensor(np.stack([words(row, bits) for row in stored])),
            ".scales": scales,
            ".g_idx": tensor(group_of.astype(np.int32)),
        }
        return tensors, torch.from_numpy(weights)

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "sym": symmetric, "desc_act": order,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }  # fmt: skip
    return Case(config, pack)


# ---- AWQ ----

_GEMM_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output feature of each place in a word


def awq(group: int, version: str = "GEMM") -> Case:
    def interleaved(codes: NDArray[Any]) -> NDArray[np.int32]:
        return fields(
            np.concatenate(
                [codes[first : first + 8][list(_GEMM_ORDER)] for first in range(0, len(codes), 8)]
            ),
            4,
        )

    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        groups = -(-columns // group)
        codes, zeros = draw.integers(0, 16, (rows, columns)), draw.integers(0, 16, (rows, groups))
        scales = scales_of((rows, groups), torch.float16, draw, 4)
        weights = spread(scales.float().numpy(), (1, group), (rows, columns)) * (
            codes - spread(zeros, (1, group), (rows, columns))
        )
        if version == "GEMM":
            tensors = {
                ".qweight": tensor(np.stack([interleaved(column) for column in codes.T])),
                ".qzeros": tensor(np.stack([interleaved(column) for column in zeros.T])),
                ".scales": scales.T.contiguous(),
            }
        else:
            times = {64: 2, 32: 4}.get(group, 1)
            words_of_zeros = -(-groups // 8)
            width = -(-words_of_zeros // times) * times
            wide = np.zeros((rows, width * 8), dtype=np.int64)
            wide[:, :groups] = zeros
            room = torch.zeros(rows, width * 8, dtype=torch.float16)
            room[:, :groups] = scales
            tensors = {
                ".qweight": tensor(np.stack([fields(row, 4) for row in codes])),
                ".qzeros": tensor(np.stack([fields(row, 4) for row in wide])),
                ".scales": room,
            }
        return tensors, torch.from_numpy(weights.astype(np.float32))

    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": version.lower(),
    }
    return Case(config, pack)


# ---- compressed-tensors ----


def compressed(
    kind: str, bits: int, strategy: str, *, group: int | None = None, symmetric: bool = True, order: bool = False,
    dtype: torch.dtype = torch.bfloat16, block: tuple[int, int] | None = None,
    activations: dict[str, Any] | None = None, targets: tuple[str, ...] = ("Linear",), dense: bool = False,
) -> Case:  # fmt: skip
    store = words if dense else fields  # newer and older versions differ for 3, 5, 6 and 7 bits
    floats = kind in ("float-quantized", "mxfp4-pack-quantized") or (
        kind == "naive-quantized" and block is not None
    )

    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        blocks = {
            "tensor": (rows, columns), "channel": (1, columns), "group": (1, group or 1), "block": block or (1, 1),
        }[strategy]  # fmt: skip
        shape = (-(-rows // blocks[0]), -(-columns // blocks[1]))
        if kind == "mxfp4-pack-quantized":
            return mxfp4(rows, columns, draw, ".weight_packed", ".weight_scale")
        middle = 1 << (bits - 1)
        scales = scales_of(shape, dtype, draw, 9 if floats else bits)
        zeros = np.zeros(shape) if symmetric else draw.integers(-middle, middle, shape)
        group_of = np.arange(columns)
        if order:
            group_of = np.random.default_rng(columns).permutation(columns)
        if floats:
            floats8 = torch.from_numpy(draw.normal(0, 60, (rows, columns))).to(torch.float8_e4m3fn)
            codes = floats8.float().numpy()
        else:
            codes = draw.integers(-middle, middle, (rows, columns))
        weights = spread(scales.float().numpy(), blocks, (rows, columns))[:, group_of] * (
            codes - spread(zeros, blocks, (rows, columns))[:, group_of]
        ).astype(np.float32)
        flat = scales.reshape(-1) if strategy == "tensor" else scales
        tensors: Tensors = {".weight_scale": flat}
        if floats:
            tensors[".weight"] = floats8
        elif kind in ("int-quantized", "naive-quantized"):
            tensors[".weight"] = tensor(codes.astype(np.int8))
            if not symmetric:
                tensors[".weight_zero_point"] = tensor(zeros.astype(np.int8)).reshape(flat.shape)
        else:
            tensors[".weight_packed"] = tensor(np.stack([store(row + middle, bits) for row in codes]))
            tensors[".weight_shape"] = torch.tensor([rows, columns])
            if not symmetric:
                moved = (zeros + middle).astype(np.int64)
                tensors[".weight_zero_point"] = tensor(
                    np.stack([store(column, bits) for column in moved.T], axis=1)
                )
        if order:
            tensors[".weight_g_idx"] = tensor((group_of // blocks[1]).astype(np.int32))
        return tensors, torch.from_numpy(weights.astype(np.float32))

    scheme: dict[str, Any] = {
        "num_bits": bits, "type": "float" if floats else "int", "strategy": strategy, "symmetric": symmetric,
        "group_size": group, "dynamic": False, "actorder": "group" if order else None,
    }  # fmt: skip
    if block is not None:
        scheme["block_structure"] = list(block)
    config = {
        "quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed",
        "config_groups": {
            "group_0": {"targets": list(targets), "weights": scheme, "input_activations": activations}
        },
        "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip
    return Case(config, pack)


# ---- FP8, MXFP4 ----


def fp8(
    how: str,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    scale: torch.dtype = torch.float32,
    block: tuple[int, int] = (128, 128),
) -> Case:
    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        codes = torch.from_numpy(draw.normal(0, 60, (rows, columns))).to(dtype)
        blocks = {"tensor": (rows, columns), "channel": (1, columns), "block": block}[how]
        shape = (-(-rows // blocks[0]), -(-columns // blocks[1]))
        scales = scales_of(shape, torch.float32, draw, 9)
        if scale == torch.float8_e8m0fnu:
            scales = torch.exp2(torch.log2(scales).round())
        stored = scales.to(scale)
        weights = torch.from_numpy(spread(stored.float().numpy(), blocks, (rows, columns))) * codes.float()
        if how == "tensor":
            stored = stored.reshape(())
        return {".weight": codes, ".weight_scale_inv" if how == "block" else ".weight_scale": stored}, weights

    config: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    if how == "block":
        config["weight_block_size"] = list(block)
    return Case(config, pack)


def modelopt() -> Case:
    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        tensors, weights = fp8("tensor").pack(rows, columns, draw)
        return {**tensors, ".input_scale": torch.tensor(0.5)}, weights

    return Case({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head*"]}, pack)


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def mxfp4(rows: int, columns: int, draw: np.random.Generator, codes_name: str, scales_name: str) -> Packed:
    codes = draw.integers(0, 16, (rows, columns))
    scales = draw.integers(120, 123, (rows, columns // 32))
    weights = np.array(E2M1)[codes] * 2.0 ** (np.repeat(scales, 32, axis=1) - 127.0)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return {
        codes_name: tensor(packed.astype(np.uint8)),
        scales_name: tensor(scales.astype(np.uint8)),
    }, torch.from_numpy(weights.astype(np.float32))


def gpt_oss(experts: int) -> Pack:
    """`experts` matrices in the layout of gpt-oss."""

    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        tensors, weights = mxfp4(experts * rows, columns, draw, "_blocks", "_scales")
        tensors["_blocks"] = tensors["_blocks"].reshape(experts, rows, columns // 32, 16)
        tensors["_scales"] = tensors["_scales"].reshape(experts, rows, columns // 32)
        return tensors, weights

    return pack


# ---- bitsandbytes ----

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
FP4 = [0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]
FP4 += [-number for number in FP4]


def four_bits(kind: str, *, nested: bool, block: int = 64, storage: torch.dtype = torch.uint8) -> Case:
    table = np.array(NF4 if kind == "nf4" else FP4, dtype=np.float32)

    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        count = rows * columns
        codes = draw.integers(0, 16, count)
        blocks = -(-count // block)
        packed = torch.from_numpy((codes[0::2] << 4 | codes[1::2]).astype(np.uint8))
        tensors: Tensors = {
            ".weight": packed.view(storage).reshape(-1, 1),
            ".weight.quant_map": torch.from_numpy(table.copy()),
        }
        state: dict[str, Any] = {
            "quant_type": kind,
            "blocksize": block,
            "dtype": "bfloat16",
            "shape": [rows, columns],
        }
        if nested:
            nested_map = np.sort(draw.uniform(-1, 1, 256)).astype(np.float32)
            bytes_ = draw.integers(0, 256, blocks)
            outer = draw.uniform(0.05, 0.1, -(-blocks // 256)).astype(np.float32)
            absmax = nested_map[bytes_] * np.repeat(outer, 256)[:blocks] + np.float32(0.2)
            tensors |= {
                ".weight.absmax": tensor(bytes_.astype(np.uint8)), ".weight.nested_absmax": tensor(outer),
                ".weight.nested_quant_map": tensor(nested_map),
            }  # fmt: skip
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.2}
        else:
            absmax = draw.uniform(0.1, 0.3, blocks).astype(np.float32)
            tensors[".weight.absmax"] = tensor(absmax)
        raw = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8).copy()
        tensors[f".weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(raw)
        weights = table[codes] * np.repeat(absmax, block)[:count]
        return tensors, torch.from_numpy(weights.astype(np.float32).reshape(rows, columns))

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    return Case(config, pack, exact=kind == "nf4")


def eight_bits() -> Case:
    def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
        codes = draw.integers(-127, 128, (rows, columns))
        most = draw.uniform(0.05, 0.2, rows).astype(np.float32)
        weights = codes * most[:, None].astype(np.float64) / 127
        tensors = {
            ".weight": tensor(codes.astype(np.int8)), ".SCB": tensor(most),
            ".weight_format": torch.zeros((), dtype=torch.uint8),
        }  # fmt: skip
        return tensors, torch.from_numpy(weights.astype(np.float32))

    return Case({"quant_method": "bitsandbytes", "load_in_8bit": True}, pack, exact=False)


CASES: dict[str, Case] = {
    "gptq-4": gptq(4, 32),
    "gptq-4-row": gptq(4, -1),
    "gptq-4-asym": gptq(4, 32, symmetric=False),
    "gptq-4-v2-asym": gptq(4, 32, symmetric=False, version=2),
    "gptq-4-act-order": gptq(4, 32, order=True),
    "gptq-4-act-order-asym": gptq(4, 32, order=True, symmetric=False),
    "gptq-4-bf16-scales": gptq(4, 32, dtype=torch.bfloat16),
    "gptq-4-f32-scales": gptq(4, 32, dtype=torch.float32),
    "gptq-4-groups-of-8": gptq(4, 8),
    "gptq-2": gptq(2, 32),
    "gptq-3": gptq(3, 32),
    "gptq-3-asym": gptq(3, 32, symmetric=False),
    "gptq-8": gptq(8, 32),
    "gptq-8-asym": gptq(8, 32, symmetric=False),
    "awq-gemm": awq(32),
    "awq-gemv": awq(32, "GEMV"),
    "ct-int8-channel": compressed("int-quantized", 8, "channel"),
    "ct-int8-tensor-f16": compressed("int-quantized", 8, "tensor", dtype=torch.float16),
    "ct-int8-asym": compressed("int-quantized", 8, "channel", symmetric=False, dtype=torch.float16),
    "ct-int4-group": compressed("pack-quantized", 4, "group", group=32, dtype=torch.float16),
    "ct-int4-group-asym": compressed(
        "pack-quantized", 4, "group", group=32, symmetric=False, dtype=torch.float16
    ),
    "ct-int4-act-order": compressed("pack-quantized", 4, "group", group=32, order=True),
    "ct-int4-channel": compressed("pack-quantized", 4, "channel", dtype=torch.float16),
    "ct-int3": compressed("pack-quantized", 3, "group", group=32, dtype=torch.float16),
    "ct-int3-dense-asym": compressed(
        "pack-quantized", 3, "group", group=32, symmetric=False, dense=True, dtype=torch.float16
    ),
    "ct-int6-dense": compressed("pack-quantized", 6, "channel", dense=True, dtype=torch.float16),
    "ct-int5": compressed("pack-quantized", 5, "group", group=32, dtype=torch.float16),
    "ct-int8-packed": compressed("pack-quantized", 8, "group", group=32, dtype=torch.float16),
    "ct-fp8-channel": compressed("float-quantized", 8, "channel"),
    "ct-fp8-tensor": compressed("float-quantized", 8, "tensor"),
    "ct-fp8-block": compressed("naive-quantized", 8, "block", block=(32, 16)),
    "ct-mxfp4": compressed("mxfp4-pack-quantized", 4, "group", group=32),
    "fp8-block": fp8("block"),
    "fp8-small-blocks": fp8("block", block=(32, 16), scale=torch.bfloat16),
    "fp8-e8m0": fp8("block", block=(32, 16), scale=torch.float8_e8m0fnu),
    "fp8-channel": fp8("channel"),
    "fp8-tensor": fp8("tensor"),
    "fp8-e5m2": fp8("tensor", dtype=torch.float8_e5m2),
    "modelopt-fp8": modelopt(),
    "bnb-nf4": four_bits("nf4", nested=False),
    "bnb-nf4-nested": four_bits("nf4", nested=True),
    "bnb-nf4-in-bf16": four_bits("nf4", nested=True, storage=torch.bfloat16),
    "bnb-fp4": four_bits("fp4", nested=False),
    "bnb-int8": eight_bits(),
}

NATIVE = {
    "gptq-4": "int4-g32", "gptq-4-row": "int4-channel", "gptq-4-asym": "int4-g32-asym",
    "gptq-4-v2-asym": "int4-g32-asym",
    "gptq-4-act-order": "int4-g32-ordered", "gptq-4-act-order-asym": "int4-g32-asym-ordered",
    "gptq-4-bf16-scales": "int4-g32", "gptq-4-f32-scales": "int4-g32-f32-scales", "gptq-2": "int2-g32",
    "gptq-3": "int3-g32", "gptq-3-asym": "int3-g32-asym", "gptq-8": "int8-g32", "gptq-8-asym": "int8-g32-asym",
    "awq-gemm": "int4-g32-asym", "awq-gemv": "int4-g32-asym",
    "ct-int8-channel": "int8-channel", "ct-int8-tensor-f16": "int8-channel", "ct-int8-asym": "int8-channel-asym",
    "ct-int4-group": "int4-g32", "ct-int4-group-asym": "int4-g32-asym", "ct-int4-act-order": "int4-g32-ordered",
    "ct-int4-channel": "int4-channel", "ct-int3": "int3-g32", "ct-int3-dense-asym": "int3-g32-asym",
    "ct-int6-dense": "int6-channel", "ct-int5": "int5-g32", "ct-int8-packed": "int8-g32",
    "ct-fp8-channel": "fp8-bf16-scales", "ct-fp8-tensor": "fp8-bf16-scales", "ct-fp8-block": "fp8-g16-bf16-scales",
    "ct-mxfp4": "mxfp4", "fp8-block": "fp8-g128", "fp8-small-blocks": "fp8-g16-bf16-scales",
    "fp8-e8m0": "fp8-g16-e8m0-scales", "fp8-channel": "fp8", "fp8-tensor": "fp8", "fp8-e5m2": "fp8-e5m2",
    "modelopt-fp8": "fp8", "bnb-nf4": "nf4-g32-f32-scales", "bnb-nf4-nested": "nf4-g32-f32-scales",
    "bnb-nf4-in-bf16": "nf4-g32-f32-scales", "bnb-fp4": "fp4-g32-f32-scales", "bnb-int8": "int8-channel-f32-scales",
}  # fmt: skip
"""The packed formats that keep the codes, without "-a16", for rows of 96 features. The others are decoded."""
