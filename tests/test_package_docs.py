"""The docstring of a package names its modules: each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import headrace

PACKAGE = Path(headrace.__file__).parent
OTHER_WORDS = {"cache_control", "tool_choice", "tools"}  # fields of requests
FILLERS = {"and", "on", "runs", "then", "torch", "what", "with"}  # of sentences that give a reading order


def modules_named(docstring: str) -> set[str]:
    quoted = set(re.findall(r"`([a-z_0-9]+)/?`", docstring))
    order = re.search(r"Reading order: ([^.]*)", docstring)
    return (quoted | (set(re.findall(r"\w+", order[1])) - FILLERS if order else set())) - OTHER_WORDS


@pytest.mark.parametrize(
    "package", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: str(path.parent.relative_to(PACKAGE))
)
def test_docstrings_of_packages_name_modules_that_exist(package: Path) -> None:
    if package.parent == PACKAGE:
        return  # its docstring names classes
    docstring = ast.get_docstring(ast.parse(package.read_text())) or ""
    there = {path.stem for path in package.parent.iterdir()}
    assert modules_named(docstring) <= there


def test_docstrings_name_modules() -> None:
    assert modules_named("- `one`, `two/`: this and `cache_control`.\nReading order: three, then four. Five.") == {
        "one", "two", "three", "four",
    }  # fmt: skip
    named = [
        modules_named(ast.get_docstring(ast.parse(path.read_text())) or "")
        for path in PACKAGE.rglob("__init__.py")
    ]
    assert sum(map(len, named)) > 100


TOP = "|".join(sorted({path.stem for path in PACKAGE.iterdir() if path.stem[0].isalpha()}))
DOTTED = re.compile(rf"(?<![\w./-])(?:headrace\.)?((?:{TOP})(?:\.[A-Za-z_]\w*)+)")


def docstrings(source: str) -> list[str]:
    """All strings that are statements: docstrings, and those after attributes."""
    return [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def is_there(dotted: str) -> bool:
    """Whether `runner.executor.ModelExecutor` is a module of headrace, or a name in the source of one."""
    place = PACKAGE
    names = dotted.split(".")
    while names and (place / names[0]).is_dir():
        place /= names.pop(0)
    if not names:
        return True
    module = place / f"{names[0]}.py"
    if module.is_file():
        names.pop(0)
    else:
        module = place / "__init__.py"
    code = re.sub(r'""".*?"""', "", module.read_text(encoding="utf-8"), flags=re.DOTALL)
    return not names or re.search(rf"\b{names[0]}\b", code) is not None


def test_docstrings_refer_to_modules_that_exist() -> None:
    referred = {
        (str(path.relative_to(PACKAGE)), dotted)
        for path in sorted(PACKAGE.rglob("*.py"))
        for text in docstrings(path.read_text(encoding="utf-8"))
        for dotted in DOTTED.findall(text)
    }
    assert len(referred) > 30
    assert {(path, dotted) for path, dotted in referred if not is_there(dotted)} == set()


def test_a_stale_reference_is_noticed() -> None:
    (text,) = docstrings(
        'class A:\n    """As `runner.executor.ModelExecutor`; see runner.sampler and serving.gone."""'
    )
    assert DOTTED.findall(text) == ["runner.executor.ModelExecutor", "runner.sampler", "serving.gone"]
    assert [is_there(name) for name in DOTTED.findall(text)] == [True, False, False]
