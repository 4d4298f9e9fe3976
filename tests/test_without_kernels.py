"""The tests that make sense without the C++ kernels, on an installation that was made with HEADRACE_NATIVE=OFF."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.places import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

CHOSEN = [
    "tests/cli", "tests/models", "tests/ops", "tests/quant", "tests/runner", "tests/server/test_serve.py",
    "tests/test_llm.py", "tests/test_llm_grammar.py",
]  # fmt: skip


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with Headrace without kernels, and with this environment's packages."""
    folder = tmp_path_factory.mktemp("without")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    build = f"-Cbuild-dir={folder / 'build'}"  # not the folder that this environment's kernels are built in
    subprocess.run(
        [*pip, build, str(ROOT)], env=os.environ | {"HEADRACE_NATIVE": "OFF"}, check=True, timeout=600
    )
    packages = [path for path in sys.path if path.endswith("site-packages")] or [
        sysconfig.get_path("purelib")
    ]
    (site / "packages.pth").write_text("\n".join(packages))
    return folder / "bin" / "python"


def test_without_kernels(python: Path) -> None:
    features = "from headrace.ops.cpu_features import detect; print(detect().native, detect().note)"
    reported = subprocess.run(
        [python, "-c", features], cwd=python.parent, text=True, capture_output=True, check=True
    )
    assert reported.stdout.startswith("False") and "switched off at install" in reported.stdout
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN], cwd=ROOT, text=True,
        capture_output=True, env=os.environ | {"HEADRACE_REQUIRE": "packages"}, check=False,
    )  # fmt: skip
    print(done.stdout[-20_000:])
    assert done.returncode == 0, done.stderr[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) > 700
