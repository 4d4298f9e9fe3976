"""Ordinary traffic with little memory and small limits: requests that can be served soon are not refused."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from headrace.config import EngineConfig
from headrace.server.access.keys import Caller
from headrace.server.access.traffic import TrafficOptions
from headrace.serving.client.child import ENGINE_COMMAND
from tests.server.conftest import TinyServer
from tests.server.keyring import bearer, keyed

CHATS = 60


def chats(server: TinyServer, count: int, name: str = "", **body: Any) -> list[httpx.Response]:
    """So many small chats, sent at the same instant. None of them says how long its answer may be."""
    together = threading.Barrier(count)
    chat = {"messages": [{"role": "user", "content": "Hi"}]} | body

    def one(_: int) -> httpx.Response:
        together.wait()
        return server.http.post(
            "/v1/chat/completions", json=chat, headers=bearer(name) if name else {}, timeout=120
        )

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))


def statuses(answers: Sequence[httpx.Response]) -> Counter[int]:
    return Counter(answer.status_code for answer in answers)


def test_sixty_chats_at_once_with_64_kv_blocks_are_all_answered() -> None:
    engine = EngineConfig("tale", num_kv_blocks=64, num_threads=1)
    server = TinyServer(command=ENGINE_COMMAND, engine=engine, traffic=TrafficOptions())
    try:
        for _ in range(2):  # the second wave knows how long the answers of the first were
            assert statuses(chats(server, CHATS)) == {200: CHATS}
    finally:
        server.close()


def test_a_key_with_2000_tokens_a_minute_may_chat_six_times() -> None:
    server = TinyServer(traffic=keyed(Caller("ann", tokens_per_minute=2000)), eos_ids=[2047])
    try:
        answers = chats(server, 6, "ann", stop_token_ids=[60])
        assert statuses(answers) == {200: 6}, [answer.text for answer in answers]
    finally:
        server.close()
