from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.ops.cpu.support import BFLOAT16_SETS, INSTRUCTION_SETS
from headrace.plan.dtypes import dtype_info
from headrace.plan.hardware import Machine
from headrace.plan.hardware_table import (
    CPUS,
    GPUS,
    HARDWARE,
    HARDWARE_NAMES,
    find_hardware,
    this_hardware,
)
from headrace.plan.units import GIB

PRODUCTS = {"f32", "f16", "bf16", "fp8", "i8", "int4", "fp4"}


def test_every_device_has_a_source_and_plausible_rates() -> None:
    assert len({one.name for one in HARDWARE}) == len(HARDWARE)
    for one in HARDWARE:
        assert len(one.source) > 20 and one.watts and one.link > 0
        assert 10**10 < one.bandwidth < 10**13 and 10**10 < one.memory < 10**12
        assert {product for product, _ in one.peak} <= PRODUCTS
        assert find_hardware(one.name) == one
        assert one.machine().memory_available == one.memory


def test_narrower_products_are_never_slower() -> None:
    order = ("f32", "bf16", "fp8", "i8", "int4")
    for one in (*GPUS, *CPUS):
        rates = [rate for product in order if (rate := one.peak_of(product)) is not None]
        assert rates == sorted(rates), one.name


def test_known_figures() -> None:
    h100, t4 = find_hardware("H100"), find_hardware("t4")
    assert h100.peak_of("bf16") == pytest.approx(989.4e12) and h100.bandwidth == 3350e9
    assert t4.peak_of("bf16") is None and t4.peak_of("f16") == 65e12
    # 12 channels x 8 bytes x 4,800 MT/s; 96 cores x 2.4 GHz x 64
    epyc = find_hardware("epyc-9654")
    assert epyc.bandwidth == pytest.approx(460.8e9) and epyc.peak_of("bf16") == pytest.approx(14.7456e12)


def test_cpus_run_the_kernels_of_their_instruction_sets() -> None:
    for one in CPUS:
        machine = one.machine()
        assert machine.kernels[-1] == "portable" and set(machine.kernels) <= set(INSTRUCTION_SETS)
        native = dtype_info(machine).native
        assert (
            ("bfloat16" in native)
            == (one.peak_of("bf16") is not None)
            == (machine.kernels[0] in BFLOAT16_SETS)
        )
    assert find_hardware("xeon-8480").machine().kernels[0] == "amx"
    assert not find_hardware("h100").machine().kernels


def test_several_in_one_machine() -> None:
    four = find_hardware("4xa10g")
    assert (four.count, four.label, four.total_memory, four.total_watts) == (4, "4xa10g", 96 * 10**9, 1200)
    assert four.machine().memory_available == 24 * 10**9  # of one device
    assert find_hardware("1xh100") == find_hardware("h100")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("h1000", "did you mean h100? There are this"),
        ("A100-80GiB", "did you mean a100-80g?"),
        ("epyc-9564", "did you mean epyc-9"),
        ("4xa10q", "did you mean a10"),
        ("toaster", "there are this, h100"),
        ("", "there are this, h100"),
        ("16xh100", "plan for 8xh100"),
        ("0xh100", "plan for h100"),
        ("2xthis", "plan for this"),
        ("99999xh100", "no hardware"),
    ],
)
def test_hardware_that_is_not_there(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match="hardware") as caught:
        find_hardware(name)
    assert words in str(caught.value) and len(str(caught.value)) < 500


def test_this_machine_has_rates_for_what_it_multiplies() -> None:
    plain = Machine("cpu", "CPU", 8 * GIB, 4 * GIB, 2)
    wide = Machine("cpu", "CPU", 8 * GIB, 4 * GIB, 2, flags=frozenset({"amx_bf16"}))
    assert this_hardware(plain).memory == 4 * GIB
    assert this_hardware(plain).peak_of("bf16") is None
    assert (this_hardware(wide).peak_of("bf16") or 0) > (this_hardware(wide).peak_of("f32") or 0)
    assert "headrace calibrate" in this_hardware(plain).source and HARDWARE_NAMES[0] == "this"
