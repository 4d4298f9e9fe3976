"""Checkpoints that bitsandbytes and compressed-tensors write now, and that transformers runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import needs
from tests.environments import environment
from tests.places import ROOT

needs.native()
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

RUNS = Path(__file__).parent / "package_runs.py"
PACKAGES = ("accelerate>=1.15,<2", "bitsandbytes>=0.50,<1", "compressed-tensors>=0.20,<1")


def test_transformers_and_headrace_agree(tmp_path: Path) -> None:
    programs = environment(tmp_path / "env", *PACKAGES)
    command = [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", RUNS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
