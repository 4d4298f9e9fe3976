"""What runs in an interpreter without torch, and the errors of the rest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from headrace import extras
from tests import needs
from tests.places import ROOT
from tests.server.conftest import serve

BLOCK = """
import os, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name in os.environ.get("BLOCKED", "torch").split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""
SHORT = ["--num-threads", "1"]


@pytest.fixture
def kernels() -> None:
    needs.native()


@pytest.fixture
def blocked(tmp_path: Path) -> dict[str, str]:
    """Environment variables under which no interpreter, nor any that it starts, finds torch."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    return {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "BLOCKED": "torch"}


def run(blocked: dict[str, str], *words: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=os.environ | blocked, cwd=ROOT, capture_output=True, text=True,
        check=False, **options,
    )  # fmt: skip


def test_torch_is_blocked(blocked: dict[str, str]):
    outcome = run(blocked, "-c", "import torch")
    assert "No module named 'torch'" in outcome.stderr


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["generate", "Once upon a time", "--max-tokens", "4", "--temperature", "0.7", "--top-p", "0.9"], "4 tokens"),
        pytest.param(
            ["generate", "Once upon a time", "--max-tokens", "4", "--quantization", "int4"], "4 tokens",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["generate", "Once upon a time", "--max-tokens", "4", "--quantization", "int8-g64"], "4 tokens",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["bench", "latency", "--model", "shape:tiny", "--input-len", "8", "--output-len", "2"], "TTFT",
            marks=pytest.mark.long,
        ),
    ],
    ids=["generate", "int4", "int8", "bench"],
)  # fmt: skip
def test_native_path(blocked: dict[str, str], words: list[str], shown: str):
    outcome = run(blocked, "-m", "headrace", *words, *SHORT)
    assert outcome.returncode == 0, outcome.stderr
    assert shown in outcome.stdout + outcome.stderr


@pytest.mark.usefixtures("kernels")
def test_chat(blocked: dict[str, str]):
    outcome = run(blocked, "-m", "headrace", "chat", "--max-tokens", "4", *SHORT, input="Tell me a story.\n")
    assert outcome.returncode == 0, outcome.stderr
    assert "4 tokens" in outcome.stdout + outcome.stderr


@pytest.mark.usefixtures("kernels")
def test_serve(blocked: dict[str, str]):
    server = serve("tale", "--port", "0", *SHORT, env=blocked)
    try:
        body = {
            "model": "tale",
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 4,
            "logprobs": True,
        }
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 4
    finally:
        server.process.terminate()
        server.process.wait(60)


@pytest.mark.parametrize(
    ("also", "options", "why"),
    [
        pytest.param("", ["--dtype", "float16"], "float16", marks=pytest.mark.long),
        pytest.param("", ["--ops-force", "reference"], "reference was asked for", marks=pytest.mark.long),
        ("headrace._native", [], "native kernels not built"),
    ],
    ids=["dtype", "reference ops", "no kernels"],
)
def test_errors_without_torch_give_the_install_command(
    blocked: dict[str, str], also: str, options: list[str], why: str
):
    """Also where `inspect` shows the same model: planning never needs torch."""
    blocked["BLOCKED"] += f" {also}"
    outcome = run(blocked, "-m", "headrace", "generate", "Once", "--max-tokens", "1", *options)
    assert outcome.returncode == 1
    (line,) = outcome.stderr.strip().splitlines()
    assert why in line
    assert "torch is not installed: " in line and line.endswith("pip install '.[torch]'")
    inspected = run(blocked, "-m", "headrace", "inspect", "tale", *options)
    assert inspected.returncode == 0, inspected.stderr
    assert "torch runs the model" in inspected.stdout


def test_commands_that_install_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a wheel, of a checkout, and of a checkout that is another folder; by a pip of this very environment."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    (tmp_path / "bin").mkdir()
    for program in ("pip", "python"):
        (tmp_path / "bin" / program).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "lib/site-packages/headrace/extras.py"))
    assert extras.install_command("torch") == "pip install 'headrace[torch]'"
    checkout = tmp_path / "my checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(extras, "__file__", str(checkout / "src/headrace/extras.py"))
    assert extras.install_command("torch") == f"pip install '{checkout}[torch]'"
    monkeypatch.chdir(checkout)
    assert extras.install_command("torch") == "pip install '.[torch]'"
    (tmp_path / "bin/pip").unlink()
    assert extras.install_command("torch") == "python -m pip install '.[torch]'"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert extras.install_command("torch") == f"{tmp_path}/bin/python -m pip install '.[torch]'"
    monkeypatch.setattr(sys, "executable", str(checkout / ".venv/bin/python"))
    assert extras.install_command("torch") == ".venv/bin/python -m pip install '.[torch]'"
