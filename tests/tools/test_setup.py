"""tools/setup.sh as the Makefile calls it: what it refuses, how it ends early, and what it installs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pip
import pytest
from pip._vendor.distlib.scripts import ScriptMaker

from tests.places import ROOT

LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv",
    "build",
    "dist",
    "work",
    "scratch",
    "__pycache__",
    "_native*.so",
    "_build_info.py",
    ".*_cache",
)
INTERPRETER = os.path.realpath(sys._base_executable)
VARIABLES = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}


def copy_of_the_tree(folder: Path) -> Path:
    """A checkout that was never set up; in its path a space."""
    return shutil.copytree(ROOT, folder / "my checkout", ignore=LEFT_OUT, symlinks=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_of_the_tree(tmp_path)


def environment(checkout: Path) -> None:
    """Make .venv with the pip of this process: ensurepip would take four seconds."""
    venv = checkout / ".venv"
    subprocess.run([INTERPRETER, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(pip.__file__).parent)
    scripts = ScriptMaker(None, str(venv / "bin"))
    scripts.executable = str(venv / "bin" / "python")
    scripts.make("pip = pip._internal.cli.main:main")


def run(
    checkout: Path, *command: str, interrupt_at: str | None = None, **options: Any
) -> tuple[int, list[str]]:
    """(exit status, lines printed). `interrupt_at`: Ctrl-C comes, as from a terminal, after a line that holds it."""
    lines = []
    with subprocess.Popen(
        command, cwd=checkout, env=VARIABLES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, **options,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if interrupt_at is not None and interrupt_at in line:
                os.killpg(process.pid, signal.SIGINT)
    with pytest.raises(ProcessLookupError):  # nothing of it is left
        os.killpg(process.pid, 0)
    return process.returncode, lines


@pytest.mark.parametrize(
    ("command", "said"), [("make demo", "Interrupt"), ("tools/setup.sh server", "setup: interrupted")]
)
def test_ctrl_c_ends_the_setup_with_one_line(checkout: Path, command: str, said: str):
    status, lines = run(checkout, *command.split(), interrupt_at="creating .venv")
    assert status == -signal.SIGINT  # a shell reports 130
    assert len(lines) == 2, lines
    line = lines[-1]
    assert said in line


def test_another_interpreter_than_that_of_the_environment_is_refused(checkout: Path, tmp_path: Path):
    subprocess.run([INTERPRETER, "-m", "venv", "--without-pip", str(checkout / ".venv")], check=True)
    other = tmp_path / "python-other"
    shutil.copy(INTERPRETER, other)
    status, lines = run(checkout, "make", "demo", f"PYTHON={other}")
    assert status == 2
    assert lines[0].startswith(f"setup: .venv was made from {INTERPRETER}; PYTHON={other} is {other}.")
    assert run(checkout, "make", "interpreter", f"PYTHON={sys.executable}") == (0, [])


def test_the_path_of_the_interpreter_may_hold_spaces(checkout: Path, tmp_path: Path):
    link = tmp_path / "my python"
    link.symlink_to(INTERPRETER)
    _, lines = run(checkout, "make", "demo", f"PYTHON={link}", interrupt_at="creating .venv")
    assert lines[0].startswith("setup: creating .venv with Python 3")


def test_an_index_that_cannot_be_reached_is_named(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in (
        ("PIP_INDEX_URL", "http://127.0.0.1:9/simple"),
        ("PIP_FIND_LINKS", ""),
        ("PIP_RETRIES", "0"),
    ):
        monkeypatch.setitem(VARIABLES, name, value)
    environment(checkout)
    status, lines = run(checkout, "make", "demo")
    assert status == 2
    assert not any("creating .venv" in line for line in lines)
    (line,) = (line for line in lines if line.startswith("setup: the build tools"))
    assert "the package index cannot be reached" in line


def test_a_second_set_up_waits_for_the_first(checkout: Path):
    stamp = ".venv/.installed-server-1"
    (checkout / ".venv").mkdir()
    holder = subprocess.Popen(["flock", ".", "cat"], cwd=checkout, stdin=subprocess.PIPE)
    assert holder.stdin is not None
    while subprocess.run(["flock", "-n", ".", "true"], cwd=checkout, check=False).returncode == 0:
        assert holder.poll() is None
    with subprocess.Popen(
        ["tools/setup.sh", "server", stamp], cwd=checkout, env=VARIABLES, stdout=subprocess.PIPE, text=True
    ) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == "setup: another command sets up this folder; waiting for it\n"
        (checkout / stamp).touch()
        holder.stdin.close()
        assert second.stdout.read() == "" and second.wait() == 0
    assert holder.wait() == 0


def test_a_moved_checkout_is_set_up_again(checkout: Path):
    environment(checkout)
    moved = checkout.rename(checkout.parent / "moved")
    status, lines = run(moved, "make", "demo", interrupt_at="creating .venv")
    assert status == -signal.SIGINT
    assert lines[0] == "setup: .venv was made in another folder; making it again"


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A checkout in which the user of the test, or where that is root, no user may write."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    checkout = copy_of_the_tree(folder)
    if os.geteuid():
        checkout.chmod(0o555)
    yield checkout
    checkout.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_checkout_gives_one_line(read_only: Path):
    options = {} if os.geteuid() else {"user": 65534, "group": 65534, "extra_groups": []}
    status, lines = run(read_only, "tools/setup.sh", "server", **options)
    assert status == 1
    (line,) = lines
    assert line.startswith(f"setup: {read_only} cannot be written to")
    assert run(read_only, "make", "demo", **options)[1][0] == line


def size(folder: Path) -> int:
    files = [path.lstat() for path in folder.rglob("*") if not path.is_dir()]
    return sum({info.st_ino: info.st_blocks * 512 for info in files}.values())


def run_demo(checkout: Path) -> list[str]:
    status, lines = run(checkout, "make", "demo", "ARGS=--requests 4")
    assert status == 0, "\n".join(lines)
    return lines


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_demo_from_nothing_is_small_and_survives_a_copy(checkout: Path):
    run_demo(checkout)
    assert size(checkout / ".venv") < 250e6
    assert not list(checkout.glob(".venv/lib/*/site-packages/torch"))
    assert not any("setup:" in line for line in run_demo(checkout))
    copy = shutil.copytree(checkout, checkout.parent / "copy", symlinks=True)
    shutil.rmtree(checkout / "src")
    assert "setup: .venv was made in another folder; making it again" in run_demo(copy)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_set_up_without_kernels_installs_torch_and_says_so(checkout: Path):
    status, lines = run(checkout, "env", "HEADRACE_NATIVE=OFF", "tools/setup.sh", "server")
    assert status == 0, "\n".join(lines)
    assert any("setup: installing torch, which runs models in their place" in line for line in lines)
    assert run(checkout, ".venv/bin/headrace", "generate", "Once", "--max-tokens", "4")[0] == 0
