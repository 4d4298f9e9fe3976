"""Environments of their own for programs and packages that only some long tests need."""

from __future__ import annotations

import subprocess
import sysconfig
import venv
from pathlib import Path

from tests import needs


def environment(folder: Path, *packages: str) -> Path:
    """The folder of programs of a new environment with the packages; it sees the packages of ours, torch among them."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    library = next((folder / "lib").glob("python*/site-packages"))
    (library / "ours.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    done = subprocess.run(
        [programs / "python", "-m", "pip", "install", "-q", *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        needs.lacking("index", f"{', '.join(packages)} cannot be installed: {done.stderr[-300:]}")
    return programs
