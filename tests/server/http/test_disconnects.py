"""Clients disconnect in every state, with the real engine and little KV: their blocks are free within a step."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from headrace.config import EngineConfig
from headrace.core.snapshot import Lane, Phase
from headrace.core.types import FinishReason
from headrace.serving.client.child import ENGINE_COMMAND
from headrace.serving.client.process import ProcessClient
from headrace.serving.engine.state import View
from tests.places import ROOT
from tests.server.conftest import TinyServer
from tests.waiting import until

LEAKY = (sys.executable, str(ROOT / "tests" / "server" / "leaky_engine.py"))
CROWD = 9

LITTLE = EngineConfig(
    "tale", max_model_len=256, max_num_seqs=6, max_num_batched_tokens=24, num_kv_blocks=14, block_size=32,
    num_threads=1,
)  # fmt: skip
"""Room for about three of the crowd's sequences, and prompts that take several steps."""


class Leavers:
    """Streams over bare sockets, each with a prompt of another length, which identifies the engine's lanes."""

    def __init__(self, server: TinyServer, rng: Random) -> None:
        self._server = server
        self._rng = rng
        self._address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        self._lengths = itertools.cycle(range(40, 140))
        self._open: dict[int, socket.socket] = {}
        self.late: list[str] = []
        """Requests that were still at the engine after their abort."""
        self._watch_aborts()

    def _watch_aborts(self) -> None:
        """Check the engine right after each abort: messages are handled in order, between two steps."""
        client, abort = self._server.client, self._server.client.abort
        self._looks: set[asyncio.Task[None]] = set()

        async def check(request_id: str) -> None:
            view = await client.view()
            if any(lane.request_id == request_id for lane in view.snapshot.lanes):
                self.late.append(request_id)
            self.left.update(_phases(view))

        def watched(request_id: str, index: int | None = None, *, stopped: bool = False) -> None:
            abort(request_id, index, stopped=stopped)
            if index is None:
                task = asyncio.ensure_future(check(request_id))
                self._looks.add(task)
                task.add_done_callback(self._looks.discard)

        client.abort = watched  # type: ignore[method-assign]
        self.left: Counter[str] = Counter()
        """In which state those were who left."""

    def lanes(self) -> tuple[Lane, ...]:
        view: View = self._server.call(self._server.client.view())
        self.left.update(_phases(view))
        return view.snapshot.lanes

    def fill(self) -> tuple[Lane, ...]:
        """Bring the crowd to its size; the lanes of those that have come as far as the engine."""
        lanes = self.lanes()
        there = {lane.num_prompt for lane in lanes}
        for length in [length for length in self._open if length not in there]:
            if self._ended(self._open[length]):
                self._open.pop(length).close()
        while len(self._open) < CROWD:
            self._send(next(length for length in self._lengths if length not in self._open))
        return tuple(lane for lane in lanes if lane.num_prompt in self._open)

    def leave(self, lane: Lane) -> None:
        self._open.pop(lane.num_prompt).close()

    def leave_all(self) -> None:
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def _send(self, length: int) -> None:
        prompt = [self._rng.randrange(5, 2000) for _ in range(length)]
        body = json.dumps(
            {"prompt": prompt, "max_tokens": 100, "ignore_eos": True, "stream": self._rng.random() < 0.7}
        ).encode()
        stream = socket.create_connection(self._address)
        stream.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        self._open[length] = stream

    @staticmethod
    def _ended(stream: socket.socket) -> bool:
        stream.setblocking(False)
        try:
            data = stream.recv(1 << 20)
        except BlockingIOError:
            return False
        finally:
            stream.setblocking(True)
        return data.endswith((b"[DONE]\n\n\r\n0\r\n\r\n", b"}", b"0\r\n\r\n"))


def _phases(view: View) -> Iterator[str]:
    """The states of those whose requests were aborted, by what the engine says of them at the end."""
    for output in view.ended:
        if output.finish_reason is not FinishReason.ABORT or output.stats is None:
            continue
        stats = output.stats
        yield "any"
        if stats.num_preemptions:
            yield Phase.PREEMPTED.value
        elif stats.first_scheduled_s is None:
            yield Phase.QUEUED.value
        else:
            yield (Phase.PREFILL if stats.first_token_s is None else Phase.DECODE).value


def churn(command: Sequence[str], rounds: int, seed: int = 11) -> tuple[Counter[str], Counter[str]]:
    """(states in which callers left, states that were aimed at); fails unless all blocks come back, again and again."""
    rng, aimed = Random(seed), Counter[str]()
    server = TinyServer(command=command, engine=LITTLE)
    try:
        crowd = Leavers(server, rng)
        expected = itertools.cycle(Phase)
        for number in range(1, rounds + 1):
            phase = next(expected)
            for attempt in itertools.count():
                lanes = crowd.fill()
                found = [lane for lane in lanes if lane.phase is phase]
                if found or (lanes and attempt > 100):
                    break
                time.sleep(rng.random() * 0.01)
            lane = rng.choice(found or list(lanes))
            aimed[lane.phase.value] += 1
            crowd.leave(lane)
            if number % 20 == 0:
                crowd.leave_all()
                _check_free(server, crowd)
        return crowd.left, aimed
    finally:
        server.close()


def _check_free(server: TinyServer, crowd: Leavers) -> None:
    until(lambda: (stats := server.stats()).running + stats.waiting == 0)
    stats = server.stats()
    assert stats.free_blocks == stats.total_blocks == LITTLE.num_kv_blocks
    assert crowd.late == [], "requests were still at the engine after their abort"


@pytest.mark.parametrize("rounds", [20, pytest.param(400, marks=pytest.mark.long)])
def test_abort_frees_blocks_within_a_step(rounds: int) -> None:
    left, aimed = churn(ENGINE_COMMAND, rounds)
    assert sum(aimed.values()) == rounds and left["any"] >= rounds
    assert {phase.value for phase in Phase} == aimed.keys() and min(aimed.values()) >= rounds // 10, aimed
    if rounds >= 400:  # in a few rounds a phase may be over each time before its caller has left
        assert all(left[phase.value] >= rounds // 40 for phase in Phase), left


@pytest.mark.long
def test_a_leaked_block_is_noticed() -> None:
    with pytest.raises(AssertionError, match="free_blocks"):
        churn(LEAKY, 20)


@pytest.mark.long
def test_an_abort_that_is_not_sent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not send the abort: the request continues, and the check after it finds it."""

    def forgetful(self: Any, message: Any) -> None:
        if type(message).__name__ != "Abort":
            original(self, message)

    original = ProcessClient._send
    monkeypatch.setattr(ProcessClient, "_send", forgetful)
    with pytest.raises(AssertionError, match="after their abort"):
        churn(ENGINE_COMMAND, 20)
