"""Folders that the methods' own packages wrote, against the logits that transformers computed from them.

tools/quantized_checkpoints.py made them; test_packages.py lets the packages write others, and runs those.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests import needs

needs.native()

from tests.models.quantized.test_models import error, load, logits  # noqa: E402

WRITTEN = Path(__file__).parent / "written"
ROUNDED = {"bitsandbytes-int8", "llm-compressor-w8a8"}
"""Whose own runs round activations to 8 bits, on a grid of their own: 127.5 steps, or in float16."""
FOLDERS = sorted(path.name for path in WRITTEN.iterdir())


def test_there_are_folders_of_every_package() -> None:
    assert {name.rpartition("-")[0] for name in FOLDERS} == {"auto-round", "bitsandbytes", "llm-compressor"}
    assert sum(path.stat().st_size for path in WRITTEN.rglob("model.safetensors")) < 100_000


@pytest.mark.parametrize("name", FOLDERS)
def test_transformers_and_headrace_agree(name: str) -> None:
    expected = load_file(WRITTEN / name / "expected.safetensors")
    plan, _ = load(WRITTEN / name)
    assert plan.spec.codes is not None and len(plan.spec.codes.formats) >= 5
    ours = logits(WRITTEN / name, expected["tokens"].tolist())
    assert error(ours, expected["logits"]) < (2e-2 if name in ROUNDED else 1e-2)
