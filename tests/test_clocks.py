"""No test of the usual run asserts that something was quick: on a busy machine it would fail.

Work is bounded by counts (tests/work.py), and what would never end by the time-out of the test. Lower bounds are
allowed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.places import ROOT

CLOCKS = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}


def reads_clock(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and isinstance(one.func.value, ast.Name)
        and (one.func.value.id, one.func.attr in CLOCKS) == ("time", True)
        for one in ast.walk(node)
    )


def quick_asserts(tree: ast.AST) -> Iterator[int]:
    """Lines of `assert now - begun < bound`, where the difference may have a name, outside `long` tests."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or is_long(function):
            continue
        spans = {
            target.id
            for one in ast.walk(function)
            if isinstance(one, ast.Assign) and is_span(one.value)
            for target in one.targets
            if isinstance(target, ast.Name)
        }
        for one in ast.walk(function):
            if isinstance(one, ast.Assert):
                for compared in (node for node in ast.walk(one.test) if isinstance(node, ast.Compare)):
                    sides = [compared.left, *compared.comparators]
                    for left, sign, right in zip(sides, compared.ops, sides[1:], strict=False):
                        less = left if isinstance(sign, ast.Lt | ast.LtE) else right
                        if isinstance(sign, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and (
                            is_span(less) or (isinstance(less, ast.Name) and less.id in spans)
                        ):
                            yield one.lineno


def is_span(node: ast.AST) -> bool:
    """Seconds that have passed: the difference of a clock's reading and something else."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and reads_clock(node.left)


def is_long(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("mark.long" in ast.unparse(one) for one in function.decorator_list)


def test_nothing_has_to_be_quick() -> None:
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not any(isinstance(one, ast.Assign) and "mark.long" in ast.unparse(one) for one in tree.body):
            found[str(path.relative_to(ROOT))] = sorted(set(quick_asserts(tree)))
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "assert time.monotonic() - begun < 2",
        "assert 0.1 < time.perf_counter() - begun < 2",
        "assert a == b and 2 > time.time() - begun",
        "took = time.monotonic() - begun; assert took <= 2",
    ],
)
def test_what_has_to_be_quick_is_found(line: str) -> None:
    tree = ast.parse(f"def test():\n    {line}\n")
    assert list(quick_asserts(tree)) == [2]
    assert list(quick_asserts(ast.parse(f"@pytest.mark.long\ndef test():\n    {line}\n"))) == []


@pytest.mark.parametrize(
    "line", ["assert time.monotonic() - begun > 2", "assert time.monotonic() < deadline"]
)
def test_a_lower_bound_and_a_deadline_are_not(line: str) -> None:
    assert list(quick_asserts(ast.parse(f"def test():\n    {line}\n"))) == []
