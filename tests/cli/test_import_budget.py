"""Help is quick because it imports little: counted, as a time would depend on the machine."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from headrace.bench.model import overhead
from headrace.bench.serving import target as serve_target
from headrace.cli import COMMANDS
from headrace.cli.bench.native import OPS, SAMPLING
from headrace.cli.bench.serve import BACKENDS
from headrace.cli.server.flags import _CONNECTION_LIMITS, LOG_FORMATS, MAX_NAME_CHARS
from headrace.server.http.connection import ConnectionLimits
from headrace.server.requests.fields import MAX_MODEL_NAME_CHARS
from headrace.serving import logs
from tests import needs

LISTED = [command for command in COMMANDS if command.summary is not None]
COUNT = """
import importlib.util, sys  # what finds the modules of an editable install needs it
before = set(sys.modules)
from headrace.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    assert ended.code == 0
    import json
    print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""

MODULES_OF_HELP = 60
"""`headrace --help` may import so many modules that Python itself has not loaded: argparse and what it needs."""

MODULES_OF_A_COMMAND = 110
"""The same for `headrace COMMAND --help`, with the names and ranges of all engine options."""


def imported_by(*words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", COUNT, *words], capture_output=True, text=True, check=True)
    assert "usage: headrace" in done.stdout
    found: list[str] = json.loads(done.stderr)
    return found


def test_help_imports_few_modules() -> None:
    modules = imported_by("--help")
    assert {name for name in modules if name.startswith("headrace")} == {
        "headrace", "headrace.cli", "headrace.cli.parser", "headrace.errors", "headrace.extras",
    }  # fmt: skip
    assert len(modules) <= MODULES_OF_HELP, modules


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            one,
            id=one.name,
            marks=() if one.name in ("generate", "serve", "bench", "inspect") else pytest.mark.long,
        )
        for one in LISTED
    ],
)
def test_help_of_a_command_imports_nothing_that_runs_it(command) -> None:  # type: ignore[no-untyped-def]
    modules = imported_by(command.name, "--help")
    assert len(modules) <= MODULES_OF_A_COMMAND, modules
    tops = {".".join(name.split(".")[:2]) for name in modules if name.startswith("headrace.")}
    heavy = {"build", "llm", "bench", "runner", "models", "server", "serving", "text", "_native"}
    assert not tops & {f"headrace.{name}" for name in heavy}
    others = {other.module for other in COMMANDS if other != command}
    assert not set(modules) & {"numpy", "torch", "tqdm", "asyncio", "uvicorn", "tokenizers", *others}


def test_names_and_defaults_of_help_are_those_of_the_implementation() -> None:
    needs.native()
    kernels = importlib.import_module("headrace.bench.native.kernels")
    assert kernels.OPS == OPS
    assert tuple(overhead.SAMPLING) == SAMPLING
    assert tuple(serve_target.BACKENDS) == BACKENDS
    assert logs.FORMATS == LOG_FORMATS
    assert MAX_MODEL_NAME_CHARS == MAX_NAME_CHARS
    limits = ConnectionLimits()
    assert {name: default for name, _, _, default, _ in _CONNECTION_LIMITS} == {
        name: getattr(limits, name) for name in ConnectionLimits.__slots__
    }
