from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import ConfigError
from headrace.plan.dtypes import DtypeInfo, choose_dtype, dtype_info
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
