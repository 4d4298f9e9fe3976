"""One user's flood of explosive grammars at a real engine process: what a neighbour with a small schema notices."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from headrace.core.grammar import Grammar
from headrace.core.params import SamplingParams
from headrace.core.types import FinishReason, NewRequest
from headrace.errors import InvalidParams, Overloaded
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.serving.client.process import ProcessClient
from headrace.serving.client.source import arrivals
from headrace.serving.grammar.checker import GrammarChecker
from headrace.serving.grammar.gate import GrammarGate
from headrace.serving.grammar.queue import MAX_WAITING_OF_USER
from headrace.text.grammar_store import GrammarStore
from headrace.text.tokenizer import Tokenizer
from tests import needs
from tests.serving.grammar.test_pool import TALE, alive, children
from tests.waiting import until

needs.package("llguidance")

OPTIONS: dict[str, object] = {"model": "tale", "num_threads": 1, "max_model_len": 512}
FLOOD, SMALL_FLOOD = 20, 3

ENGINE = """
import sys
from headrace.cli import main
from headrace.serving.grammar import gate
from headrace.serving.grammar.queue import FairQueue

log, workers, first, fair = open(sys.argv.pop(1), "a", buffering=1), *map(int, sys.argv.pop(1).split(","))
gate.default_workers = lambda: workers
join, take = FairQueue.join, FairQueue.take
users = {}

def logged_join(self, grammar, request_id, user):
    job = join(self, grammar, request_id, user if fair else "")
    users[grammar] = user
    print("join", user, file=log)
    return job

def logged_take(self):
    job = take(self) if len(users) >= first else None
    if job is not None:
        print("take", users[job.grammar], file=log)
    return job

FairQueue.join, FairQueue.take = logged_join, logged_take
main(["engine-process", *sys.argv[1:]])
"""
"""An engine that logs who joins the queue and whose grammar is taken. None is taken before `first` grammars wait."""


def explosive(number: int) -> Grammar:
    """Refused when its processor time is used up."""
    return Grammar("json_schema", {"type": "integer", "multipleOf": 999_983 - 2 * number})  # type: ignore[arg-type]


def small(number: int) -> Grammar:
    names = {f"p{number}": {"type": "boolean"}}
    return Grammar("json_schema", {"type": "object", "properties": names, "required": [*names]})  # type: ignore[arg-type]


def spent(client: ProcessClient) -> float:
    """Processor time of what the engine's workers have forked and seen end."""
    ticks = 0
    for pid in children(client.pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[13]) + int(fields[14])
    return ticks / os.sysconf("SC_CLK_TCK")


def request(name: str, user: str, grammar: Grammar, queue_timeout_s: float | None = None) -> NewRequest:
    params = SamplingParams(grammar=grammar, max_tokens=4, seed=1)
    return NewRequest(name, (7, 8, 9), params, user=user, queue_timeout_s=queue_timeout_s)


def with_engine(body: Callable[[ProcessClient], Awaitable[None]], command: Sequence[str]) -> None:
    async def run() -> None:
        client = await ProcessClient.start(OPTIONS, command=command)
        try:
            await body(client)
        finally:
            await client.aclose()

    asyncio.run(run())


class Flood:
    """A greedy user, who has sent everything at once; counts the answers, all of which are refusals."""

    def __init__(self, client: ProcessClient, size: int = FLOOD) -> None:
        self._client = client
        self.refused = 0
        self._tasks = [asyncio.ensure_future(self._send(i)) for i in range(size)]

    async def _send(self, number: int) -> None:
        with pytest.raises(InvalidParams, match="too much time"):
            await self._client.submit(request(f"g{number}", "greedy", explosive(number)))
        self.refused += 1

    async def end(self) -> None:
        await asyncio.gather(*self._tasks)
        assert self.refused == len(self._tasks)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def taken_before(events: Sequence[str], user: str) -> list[int]:
    """For each of a user's requests, how many grammars of others were taken while it stood in the queue."""
    found, taken = [], None
    for event in events:
        if event == f"join {user}":
            taken = 0
        elif event == f"take {user}":
            assert taken is not None
            found.append(taken)
            taken = None
        elif taken is not None:
            taken += event.startswith("take")
    return found


@pytest.mark.parametrize(
    ("workers", "fair"),
    [
        pytest.param(1, True, id="one worker"),
        pytest.param(2, True, id="two workers", marks=pytest.mark.long),
        pytest.param(2, False, id="unfair", marks=pytest.mark.long),
    ],
)
def test_a_flood_of_one_user_delays_another_by_one_grammar_at_most(
    workers: int, fair: bool, tmp_path: Path
) -> None:
    """The planted fault, "unfair": all users stand in one line."""
    log = tmp_path / "log"
    size = FLOOD if fair else SMALL_FLOOD

    async def body(client: ProcessClient) -> None:
        flood = Flood(client, size)
        await asyncio.sleep(0)  # all of it is sent
        for i in range(3 if fair else 1):
            stream = await client.submit(request(f"n{i}", "neighbour", small(i)))
            async for _ in arrivals(stream):
                pass
        await flood.stop()

    with_engine(body, (sys.executable, "-P", "-c", ENGINE, str(log), f"{workers},{size + 1},{int(fair)}"))
    events = log.read_text().splitlines()
    assert events[: size + 1] == ["join greedy"] * size + ["join neighbour"]
    before = taken_before(events, "neighbour")
    if fair:
        assert before[0] == 1 and len(before) == 3 and max(before) <= 1, before
    else:
        assert before == [SMALL_FLOOD]


