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
