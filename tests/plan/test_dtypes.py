from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headrace.errors import ConfigError
from headrace.plan.dtypes import DtypeInfo, automatic_kv_dtype, choose_dtype, dtype_info
from headrace.plan.hardware import Machine


@pytest.mark.parametrize(
    ("stored", "flags", "chosen", "word"),
    [
        ("bfloat16", (), "float32", "AMX-BF16"),
        ("bfloat16", ("avx2", "avx512f"), "float32", "AVX512-BF16"),
        ("bfloat16", ("amx_bf16",), "bfloat16", "stored in"),
        ("bfloat16", ("avx512_bf16",), "bfloat16", "stored in"),
        ("float16", (), "float32", "float16"),
        ("float16", ("amx_bf16", "avx512_fp16"), "float32", "every bit"),
        ("float32", ("amx_bf16",), "float32", "stored in"),
    ],
)
def test_auto_on_a_cpu(
    make_machine: Callable[..., Machine], stored: str, flags: tuple[str, ...], chosen: str, word: str
) -> None:
    dtype, reason = choose_dtype("auto", stored, dtype_info(make_machine(flags=flags)), "asked")
    assert dtype == chosen and word in reason


@pytest.mark.parametrize(
    ("kernels", "force", "native"),
    [
        (("avx512", "avx512_vnni", "portable"), None, True),
        (("avx512_vnni", "avx512", "portable"), None, False),  # as Intel's CPUs prefer
        (("avx512_vnni", "avx512", "portable"), "avx512", True),
        (("avx512", "avx512_vnni", "portable"), "avx512_vnni", False),
        (("avx512_vnni", "avx512", "portable"), "torch", True),
        ((), None, True),
    ],
)
def test_kernels_decide_before_flags(
    make_machine: Callable[..., Machine], kernels: tuple[str, ...], force: str | None, native: bool
) -> None:
    machine = replace(make_machine(flags=("avx512_bf16",)), kernels=kernels)
    assert ("bfloat16" in dtype_info(machine, force).native) == native


@pytest.mark.parametrize(
    ("asked", "stored", "dtype", "quantized", "kv"),
    [
        ("auto", "bfloat16", "float32", False, "bfloat16"),  # float32 for want of instructions alone
        ("auto", "float16", "float32", True, "bfloat16"),
        ("auto", "float16", "float32", False, "float32"),  # bfloat16 would lose bits
        ("auto", "float32", "float32", False, "float32"),
        ("auto", "bfloat16", "bfloat16", False, "bfloat16"),
        ("float32", "bfloat16", "float32", False, "float32"),
    ],
)
def test_keys_and_values_stay_in_16_bits(
    asked: str, stored: str, dtype: str, quantized: bool, kv: str
) -> None:
    assert automatic_kv_dtype(asked, stored, dtype, quantized=quantized)[0] == kv


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_auto_on_a_gpu_keeps_the_stored_type(make_machine: Callable[..., Machine], stored: str) -> None:
    assert choose_dtype("auto", stored, dtype_info(make_machine(kind="cuda")), "asked")[0] == stored


def test_asked_types_must_be_supported() -> None:
    info = DtypeInfo(supported=("float32", "bfloat16"), native=("float32",))
    assert choose_dtype("bfloat16", "float32", info, "asked") == ("bfloat16", "asked")
    with pytest.raises(
        ConfigError, match="float16 cannot be computed on this device; use float32 or bfloat16"
    ):
        choose_dtype("float16", "float32", info, "asked")