@pytest.mark.long
def test_a_whole_flood_is_answered_and_at_once_when_repeated() -> None:
    async def body(client: ProcessClient) -> None:
        await Flood(client, SMALL_FLOOD).end()
        before = spent(client)
        await Flood(client, SMALL_FLOOD).end()
        assert spent(client) == before

    with_engine(body, ENGINE_COMMAND)


def test_too_many_requests_of_one_user_do_not_refuse_another(tmp_path: Path) -> None:
    async def body(client: ProcessClient) -> None:
        new_requests = [request(f"g{i}", "greedy", explosive(i)) for i in range(MAX_WAITING_OF_USER + 10)]
        tasks = [asyncio.ensure_future(client.submit(new)) for new in new_requests]
        waiting, refused = set(tasks), 0
        while refused < 5:
            assert waiting, "all were taken"
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            refused += sum(isinstance(task.exception(), Overloaded) for task in done)
        assert refused <= 10
        await client.submit(request("n", "neighbour", small(0)))
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        # The line is empty at once: the sixty grammars that were given up are not compiled first.
        await client.submit(request("n2", "greedy", small(1)))

    log, first = tmp_path / "log", MAX_WAITING_OF_USER + 1
    with_engine(body, (sys.executable, "-P", "-c", ENGINE, str(log), f"2,{first},1"))
    events = log.read_text().splitlines()
    last = len(events) - events[::-1].index("join greedy")
    assert events[:last].count("join greedy") == first and events[last:].count("take greedy") == 1


def test_a_deadline_that_passes_in_the_queue_is_kept() -> None:
    async def body(client: ProcessClient) -> None:
        flood = Flood(client)
        await asyncio.sleep(0.1)
        stream = await client.submit(request("late", "greedy", small(0), queue_timeout_s=0.2))
        outputs = [output async for step in arrivals(stream) for output in step]
        assert [output.finish_reason for output in outputs] == [FinishReason.TIMEOUT]
        assert "without being scheduled" in str(outputs[0].error)
        assert flood.refused < FLOOD / 2
        # The name is free, and the grammar had not been compiled: it waits again.
        stream = await client.submit(request("late", "neighbour", small(0)))
        ends = [
            output.finish_reason async for step in arrivals(stream) for output in step if output.finish_reason
        ]
        assert ends in ([FinishReason.LENGTH], [FinishReason.STOP])
        await flood.stop()

    with_engine(body, ENGINE_COMMAND)


def test_shutdown_in_the_middle_leaves_no_process() -> None:
    pids: list[int] = []

    async def body(client: ProcessClient) -> None:
        await asyncio.gather(*(client.submit(request(f"w{i}", f"w{i}", small(100 + i))) for i in range(2)))
        flood = Flood(client)
        await asyncio.sleep(0.2)
        engine = client.pid
        pids.extend([engine, *children(engine)])
        pids.extend(child for worker in children(engine) for child in children(worker))
        await flood.stop()

    with_engine(body, ENGINE_COMMAND)
    assert len(pids) >= 3
    until(lambda: not any(alive(pid) for pid in pids))


def test_aborted_and_expired_requests_leave_the_queue_at_once(tokenizer: Tokenizer) -> None:
    store = GrammarStore(tokenizer, 2048, frozenset({1}))
    gate = GrammarGate(store, lambda: GrammarChecker(str(TALE), 2048, frozenset({1})), workers=1)
    queue = gate._others._queue
    try:
        gate.submit(request("first", "a", explosive(0)), 0.0)
        until(lambda: queue.working == 1)
        gate.submit(request("aborted", "a", explosive(1)), 0.0)
        gate.submit(request("late", "a", explosive(2), queue_timeout_s=5.0), 1.0)
        gate.submit(request("shared", "b", explosive(2)), 1.0)
        assert len(queue) == 3
        assert gate.abort("aborted") and len(queue) == 2
        assert all(new.request_id == "first" for new, _, _ in gate.take(5.9))
        ((late, arrival, error),) = [found for found in gate.take(6.0) if found[0].request_id == "late"]
        assert arrival == 1.0 and error is None and late.params.grammar == explosive(2)
        assert len(queue) >= 1 and gate.busy  # "shared" waits for the same grammar
        assert gate.abort("shared")
        assert len(queue) <= 1  # what is in work
    finally:
        gate.close()
