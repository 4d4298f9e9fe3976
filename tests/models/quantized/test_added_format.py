"""A format that the package does not know is added by one small file, and runs in the native kernels."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.models.quantized.methods import METHODS, add_method
from tests.conformance.test_families import expected_logits, prompt
from tests.models.quantized import added_format
from tests.models.quantized.models import FOUR, change, family, quantize
from tests.models.quantized.packers import Case, Packed
from tests.models.quantized.test_models import error, load, logits

GROUP = 32


def pack(rows: int, columns: int, draw: np.random.Generator) -> Packed:
    steps = torch.from_numpy(draw.integers(-128, 128, (rows, columns), dtype=np.int8))
    step = torch.from_numpy(draw.uniform(4e-4, 12e-4, (rows, columns // GROUP))).half()
    return {".steps": steps, ".step": step}, steps.float() * step.float().repeat_interleave(GROUP, 1)


CASE = Case({"quant_method": "steps", "group_size": GROUP}, pack)


@pytest.fixture
def added() -> Iterator[None]:
    add_method("steps", added_format.read_steps)
    yield
    del METHODS["steps"]


@pytest.mark.parametrize("name", FOUR)
def test_its_codes_run_in_the_native_kernels(added: None, name: str, tmp_path: Path) -> None:
    model = family(name).build(tmp_path)
    quantize(tmp_path, model, CASE)
    assert error(logits(tmp_path, prompt()), expected_logits(model, prompt())) < 1e-2
    formats = load(tmp_path)[0].resolved.weight_formats
    assert formats is not None and not formats.decoded
    assert {formats.of(name).name for name in formats.kept} == {"int8-g32-a16"}


def test_its_tensors_are_checked_as_those_of_every_format(added: None, tmp_path: Path) -> None:
    quantize(tmp_path, family(FOUR[0]).build(tmp_path), CASE)
    module = "model.layers.0.mlp.up_proj"
    change(tmp_path, {f"{module}.step": torch.ones(96, 3, dtype=torch.float16)})
    with pytest.raises(CheckpointError, match=f"{module}.step"):
        load(tmp_path)


def test_it_is_unknown_before_it_is_added(tmp_path: Path) -> None:
    quantize(tmp_path, family(FOUR[0]).build(tmp_path), CASE)
    with pytest.raises(UnsupportedModel, match="quantised with 'steps'"):
        load(tmp_path)


def test_a_name_is_added_once(added: None) -> None:
    with pytest.raises(ValueError, match="steps"):
        add_method("steps", added_format.read_steps)


def test_it_takes_under_forty_lines() -> None:
    lines = [line for line in inspect.getsource(added_format).splitlines() if line.strip()]
    assert len(lines) < 40
