"""No test of the usual run asserts that something was quick: on a busy machine it would fail.

Work is bounded by counts (tests/work.py), and what would never end by the time-out of the test. Lower bounds and
distant deadlines are allowed, and so are tests that are `long`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.places import ROOT

WALL = {"monotonic", "perf_counter", "time", "monotonic_ns", "perf_counter_ns", "time_ns"}
PROCESSOR = {"process_time", "thread_time", "process_time_ns", "thread_time_ns", "getrusage", "times"}
WAITS = {"timeout", "timeout_at", "wait_for", "until", "wait", "join", "result"}
CALLS = re.compile(rf"""(?<!["'][.])\b(?:{"|".join(sorted(WALL | PROCESSOR | WAITS))})\(""")
"""What every finding contains, so that most of the code need not be looked at more closely."""
PATIENCE_S = 30
"""Least that a wait lasts before it is given up."""
MEASURED = {
    "tests/budget.py": "prints CPU seconds, and fails nothing",
    "tests/benchmarks/test_execute.py": "a driver's own time is compared with the test's",
    "tests/server/http/test_body_work.py": "its `stall` is for a test that is long",
    "tests/server/observability/test_metrics.py": "the server's own times are compared with a client's",
    "tests/server/ui/test_live.py": "the server's own times are compared with a client's",
    "tests/serving/client/test_supervisor.py": "returns seconds for lower bounds",
}
"""Files that may read processor time and name the difference of two readings, and why."""


def name_of(call: ast.AST) -> tuple[str, str]:
    """(module or "", function) of a call; the module is unknown for names imported from one."""
    if isinstance(call, ast.Call):
        match call.func:
            case ast.Attribute(value=ast.Name(id=module), attr=function):
                return module, function
            case ast.Name(id=function):
                return "", function
    return "", ""


def reads(node: ast.AST, clocks: set[str], imported: set[str]) -> bool:
    module, function = name_of(node)
    return function in clocks and (
        module in {"time", "os", "resource"} or (not module and function in imported)
    )


def findings(tree: ast.AST, spans_allowed: bool = False) -> list[int]:
    """Lines outside `long` tests that read processor time, name or bound a span of time, or wait for a moment only."""
    return sorted(set(_findings(tree, _imported(tree), spans_allowed)))


def _imported(tree: ast.AST) -> set[str]:
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in {"time", "os", "resource"}
        for alias in node.names
    }


def _findings(node: ast.AST, imported: set[str], spans_allowed: bool) -> Iterator[int]:
    if is_long(node) or is_provoked(node):
        return
    named = reads(node, PROCESSOR, imported) or is_span(node, imported)
    if (named and not spans_allowed) or short(node, imported):
        yield node.lineno  # type: ignore[attr-defined]
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, sign, right in zip(sides, node.ops, sides[1:], strict=False):
            less = left if isinstance(sign, ast.Lt | ast.LtE) else right
            if is_span(less, imported):
                yield node.lineno
        for side in sides:  # what is left are lower bounds
            for child in ast.iter_child_nodes(side) if is_span(side, imported) else (side,):
                yield from _findings(child, imported, spans_allowed)
        return
    for child in ast.iter_child_nodes(node):
        yield from _findings(child, imported, spans_allowed)


def is_span(node: ast.AST, imported: set[str]) -> bool:
    """Seconds that have passed: a clock's reading less something else."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and reads(node.left, WALL, imported)


def short(node: ast.AST, imported: set[str]) -> bool:
    """A deadline, or a wait, of a few seconds."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=int() | float() as seconds)):
            return reads(left, WALL, imported) and seconds < PATIENCE_S
        case ast.Call(args=[*_, ast.Constant(value=int() | float() as seconds)]):
            return name_of(node)[1] in WAITS and seconds < PATIENCE_S
        case ast.Call(
            keywords=[*_, ast.keyword(arg="timeout", value=ast.Constant(value=int() | float() as seconds))]
        ):
            return name_of(node)[1] in WAITS and seconds < PATIENCE_S
    return False


def is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        "mark.long" in ast.unparse(one) for one in node.decorator_list
    )


def is_provoked(node: ast.AST) -> bool:
    """`with pytest.raises(TimeoutError):` wants the wait to end."""
    return isinstance(node, ast.With) and "raises(TimeoutError" in ast.unparse(node.items[0])


def test_nothing_has_to_be_quick() -> None:
    found = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name, lines = str(path.relative_to(ROOT)), text.splitlines()
        if not CALLS.search(text) or re.search(r"^pytestmark = .*mark\.long", text, re.MULTILINE):
            continue
        tree = ast.parse(text)
        tree.body = [
            one
            for one in tree.body
            if isinstance(one, ast.ImportFrom)
            or CALLS.search("\n".join(lines[one.lineno - 1 : one.end_lineno]))
        ]
        found[name] = findings(tree, name in MEASURED)
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "assert time.monotonic() - begun < 2",
        "assert 0.1 < time.perf_counter() - begun < 2",
        "assert a == b and 2 > time.time() - begun",
        "took = time.monotonic() - begun; assert took <= 2",
        "from time import monotonic; return monotonic() - begun",
        "before = time.process_time()",
        "before = resource.getrusage(resource.RUSAGE_CHILDREN)",
        "deadline = time.monotonic() + 5",
        "until(lambda: idle, 2)",
        "await asyncio.wait_for(answer, 1)",
        "async with asyncio.timeout(5): pass",
        "assert process.wait(10) == 0",
        "thread.join(10)",
        "future.result(timeout=5)",
    ],
)
def test_what_has_to_be_quick_is_found(line: str) -> None:
    assert CALLS.search(line)
    assert findings(ast.parse(f"async def test():\n    {line}\n")) == [2]
    assert findings(ast.parse(f"@pytest.mark.long\nasync def test():\n    {line}\n")) == []


@pytest.mark.parametrize(
    "line",
    [
        "assert time.monotonic() - begun > 2",
        "assert time.monotonic() < deadline",
        "deadline = time.monotonic() + 60",
        "until(lambda: idle)",
        "with pytest.raises(TimeoutError): await asyncio.wait_for(answer, 1)",
    ],
)
def test_a_lower_bound_and_a_deadline_are_not(line: str) -> None:
    assert findings(ast.parse(f"async def test():\n    {line}\n")) == []
