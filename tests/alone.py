"""Tests marked `alone` run while no other worker runs a test: those that take every core, or count what is running.

All tests share a lock that these hold exclusively. A second lock is taken before it, so that a test that waits to be
alone is next.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the time-out of the test starts to count
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not hasattr(item.config, "workerinput"):
        return (yield)  # there is one process
    folder = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]  # the run's, of all workers
    alone = item.get_closest_marker("alone") is not None
    with open(folder / "next", "w") as next_, open(folder / "running", "w") as running:
        fcntl.flock(next_, fcntl.LOCK_EX)
        fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(next_, fcntl.LOCK_UN)
        return (yield)
