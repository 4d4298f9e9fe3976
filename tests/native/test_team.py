"""The team of threads: quick in a row, asleep when idle, safe under threads and forks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import needs
from tests.waiting import until

_native = needs.native()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_thread_of_the_team_takes_part(size: int) -> None:
    team = _native.Team(size)
    assert team.size == size
    ids = team.thread_ids()
    assert len(set(ids)) == size
    assert ids[0] == threading.get_native_id()
    assert team.thread_ids() == ids  # the same threads, not new ones


def test_a_team_has_at_least_the_caller() -> None:
    assert _native.Team(0).size == 1


def test_threads_end_with_the_team() -> None:
    team = _native.Team(4)
    tasks = [Path(f"/proc/self/task/{tid}") for tid in team.thread_ids()[1:]]
    assert all(task.exists() for task in tasks)
    del team
    assert not any(task.exists() for task in tasks)


def test_idle_threads_sleep() -> None:
    team = _native.Team(2)
    team.run_empty(100)
    (worker,) = team.thread_ids()[1:]

    def asleep() -> str | None:
        """How often the thread has gone to sleep; None while it runs, as it does at first: it spins."""
        status = Path(f"/proc/self/task/{worker}/status").read_text()
        times = re.findall(r"^\w+ctxt_switches:\s+(\d+)$", status, re.M)
        return ", ".join(times) if re.search(r"^State:\s+S", status, re.M) else None

    until(lambda: asleep() is not None)
    before = asleep()
    time.sleep(0.2)
    assert before is not None and asleep() == before  # it did not even wake up


def test_a_team_that_slept_wakes_up() -> None:
    team = _native.Team(3)
    for _ in range(20):
        time.sleep(0.001)
        team.run_empty(1)
    assert len(team.thread_ids()) == 3


def test_callers_on_several_threads_take_turns() -> None:
    team = _native.Team(2)
    found: list[list[int]] = []

    def call() -> None:
        for _ in range(200):
            found.append(team.thread_ids())

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 800
    assert len({ids[0] for ids in found}) == 4
    assert len({ids[1] for ids in found}) == 1


def test_a_forked_child_gets_threads_of_its_own() -> None:
    program = """
import os
from headrace import _native
team = _native.Team(3)
before = team.thread_ids()
child = os.fork()
if child == 0:
    ids = team.thread_ids()
    assert len(set(ids)) == 3 and not set(ids) & set(before)
    grandchild = os.fork()
    if grandchild == 0:
        assert len(set(team.thread_ids())) == 3
        del team
        os._exit(0)
    os._exit(os.waitpid(grandchild, 0)[1])
assert os.waitpid(child, 0)[1] == 0
assert team.thread_ids() == before
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_a_pinned_thread_stays_on_its_core_and_the_caller_is_left_alone() -> None:
    allowed = os.sched_getaffinity(0)
    team = _native.Team(min(2, len(allowed)), pin=True)
    for tid in team.thread_ids()[1:]:
        assert len(os.sched_getaffinity(tid)) == 1
        assert os.sched_getaffinity(tid) <= allowed
    assert os.sched_getaffinity(0) == allowed
