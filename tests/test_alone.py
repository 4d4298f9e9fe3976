"""A test marked `alone` has the machine to itself, among workers that never stop otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

TESTS = """
import time
from pathlib import Path

import pytest


def note(number):
    with open(Path(__file__).with_name("notes"), "a") as notes:
        notes.write(f"begin {number}\\n")
        notes.flush()
        time.sleep(0.02)
        notes.write(f"end {number}\\n")


@pytest.mark.parametrize("number", range(30))
def test_with_others(number):
    note(number)


@pytest.mark.MARK
@pytest.mark.parametrize("number", range(100, 110))
def test_alone(number):
    note(number)
"""


def company(folder: Path, mark: str) -> int:
    """How many tests of ten with this mark ran beside another one."""
    (folder / "test_it.py").write_text(TESTS.replace("MARK", mark))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n  other\n")
    plugins = ["-p", "xdist", "-p", "tests.alone", "-n", "2", "--dist", "load"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, str(folder)], cwd=folder, text=True, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, check=False,
    )  # fmt: skip
    assert "40 passed" in done.stdout, done.stdout + done.stderr
    notes = (folder / "notes").read_text().splitlines()
    return sum(
        notes[notes.index(f"begin {number}") + 1] != f"end {number}"
        or not notes[max(notes.index(f"begin {number}") - 1, 0)].startswith("end")
        for number in range(100, 110)
    )


@pytest.mark.long
def test_one_that_is_marked_runs_beside_no_other(tmp_path: Path) -> None:
    assert company(tmp_path, "alone") == 0


@pytest.mark.long
def test_one_that_is_not_marked_meets_others(tmp_path: Path) -> None:
    """The planted fault of the test before: without the mark they would meet."""
    assert company(tmp_path, "other") > 0
