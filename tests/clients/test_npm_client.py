"""The official npm clients of OpenAI and Ollama, installed into a temporary folder, against servers of ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import needs
from tests.server.conftest import ServeProcess, TinyServer, tale, tiny
from tests.server.echo import echo

HERE = Path(__file__).parent
CLIENTS = {"openai": "^7", "ollama": "^0.6"}
"""Packages, each with a script of its name here."""

__all__ = ["echo", "tale", "tiny"]  # fixtures

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("npm") is None or shutil.which("node") is None:
        needs.lacking("npm", "node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm")
    (folder / "package.json").write_text('{"private": true}')
    packages = [f"{name}@{version}" for name, version in CLIENTS.items()]
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *packages],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        needs.lacking("npm", f"npm could not install the clients: {done.stderr.strip()[-300:]}")
    for name in CLIENTS:
        shutil.copy(HERE / f"{name}.mjs", folder)
    return folder


def run(folder: Path, client: str, *urls: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", f"{client}.mjs", *urls], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_an_npm_client(folder: Path, echo: TinyServer, tale: ServeProcess, client: str) -> None:
    done = run(folder, client, echo.url, tale.url)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^  async (\w+)\(", (HERE / f"{client}.mjs").read_text(), re.MULTILINE)
    assert re.findall(r"^ok (\w+)$", done.stdout, re.MULTILINE) == names


OTHERWISE = {
    "openai": {"chat", "stream", "tools", "toolsStreamed", "responses"},
    "ollama": {"chat", "stream", "tools", "thinking"},
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_that_answers_otherwise_is_noticed(
    folder: Path, tiny: TinyServer, tale: ServeProcess, client: str
) -> None:
    """The counting engine says something else, and calls nothing."""
    done = run(folder, client, tiny.url, tale.url)
    assert done.returncode == 1
    assert OTHERWISE[client] <= set(re.findall(r"^FAILED (\w+):", done.stdout, re.MULTILINE))
