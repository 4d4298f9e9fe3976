"""Each extra alone in a fresh environment, running its feature."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.places import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

GENERATE = """
from headrace import LLM, SamplingParams
llm = LLM("tale", show_progress=False, num_threads=1)
assert llm.generate(["Once"], SamplingParams(max_tokens=4), use_tqdm=False)[0].outputs[0].token_ids
"""

GRAMMAR = """
import json
from headrace import LLM, Grammar, SamplingParams
llm = LLM("tale", show_progress=False, num_threads=1)
schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
params = SamplingParams(max_tokens=40, grammar=Grammar("json_schema", schema))
assert set(json.loads(llm.generate(["Once"], params, use_tqdm=False)[0].outputs[0].text)) == {"a"}
"""

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheel` makes."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([ROOT / "tools/wheel.sh", folder], check=True, timeout=900)
    (found,) = folder.glob("headrace-*.whl")
    return found


class Environment:
    """A virtual environment with one extra, or none, and no other program on PATH than its own."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        install = [folder / "bin/python", "-m", "pip", "install", "-q", what]
        subprocess.run(install, env=self.variables, check=True, timeout=1200)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, away from the source tree."""
        return subprocess.run(
            [self.folder / "bin" / program, *arguments], cwd=self.folder, env=self.variables, text=True,
            capture_output=True, timeout=600,
        )  # fmt: skip

    @property
    def variables(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))
        }
        return kept | {"PATH": str(self.folder / "bin")}

    def works(self, code: str) -> None:
        outcome = self.run("python", "-c", code)
        assert outcome.returncode == 0, outcome.stderr

    def structured_answer(self, *options: str) -> None:
        """`headrace serve` answers with what follows a schema."""
        process = subprocess.Popen(
            [self.folder / "bin/headrace", "serve", "tale", "--port", "0", "--num-threads", "1", *options],
            cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if " is ready at " in line:
                    break
            else:
                raise AssertionError(f"headrace serve did not start:\n{said}")
            url = line.split(" is ready at ")[1].split()[0]
            body = {
                "messages": [{"role": "user", "content": "a"}], "max_tokens": 40,
                "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
            }  # fmt: skip
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
            assert answer.status_code == 200, answer.text
            assert set(json.loads(answer.json()["choices"][0]["message"]["content"])) == {"a"}
        finally:
            process.terminate()
            process.wait(60)


def test_no_extra(tmp_path: Path, wheel: Path) -> None:
    """The native path, without a compiler and without torch."""
    assert "manylinux" in wheel.name
    here = Environment(tmp_path / "venv", wheel, "")
    assert not any(
        shutil.which(name, path=here.variables["PATH"]) for name in ("cc", "c++", "g++", "clang++")
    )
    here.works(GENERATE)
    assert here.run("python", "-c", "import torch").returncode == 1
    outcome = here.run("headrace", "generate", "Once", "--dtype", "float16")
    assert (
        outcome.returncode == 1 and "torch is not installed: pip install 'headrace[torch]'" in outcome.stderr
    )
    outcome = here.run("headrace", "serve", "tale")
    assert outcome.returncode == 1 and "pip install 'headrace[server]'" in outcome.stderr
    outcome = here.run("python", "-c", GRAMMAR)
    assert outcome.returncode == 1 and "pip install 'headrace[grammar]'" in outcome.stderr


def test_torch(tmp_path: Path, wheel: Path) -> None:
    Environment(tmp_path / "venv", wheel, "torch").works(
        GENERATE.replace('"tale"', '"tale", dtype="float16"')
    )


def test_server(tmp_path: Path, wheel: Path) -> None:
    Environment(tmp_path / "venv", wheel, "server").structured_answer()


def test_grammar(tmp_path: Path, wheel: Path) -> None:
    Environment(tmp_path / "venv", wheel, "grammar").works(GRAMMAR)


def test_otel(tmp_path: Path, wheel: Path) -> None:
    """No server listens at the endpoint: the exporter starts and affects no request."""
    here = Environment(tmp_path / "venv", wheel, "otel")
    here.structured_answer("--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces")


def test_bench(tmp_path: Path, wheel: Path) -> None:
    here = Environment(tmp_path / "venv", wheel, "bench")
    plot = here.folder / "latency.svg"
    outcome = here.run("headrace", "bench", "latency", "--model", "tale", "--plot", str(plot))
    assert outcome.returncode == 0, outcome.stderr
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize("extra", ["test", "all", "dev"])
def test_the_others(tmp_path: Path, wheel: Path, extra: str) -> None:
    """`test` and `dev` hold tools: those that tests of the core need run them; `all` is what the other extras are."""
    here = Environment(tmp_path / "venv", wheel, extra)
    here.works(GENERATE)
    if extra in ("test", "dev"):
        outcome = here.run("python", "-m", "pytest", "-q", str(ROOT / "tests/core/test_params.py"), "-c", os.devnull,
                           "--rootdir", str(ROOT), "-p", "no:cacheprovider", "--import-mode=importlib")  # fmt: skip
        assert outcome.returncode == 0, outcome.stdout
    if extra in ("all", "dev"):
        here.works("import matplotlib, opentelemetry.sdk, fastapi, llguidance, torch")


def test_no_extra_is_left_out() -> None:
    assert set(EXTRAS) == {"server", "torch", "grammar", "otel", "bench", "test", "all", "dev"}
