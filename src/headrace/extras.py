"""The pip command that installs an extra, as a user can type it here."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path


def install_command(extra: str) -> str:
    """`pip install 'headrace[EXTRA]'`; where the package runs from a checkout, `pip install '.[EXTRA]'`.

    Names this interpreter where `pip` alone would not install for it, and the checkout where it is another folder.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        where = "." if checkout == Path.cwd() else str(checkout)
        return f"{_pip()} install {shlex.quote(f'{where}[{extra}]')}"
    return f"{_pip()} install 'headrace[{extra}]'"


def _pip() -> str:
    executable = Path(sys.executable)
    if _on_path("pip") == executable.parent:
        return "pip"
    if _on_path("python") == executable.parent:
        return "python -m pip"
    here = executable.relative_to(Path.cwd()) if executable.is_relative_to(Path.cwd()) else executable
    return f"{shlex.quote(str(here))} -m pip"


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return None if found is None else Path(found).parent
