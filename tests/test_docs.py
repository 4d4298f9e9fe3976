"""What the README and the examples say is true: the tree, the links, and every command."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

from tests.places import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
RUN = [sys.executable, "-m", "headrace.cli"]


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for kind, text in fences if kind == language]


def commands() -> list[str]:
    lines = [line.split("    #")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line]


def run(words: list[str], stdin: str = "", timeout: float = 170.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False
    )


def test_every_command_is_of_a_known_kind() -> None:
    kinds = {line.split()[0] for line in commands()}
    assert kinds == {"make", "headrace"}
    assert {"generate", "chat", "inspect", "bench", "serve"} <= {
        line.split()[1] for line in commands() if line.startswith("headrace")
    }


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make")])
def test_make_targets_exist(line: str) -> None:
    done = run(["make", "--dry-run", *line.split()[1:]])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "line",
    [line for line in commands() if line.startswith("headrace") and not line.startswith("headrace serve")],
)
def test_readme_commands_run(line: str) -> None:
    done = run([*RUN, *shlex.split(line)[1:]], stdin="Hello!\n/stats\n/exit\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 40


@pytest.mark.parametrize("code", blocks("python"))
def test_readme_python_runs(code: str) -> None:
    done = run([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr
    assert "RequestMetrics" in done.stdout


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "openai_client.py"])
def test_examples_run(name: str) -> None:
    done = run([sys.executable, f"examples/{name}"])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 100


@pytest.fixture
def served() -> Iterator[str]:
    """`headrace serve` as the README says, on a port that is free; gives the address of its API."""
    (line,) = [line for line in commands() if line.startswith("headrace serve")]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [str(port) if word == "8000" else word for word in shlex.split(line)[1:]]
    with subprocess.Popen([*RUN, *words], stdout=subprocess.DEVNULL, cwd=ROOT) as server:
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        break
                except OSError:
                    assert server.poll() is None and time.monotonic() < deadline
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            assert server.wait(30) == 0


def test_the_served_model_answers_the_example_client(served: str) -> None:
    done = run([sys.executable, "examples/openai_client.py", served])
    assert done.returncode == 0, done.stderr
    assert "bear" in done.stdout


def test_the_tree_names_what_is_there() -> None:
    (tree,) = [block for block in blocks("") if block.startswith("src/headrace/")]
    folder = ROOT
    named = set()
    for line in tree.splitlines():
        name, *what = line.strip().split(None, 1)
        folder = ROOT / "src" / "headrace" if line.startswith("  ") else ROOT
        assert (folder / name).exists(), name
        assert what or name == "src/headrace/"
        named.add(folder / name.rstrip("/"))
    package = ROOT / "src" / "headrace"
    there = {path for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    there |= {path for path in package.glob("*.py")}
    assert there <= named, sorted(path.name for path in there - named)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/architecture.md",
        "docs/security.md",
        "docs/serving.md",
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
    for path in re.findall(r"`((?:core|models|runner|ops|tests|serving)/[\w./]+)`", text):
        assert (ROOT / path).exists() or (ROOT / "src" / "headrace" / path).exists(), path
