"""The files and the table of benchmarks.families."""

from __future__ import annotations

import math

import pytest

from benchmarks.families import __main__ as command
from benchmarks.families.cases import CASES, Work
from benchmarks.families.layout import file_of
from headrace.models.families import read_spec, weight_names
from headrace.plan.weights import parameter_count
from headrace.program.lower import lower


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_parameters_of_its_model(name: str) -> None:
    config = CASES[name].config
    tensors = file_of(config, CASES[name].mix)["tensors"]
    spec = read_spec(dict(config), {})
    assert len({tensor for tensor, _, _ in tensors}) == len(tensors)
    assert sum(math.prod(shape) for _, _, shape in tensors) == parameter_count(
        lower(spec, weight_names(spec))
    )


def test_rows_of_matrices_are_whole_blocks() -> None:
    blocks = {"Q4_K": 256, "Q5_K": 256, "Q6_K": 256, "Q8_0": 32, "MXFP4": 32, "F32": 1}
    for case in CASES.values():
        for _, kind, shape in file_of(case.config, case.mix)["tensors"]:
            assert shape[-1] % blocks[kind] == 0


def test_the_table_compares_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_limit_s", lambda work, threads: 0.005)
    work = Work(16, 16, 8, decode_goal=2.5)
    found = {
        "headrace": {"prefill": [900.0, 1000.0], "decode": [90.0, 100.0, 110.0], "work_s": [2.0]},
        "llamacpp": {"prefill": [500.0], "decode": [40.0, 41.0, 39.0], "work_s": [5.0]},
        "limits": {"prefill": {}, "decode": {}},
    }
    table = command._table("mixture", CASES["mixture"], {work: found}, 2)
    assert "| decode B=16 at 16 | 100 (90 to 110) | 40 (39 to 41) | 2.50 | 2.5 | 2.50 | 0.03 |" in table
    assert "prefill 16" not in table
