"""A burst of requests is spread over turns of the event loop, in order; a single one does not wait."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from headrace.server.http.pace import Pace


class Turns:
    """Counts the turns of the loop, and in which of them requests begin."""

    def __init__(self) -> None:
        self.turn = 0
        self.begun: list[tuple[int, int]] = []

    def tick(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.tick)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append((self.turn, scope["number"]))


async def crowd(count: int, a_turn: int, cancelled: tuple[int, ...] = ()) -> Turns:
    turns = Turns()
    pace: Any = Pace(turns.app, a_turn)
    tasks = [asyncio.ensure_future(pace({"type": "http", "number": n}, None, None)) for n in range(count)]
    turns.tick()
    await asyncio.sleep(0)
    for number in cancelled:
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return turns


def a_turn(turns: Turns) -> list[int]:
    """How many began in each turn in which any did."""
    return [sum(turn == one for turn, _ in turns.begun) for one in sorted({turn for turn, _ in turns.begun})]


def test_a_burst_is_spread_in_order() -> None:
    turns = asyncio.run(crowd(20, 8))
    assert [number for _, number in turns.begun] == list(range(20))
    assert a_turn(turns) == [8, 8, 4]


def test_without_pacing_all_start_at_once() -> None:
    assert a_turn(asyncio.run(crowd(20, 100))) == [20]


def test_disconnected_clients_take_no_turn() -> None:
    turns = asyncio.run(crowd(20, 8, cancelled=(9, 10, 11)))
    assert [number for _, number in turns.begun] == [*range(9), *range(12, 20)]
    assert a_turn(turns) == [8, 8, 1]


def test_sequential_requests_do_not_wait() -> None:
    async def run() -> Turns:
        turns = Turns()
        pace: Any = Pace(turns.app, 1)
        for number in range(3):
            await pace({"type": "http", "number": number}, None, None)
            await asyncio.sleep(0)
        return turns

    assert len(asyncio.run(run()).begun) == 3
