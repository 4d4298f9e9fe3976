"""The official npm client, installed into a temporary folder, against servers of ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.conftest import ServeProcess, TinyServer, tale, tiny
from tests.server.echo import echo

SCRIPT = Path(__file__).with_name("openai.mjs")
VERSION = "^7"

__all__ = ["echo", "tale", "tiny"]  # fixtures

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm")
    (folder / "package.json").write_text('{"private": true}')
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", f"openai@{VERSION}"],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"npm could not install the client: {done.stderr.strip()[-300:]}")
    shutil.copy(SCRIPT, folder)
    return folder


def run(folder: Path, *urls: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", SCRIPT.name, *urls], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_npm_client(folder: Path, echo: TinyServer, tale: ServeProcess) -> None:
    done = run(folder, echo.url, tale.url)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^  async (\w+)\(", SCRIPT.read_text(), re.MULTILINE)
    assert re.findall(r"^ok (\w+)$", done.stdout, re.MULTILINE) == names


def test_a_server_that_answers_otherwise_is_noticed(
    folder: Path, tiny: TinyServer, tale: ServeProcess
) -> None:
    """The counting engine says something else, and calls nothing."""
    done = run(folder, tiny.url, tale.url)
    assert done.returncode == 1
    assert {"chat", "stream", "tools", "toolsStreamed", "responses"} <= set(
        re.findall(r"^FAILED (\w+):", done.stdout, re.MULTILINE)
    )
