"""The kernels under the sanitizers of the compiler (`make sanitize`), which must find each fault planted here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.places import ROOT

TOOLS = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
SETS = needs.native().available_kernels()

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def report() -> str:
    """What `make sanitize` prints when both programs end well. The first build takes minutes."""
    done = subprocess.run(
        ["tools/sanitize.sh"], cwd=ROOT, env=TOOLS, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_instruction_set_is_clean(report: str) -> None:
    assert report.count("sanitize: ") == 2
    for name in SETS:
        assert report.count(f"{name}: clean") == 2, name


@pytest.mark.parametrize(
    ("fault", "build", "found"),
    [
        ("overrun", "memory", "AddressSanitizer"),
        ("overflow", "memory", "signed integer overflow"),
        ("race", "races", "data race"),
    ],
)
def test_a_planted_fault_is_found(report: str, fault: str, build: str, found: str) -> None:
    program = ROOT / f"build/sanitize-{build}" / "headrace_driver"
    done = subprocess.run([program, "--plant", fault], capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert found in done.stderr and "went unnoticed" not in done.stderr, done.stderr
