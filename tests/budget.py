"""CPU seconds of the tests by folder, beside what each may take: at the end of `make test`.

Counted is what the tests use themselves, and the processes that they start and see end. A machine that does other
things as well shows more, so nothing fails where a folder takes too long.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import PurePath

import pytest

BUDGET_S = {
    "bench": 12, "benchmarks": 7, "cli": 24, "conformance": 42, "core": 20, "evaluation": 1, "gguf": 2, "models": 29,
    "native": 33, "ops": 3, "plan": 9, "program": 1, "quant": 1, "quantize": 11, "runner": 18, "server": 168, "sim": 17,
    "serving": 41, "speculative": 13, "text": 34, "tools": 6,
    "": 100,
}  # fmt: skip
"""CPU seconds on an AMD EPYC (Zen 4) whose two cores are both busy, which slows each, by folder of tests/; "" has the
files of tests/ itself."""


def used_s() -> float:
    """CPU seconds of this process and of those that it has seen end."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Spent:
    """Adds up the reports of all workers."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._before = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        self._before = used_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = used_s()
        report.cpu_s = now - self._before  # type: ignore[attr-defined]  # sent along by xdist
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _, *folders, _ = PurePath(report.nodeid.partition("::")[0]).parts
        self.seconds[folders[0] if folders else ""] += getattr(
            report, "cpu_s", 0.0
        )  # none of a worker that died

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU seconds by folder, and how many it may take")
        for folder, seconds in self.seconds.most_common():
            budget = BUDGET_S.get(folder)
            mark = "" if budget is not None and seconds <= budget else "  more than its budget"
            terminalreporter.line(f"{seconds:7.1f} of {budget or 0:3}  tests/{folder}{mark}")
        terminalreporter.line(f"{self.seconds.total():7.1f} of {sum(BUDGET_S.values())}  in all")
