"""Grammars compiled by several real processes: a lost one fails no other, and none is leaked."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.core.grammar import Grammar
from headrace.errors import HeadraceError, InvalidParams, Overloaded
from headrace.serving.grammar.checker import WORKER_COMMAND, GrammarChecker
from headrace.serving.grammar.pool import MAX_WORKERS, MIN_WORKERS, GrammarPool, default_workers
from headrace.text.grammar_store import GrammarStore
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.places import TALE
from tests.waiting import until

needs.package("llguidance")

# Says how to be found before it compiles for as long as the test likes.
UNLIMITED = (
    "import sys; from headrace.serving.grammar import worker as w;"
    "w.CPU_S, w.WALL_S, w._ADDRESS_SPACE_BYTES, w.MEMORY_BYTES = 60, 60, 1 << 40, 1 << 40; sys.exit(w.main())"
)


def quick(number: int) -> Grammar:
    return Grammar("regex", f"quick{number}")


def endless(number: int) -> Grammar:
    """Ends at the limit of processor time, and takes many seconds without."""
    return Grammar("json_schema", {"type": "integer", "multipleOf": 999_983 - 2 * number})  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def trying(pid: int) -> list[int]:
    """Forked children of a worker that are running, and so have set their parent-death signal."""
    return [child for child in children(pid) if ticks(child) >= 2]


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class Caller:
    """Asks a pool, and keeps what comes of it under the ids of the requests."""

    def __init__(self, store: GrammarStore, pool: GrammarPool) -> None:
        self.store, self.pool = store, pool
        self.outcomes: dict[str, object] = {}

    def ask(self, request_id: str, grammar: Grammar, user: str = "") -> None:
        self.pool.join(grammar, request_id, user)

    def poll(self) -> None:
        for job, outcome in self.pool.finished():
            result = outcome if isinstance(outcome, HeadraceError) else "compiled"
            self.outcomes.update(dict.fromkeys(job.waiting, result))

    def has(self, *request_ids: str) -> bool:
        self.poll()
        return all(request_id in self.outcomes for request_id in request_ids)

    def wait(self, *request_ids: str) -> None:
        until(lambda: self.has(*request_ids))


@pytest.fixture
def caller(tokenizer: Tokenizer) -> Iterator[Callable[..., Caller]]:
    pools = []

    def make(workers: int = 2, program: str | None = None, idle_s: float = 60.0) -> Caller:
        command = WORKER_COMMAND if program is None else (sys.executable, "-P", "-c", program)
        store = GrammarStore(tokenizer, 2048, frozenset({1}))
        checker = lambda: GrammarChecker(str(TALE), 2048, frozenset({1}), command)  # noqa: E731
        pool = GrammarPool(store, checker, workers, idle_s)
        pools.append(pool)
        return Caller(store, pool)

    yield make
    for pool in pools:
        pool.close()


@contextmanager
def patience(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr("headrace.serving.grammar.checker.ANSWER_S", seconds)
        yield


def test_workers_start_and_end_with_demand(
    caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = caller(program=UNLIMITED, idle_s=0.5)
    assert one.pool.threads == 0 and one.pool.pids == []
    with patience(monkeypatch, 60):
        one.ask("a", quick(0), "greedy")
        one.wait("a")
        assert one.pool.threads == 1
        for i in range(5):  # nothing that a second worker may do
            one.ask(f"e{i}", endless(i), "greedy")
        time.sleep(0.3)
        assert one.pool.threads == 1
        one.ask("b", quick(1), "neighbour")
        one.wait("b")
        assert len(one.pool.pids) == 2 and not one.has("e0")
        until(lambda: one.pool.threads == 1)
        until(lambda: len(one.pool.pids) == 1)
        assert not one.has("e0")  # the one that was at work has stayed
        one.ask("c", quick(2), "neighbour")
        one.wait("c")


def test_the_last_worker_stays(caller: Callable[..., Caller]) -> None:
    one = caller(idle_s=0.1)
    one.ask("a", quick(0))
    one.wait("a")
    (pid,) = one.pool.pids
    time.sleep(0.5)
    one.ask("b", quick(1))
    one.wait("b")
    assert one.pool.pids == [pid]


def test_a_grammar_that_many_ask_for_is_compiled_once(
    caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = caller()
    checks: list[Grammar] = []
    check = GrammarChecker.check
    monkeypatch.setattr(
        GrammarChecker, "check", lambda self, grammar: (checks.append(grammar), check(self, grammar))[1]
    )
    for i in range(30):
        one.ask(f"r{i}", quick(0), f"user {i % 5}")
        one.ask(f"e{i}", endless(0), f"user {i % 3}")
    one.wait(*(f"r{i}" for i in range(30)), *(f"e{i}" for i in range(30)))
    assert sorted(checks, key=str) == sorted([quick(0), endless(0)], key=str)
    assert one.outcomes["r29"] == "compiled" and isinstance(one.outcomes["e29"], InvalidParams)
    with pytest.raises(InvalidParams, match="too much time"):
        one.store.known(endless(0))  # remembered


def test_a_killed_worker_fails_its_own_grammar_alone(
    caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = caller(program=UNLIMITED)
    with patience(monkeypatch, 60):
        one.ask("a", endless(0), "a")
        until(lambda: bool(one.pool.pids) and bool(trying(one.pool.pids[0])))
        (first,) = one.pool.pids
        one.ask("b", endless(1), "b")
        until(lambda: len(one.pool.pids) == 2)
        (second,) = set(one.pool.pids) - {first}
        until(lambda: bool(trying(second)))
        one.ask("queued", quick(0), "c")
        (child,) = children(first)
        os.kill(first, signal.SIGKILL)
        one.wait("a", "queued")
        assert isinstance(one.outcomes["a"], Overloaded) and one.outcomes["queued"] == "compiled"
        until(lambda: not alive(child))
        assert not one.has("b") and children(second)  # still at it
        assert one.store.known(endless(0)) is None  # it was not the grammar's fault
        assert second in one.pool.pids and first not in one.pool.pids


def test_a_worker_that_was_killed_while_idle_is_not_noticed(caller: Callable[..., Caller]) -> None:
    one = caller()
    one.ask("a", quick(0))
    one.wait("a")
    (pid,) = one.pool.pids
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    one.ask("b", quick(1))
    one.wait("b")
    assert one.outcomes["b"] == "compiled" and one.pool.pids not in ([], [pid])


def test_abandoned_grammars_are_not_compiled(
    caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = caller(workers=1)
    tried: list[Grammar] = []
    check = GrammarChecker.check
    monkeypatch.setattr(
        GrammarChecker, "check", lambda self, grammar: (tried.append(grammar), check(self, grammar))[1]
    )
    jobs = {f"e{i}": one.pool.join(endless(i), f"e{i}", "a") for i in range(5)}
    until(lambda: bool(tried))
    for name, job in jobs.items():
        one.pool.leave(job, name)
    one.ask("next", quick(0), "a")
    one.wait("next")
    assert tried == [endless(0), quick(0)] and set(one.outcomes) == {"next"}


@pytest.mark.parametrize("stopped", [False, True])
def test_closing_leaves_no_process(
    caller: Callable[..., Caller], monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    one = caller(program=UNLIMITED)
    with patience(monkeypatch, 600):  # longer than the test may take
        for user in "ab":
            one.ask(user, endless(ord(user)), user)
        until(lambda: len(one.pool.pids) == 2 and all(trying(pid) for pid in one.pool.pids))
        pids = [*one.pool.pids, *(child for pid in one.pool.pids for child in children(pid))]
        assert len(pids) == 4
        if stopped:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        one.pool.close()
        assert one.pool.threads == 0
        until(lambda: not any(alive(pid) for pid in pids))


def test_workers_that_cannot_start_refuse_waiting_requests(
    caller: Callable[..., Caller],
) -> None:
    one = caller(program="import time; time.sleep(0.3)")
    for i in range(10):
        one.ask(f"r{i}", quick(i), f"user {i % 2}")
    one.wait(*(f"r{i}" for i in range(10)))
    assert all(isinstance(outcome, Overloaded) for outcome in one.outcomes.values())
    until(lambda: one.pool.threads == 0)
    one.ask("later", quick(0))
    one.wait("later")
    assert isinstance(one.outcomes["later"], Overloaded)


def test_a_model_without_an_end_follows_no_grammar(tokenizer: Tokenizer) -> None:
    store = GrammarStore(tokenizer, 2048, frozenset({5000}))
    pool = GrammarPool(store, lambda: GrammarChecker(str(TALE), 2048, frozenset({5000})))
    one = Caller(store, pool)
    one.ask("a", quick(0))
    one.wait("a")
    assert "end-of-sequence" in str(one.outcomes["a"])
    with pytest.raises(InvalidParams, match="end-of-sequence"):
        store.known(quick(0))
    pool.close()


def test_a_busy_machine_does_not_fail_a_grammar(caller: Callable[..., Caller]) -> None:
    program = (
        "import sys; from headrace.serving.grammar import worker as w;"
        "w.CPU_S, w.WALL_S, w._ADDRESS_SPACE_BYTES = 60, 0.2, 1 << 40; sys.exit(w.main())"
    )
    one = caller(program=program)
    one.ask("a", endless(0))
    one.wait("a")
    assert isinstance(one.outcomes["a"], Overloaded) and "in time" in str(one.outcomes["a"])
    assert one.store.known(endless(0)) is None
    assert one.pool.threads == 1


def test_a_worker_lowers_its_priority_once(caller: Callable[..., Caller]) -> None:
    one = caller()
    one.ask("a", quick(0))
    one.wait("a")
    (pid,) = one.pool.pids
    assert os.getpriority(os.PRIO_PROCESS, pid) == max(10, os.getpriority(os.PRIO_PROCESS, 0))


def test_how_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, workers in ((1, MIN_WORKERS), (2, MIN_WORKERS), (12, 3), (96, MAX_WORKERS)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        assert default_workers() == workers
