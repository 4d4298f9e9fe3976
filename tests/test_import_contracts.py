"""Imports point downward only: the contracts of pyproject.toml hold, and each would notice if it were broken."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import headrace
from tests import needs
from tests.places import ROOT

PACKAGE = Path(headrace.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "bundled" not in path.parts)

TORCH_FREE = ["core", "text", "serving", "server", "plan", "sim"]

# Imports inside functions are for packages that an install may lack, and for modules that need one of them.
# What may be imported late -> why.
LATE_IMPORTS = {
    "fastapi": "extra: server",
    "uvicorn": "extra: server",
    "uvloop": "extra: server",
    "msgspec": "extra: server",
    "headrace.server": "needs the server extra",
    "headrace.server.observability.spans": "extra: otel",
    "headrace.serving": "needs the server extra",
    "headrace.runner.native_backend": "needs the C++ extension",
    "headrace.runner.torch_backend": "extra: torch",
    "tqdm": "only a bar needs it; as long to import as all that a start without a bar imports of its own",
    "headrace.text.templates.chat": "runs processes, which only a chat needs",
    "headrace.text.templates.trial": "the same",
    "matplotlib": "extra: bench",
    "headrace.text.grammars": "loads llguidance, which only structured output needs",
    "huggingface_hub": "only a model named by hub id needs it, and it loads an HTTP stack",
    "headrace.sim.planner": "loads numpy, which the server's process needs for nothing else",
    "headrace.sim.profile_store": "the same",
    "headrace.models.shapes": "the same, as only the calculator of the page needs it",
    "headrace.plan.hardware_table": "the same",
    "numpy": "the server's process reads headers of safetensors, and no array",
    "headrace.models.gguf.checkpoint": "reads weights with numpy",
    "headrace.models.family_checkpoint": "the same",
    "headrace.text.gguf.build": "reads vocabularies with numpy",
    "transformers": "a baseline of the benchmarks",
    "triton": "comes with torch on CUDA machines only",
    "ray": "only for more than one machine",
}

# A module of the command line imports what runs a command inside functions, so that help imports little.
COMMAND_LINE = (PACKAGE / "cli", PACKAGE / "__main__.py")


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Checks the package under `source`. Without site, so that an editable install does not win over it."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return subprocess.run(
        [sys.executable, "-S", "-c", program, "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(source), *libraries]), "COLUMNS": "200"},
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_contracts_are_kept():
    """`make test` runs lint-imports, too, beside the tests."""
    result = lint_imports(PACKAGE.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


PLANTS = [
    *((f"{package}/planted.py", "import torch", "know no tensors") for package in TORCH_FREE),
    ("errors.py", "from headrace.core import planted_low", "downward only"),
    ("core/planted.py", "from headrace.runner import planted_low", "downward only"),
    ("ops/planted.py", "from headrace.core import planted_low", "never see a request"),
    ("server/http/planted.py", "from headrace.server.requests import service", "inside the server"),
    ("server/ollama/planted.py", "from headrace.server.openai import schemas", "inside the server"),
    ("server/planted/__init__.py", "", "inside the server"),
    ("core/planted.py", "import msgspec", "message modules"),
    (
        "runner/sampling/state.py",
        "from headrace.runner.sampling import draw",
        "Nothing but the torch backend",
    ),
    ("planted_top_level.py", "", "downward only"),
]


def lint_with(folder: Path, plants: Iterable[tuple[str, str, str]]) -> str:
    """What is printed about a copy of the package with these lines in it."""
    copy = folder / "headrace"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("bundled", "__pycache__", "*.so"))
    for file, line, _ in plants:
        for package in ("core", "runner", Path(file).parent):
            (copy / package).mkdir(exist_ok=True)
            (copy / package / "__init__.py").touch()
            (copy / package / "planted_low.py").touch()
        with (copy / file).open("a") as planted:
            planted.write(f"\n{line}\n")
    result = lint_imports(folder)
    assert result.returncode == 1, result.stdout + result.stderr
    return result.stdout


def modules(plants: Iterable[tuple[str, str, str]]) -> set[str]:
    """The modules that hold the lines, as a report names them."""
    return {
        "headrace." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file, *_ in plants
    }


@pytest.mark.long
def test_planted_violations_are_noticed(tmp_path: Path):
    """All at once, as each run reads the whole package: the report on each contract names the modules planted."""
    report = lint_with(tmp_path, PLANTS)
    for contract in {contract for *_, contract in PLANTS}:
        mine = [plant for plant in PLANTS if plant[2] == contract]
        assert [line for line in report.splitlines() if contract in line and " BROKEN" in line], contract
        missing = {module for module in modules(mine) if not re.search(rf"\b{re.escape(module)}\b", report)}
        assert missing == set(), report


@pytest.mark.long
@pytest.mark.parametrize(("file", "line", "contract"), PLANTS, ids=[f"{f}: {s}" for f, s, _ in PLANTS])
def test_each_planted_violation_is_noticed(tmp_path: Path, file: str, line: str, contract: str):
    report = lint_with(tmp_path, [(file, line, contract)])
    broken = [text for text in report.splitlines() if " BROKEN" in text]
    assert any(contract in text for text in broken), report


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import under the node; for `from a import b` it is a.b."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            prefix = "." * child.level + (child.module or "")
            yield from ((child.lineno, f"{prefix}.{alias.name}") for alias in child.names)


def below(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def test_core_needs_the_standard_library_only():
    allowed = [*sys.stdlib_module_names, "headrace.core", "headrace.errors"]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        if (PACKAGE / "core") in path.parents
        for line, name in imports(ast.parse(path.read_text()))
        if not below(name, allowed)
    ]
    assert not wrong, "core imports more than the standard library:\n" + "\n".join(wrong)


INDENTED = re.compile(r"^[ \t]+(?:from \S+ )?import ", re.MULTILINE)


def late_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Of a function inside a function they come twice."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node)


def test_no_imports_inside_functions_but_for_optional_packages():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in MODULES
        if INDENTED.search(source := path.read_text())  # parsing all modules takes a second
        for line, name in late_imports(ast.parse(source))
        if not below(name, LATE_IMPORTS)
        if not (below(name, ["headrace"]) and {path, *path.parents} & {*COMMAND_LINE})
    ]
    assert not wrong, "imports inside functions (LATE_IMPORTS lists what may be):\n" + "\n".join(wrong)


def loaded_after(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after the statement."""
    program = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_importing_headrace_loads_nothing_heavy():
    loaded = loaded_after("import headrace")
    assert "headrace" in loaded
    assert not loaded & {"torch", "numpy", "tokenizers", "jinja2", "asyncio"}


@pytest.mark.parametrize(
    "packages",
    [TORCH_FREE, *(pytest.param([name], marks=pytest.mark.long) for name in TORCH_FREE)],
    ids=",".join,
)
def test_torch_free_packages_load_without_torch(packages: list[str]):
    """What the contract reads from the sources, seen at run time, package __init__ files included."""
    folders = {PACKAGE / name for name in packages if (PACKAGE / name).is_dir()}
    files = [path for path in MODULES if folders & {*path.parents} and path.name != "__main__.py"]
    assert files
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in files
    ]
    assert "torch" not in loaded_after("\n".join(f"import {name}" for name in names))


def test_native_generation_loads_neither_torch_nor_chat_nor_server_packages():
    needs.native()
    statement = (
        "from headrace.cli import main\n"
        "assert main(['generate', 'Once upon a time', '--max-tokens', '3', '--temperature', '0.5']) == 0"
    )
    loaded = loaded_after(f"{statement}\nimport sys\nprint()")
    assert "numpy" in loaded
    assert not loaded & {
        "torch",
        "jinja2",
        "tqdm",
        "fastapi",
        "asyncio",
        "llguidance",
        "multiprocessing",
        "matplotlib",
    }
