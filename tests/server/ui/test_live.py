"""The live feed: what it shows, what it never shows, and that a hundred watchers cost what one does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import httpx
import pytest

from headrace.core.params import SamplingParams
from headrace.core.snapshot_data import lane_name
from headrace.server.requests.record import RequestRecord
from headrace.server.requests.tallies import MAX_SAMPLES, WINDOW_S, Tallies, Window
from headrace.server.ui import live as feed_module
from headrace.server.ui.live import Feed
from headrace.serving.engine.state import View
from headrace.serving.requests.completion import Delta
from tests.server.conftest import TinyServer, serve
from tests.waiting import LONG_S, until

SECRET = "The bear's password is honeycomb"


def ticks(server: TinyServer) -> Generator[dict[str, Any], None, None]:
    with server.http.stream("GET", "/live") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line:
                yield json.loads(line.removeprefix("data: "))


def watch(server: TinyServer, enough: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Ticks up to the first that is enough."""
    seen: list[dict[str, Any]] = []
    for tick in ticks(server):
        seen.append(tick)
        if enough(tick):
            return seen
        assert len(seen) < 100, seen[-1]
    raise AssertionError("the feed ended")


class Chat(threading.Thread):
    """A streamed completion in the background."""

    def __init__(self, server: TinyServer, **body: object) -> None:
        super().__init__(daemon=True)
        self._server, self.id, self.text = server, "", ""
        self._body = {"model": "tiny", "prompt": SECRET, "max_tokens": 400, "stream": True} | body
        self.start()

    def run(self) -> None:
        with (
            httpx.Client(base_url=self._server.url, timeout=30) as http,
            http.stream("POST", "/v1/completions", json=self._body) as response,
        ):
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    self.id = chunk["id"]
                    self.text += "".join(choice["text"] for choice in chunk["choices"])


def test_an_idle_engine(tiny: TinyServer) -> None:
    tick = next(ticks(tiny))
    assert tick["state"] == "ready"
    assert tick["lanes"] == [] and tick["running"] == tick["waiting"] == 0
    (one,) = tick["maps"]
    assert (one["blocks"], one["block_size"], one["per_cell"], one["held"]) == (256, 8, 1, 0)
    assert (tick["max_num_seqs"], tick["max_num_batched_tokens"]) == (16, 512)


def test_lanes_appear_move_and_end(tiny: TinyServer) -> None:
    chat = Chat(tiny)
    seen = watch(tiny, lambda tick: any(over["name"].startswith("text") for over in tick["ended"]))
    chat.join(30)
    name = lane_name(f"{chat.id}-0")
    mine = [lane for tick in seen for lane in tick["lanes"] if lane["name"] == name]
    assert [lane["phase"] for lane in mine[1:]] == ["decode"] * (len(mine) - 1) and len(mine) > 2
    outputs = [lane["output"] for lane in mine]
    assert outputs == sorted(outputs) and outputs[0] < outputs[-1]
    assert all(lane["arrival"] <= lane["scheduled"] <= lane["first"] for lane in mine[1:])
    (over,) = [over for over in seen[-1]["ended"] if over["name"] == name]
    assert (over["output"], over["reason"]) == (400, "length")
    assert over["first"] < over["finished"]
    rates = [tick["tokens_per_s"] for tick in seen[2:-1]]
    assert max(rates) > 50
    assert seen[-1]["ttft"]["count"] >= 1 and 0 < seen[-1]["ttft"]["p50"] < 5
    assert seen[-1]["itl"]["count"] > 100 and 0 < seen[-1]["itl"]["p50"] <= seen[-1]["itl"]["p99"] < 1


def test_shared_blocks_are_shown_as_shared(tiny: TinyServer) -> None:
    chats = [Chat(tiny, prompt=SECRET * 4, n=4)]

    def shared(tick: dict[str, Any]) -> bool:
        runs = tick["maps"][0]["runs"]
        return any(runs[at + 2] == 4 for at in range(0, len(runs), 5))

    seen = watch(tiny, shared)
    names = {lane["name"] for lane in seen[-1]["lanes"]}
    for chat in chats:
        chat.join(30)
    assert names == {lane_name(f"{chats[0].id}-0", index) for index in range(4)}


def leaks(seen: object, *secrets: str) -> list[str]:
    text = json.dumps(seen)
    return [secret for secret in secrets if secret in text]


def test_nothing_that_a_caller_wrote_is_in_the_feed(tiny: TinyServer) -> None:
    chat = Chat(tiny, user="user-of-mine", cache_salt="salt-of-mine")
    seen = watch(tiny, lambda tick: bool(tick["lanes"]) and tick["lanes"][0]["output"] > 50)
    chat.join(30)
    secrets = [*SECRET.split(), "user-of-mine", "salt-of-mine", chat.id, chat.id[-12:], chat.text[:40]]
    assert not leaks(seen, *(secret for secret in secrets if len(secret) > 3))
    assert leaks([seen, {"prompt": SECRET}], "honeycomb") == ["honeycomb"]  # it would be noticed


def test_ids_that_callers_choose_are_not_shown() -> None:
    assert lane_name("john-payroll-0").startswith("request ")
    assert "payroll" not in lane_name("chatcmpl-payroll-0")
    assert lane_name("chatcmpl-abc-0") == lane_name("chatcmpl-abc-0") != lane_name("chatcmpl-abd-0")
    assert lane_name("cmpl-abc-2", 1).endswith(".2.1")
    assert len(lane_name("x" * 5000 + "-9999999999", 127)) < 40


def test_watchers_share_one_poller(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 pages for a second: about five questions to the engine, not five hundred."""
    asked = 0
    view = tiny.client.view

    async def counted() -> Any:
        nonlocal asked
        asked += 1
        return await view()

    monkeypatch.setattr(tiny.client, "view", counted, raising=False)

    async def crowd() -> list[bytes | None]:
        feed: Feed = tiny.feed
        for _ in range(100):
            feed.join()
        try:
            events: list[bytes | None] = []
            for _ in range(5):
                events += await asyncio.gather(*(feed.next_event() for _ in range(100)))
            return events
        finally:
            for _ in range(100):
                feed.leave()

    events = tiny.call(crowd())
    assert len(events) == 500
    assert 5 <= asked <= 12


def test_the_engine_is_not_polled_without_watchers(tiny: TinyServer) -> None:
    next(ticks(tiny))
    until(lambda: tiny.feed._poller is None)
    assert tiny.feed._watchers == 0


def test_polling_ends_with_the_last_watcher_though_a_reply_arrives(
    tiny: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave_at_the_reply() -> bool:
        view = await tiny.client.view()
        reply = tiny.loop.create_future()

        async def replied() -> View:
            return await reply

        monkeypatch.setattr(tiny.client, "view", replied)
        tiny.feed.join()
        poller = tiny.feed._poller
        assert poller is not None
        for _ in range(5):  # it asks
            await asyncio.sleep(0)
        reply.set_result(view)
        await asyncio.sleep(0)
        tiny.feed.leave()
        for _ in range(5):
            await asyncio.sleep(0)
        return poller.cancelled()

    until(lambda: tiny.feed._watchers == 0)
    assert tiny.call(leave_at_the_reply())


def test_ticks_come_five_times_a_second_at_most(tiny: TinyServer) -> None:
    until(lambda: tiny.feed._watchers == 0)
    chat = Chat(tiny)  # an engine that answers at once, with output at every step
    begun = time.monotonic()  # before the first tick is sent: a lower bound holds on a busy machine, too
    feed = ticks(tiny)
    next(feed)
    for _ in range(10):
        next(feed)
    assert time.monotonic() - begun > 10 * feed_module.INTERVAL_S * 0.9
    feed.close()
    chat.join(30)


def test_a_hung_engine_is_shown_until_it_recovers(
    doomed: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "PATIENCE_S", 0.5)
    feed = ticks(doomed)
    assert "lanes" in next(feed)
    os.kill(doomed.client.pid, signal.SIGSTOP)
    try:
        assert any(tick.get("silent") for tick, _ in zip(feed, range(5), strict=False))
    finally:
        os.kill(doomed.client.pid, signal.SIGCONT)
    assert any("lanes" in tick for tick, _ in zip(feed, range(20), strict=False))


@pytest.mark.long
def test_an_open_page_does_not_delay_the_shutdown() -> None:
    """A stream without an end of its own is ended when the server is asked to go, not when its drain time is over."""
    served = serve("tale", "--port", "0", "--num-threads", "1", "--shutdown-timeout", "600")
    with httpx.stream("GET", f"{served.url}/live", timeout=30) as response:
        lines = response.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        for _ in lines:  # until the server ends the stream, in order
            pass
        assert served.process.wait(60) == 0


def test_watchers_are_bounded(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny.feed, "_max_watchers", 2)

    async def fill() -> None:
        tiny.feed.join()
        tiny.feed.join()

    until(lambda: tiny.feed._watchers == 0)
    tiny.call(fill())
    try:
        refused = tiny.http.get("/live")
        assert refused.status_code == 429 and "Retry-After" in refused.headers
        assert "already" in refused.json()["error"]["message"]
    finally:
        for _ in range(2):
            tiny.loop.call_soon_threadsafe(tiny.feed.leave)
    next(ticks(tiny))


def test_a_dead_engine_shows_as_its_state(doomed: TinyServer) -> None:
    feed = ticks(doomed)
    assert next(feed)["state"] == "ready"
    os.kill(doomed.client.pid, signal.SIGKILL)
    for tick in feed:
        if "lanes" not in tick:
            assert tick["state"] != "ready" or tick.get("silent")
            return


def test_a_closed_feed_ends_every_stream(doomed: TinyServer) -> None:
    ended = threading.Event()
    first = threading.Event()

    def listen() -> None:
        with httpx.Client(base_url=doomed.url, timeout=30) as http, http.stream("GET", "/live") as response:
            for _ in response.iter_lines():
                first.set()
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    assert first.wait(LONG_S)
    doomed.loop.call_soon_threadsafe(doomed.feed.close)
    assert ended.wait(LONG_S)
    assert [line for line in doomed.http.get("/live").text.splitlines() if line] == []


def test_endings_are_shown_for_a_while_and_bounded() -> None:
    assert feed_module.MAX_ENDED <= 512
    assert feed_module.ENDED_S > 3 * feed_module.INTERVAL_S


# ---- Latencies ----


def test_percentiles_of_the_last_minute() -> None:
    now = 0.0
    window = Window(lambda: now)
    assert window.percentiles() == {"count": 0, "p50": None, "p90": None, "p99": None}
    for number in range(1, 101):
        window.add(now, number / 100)
    assert window.percentiles() == {"count": 100, "p50": 0.5, "p90": 0.9, "p99": 0.99}
    now = WINDOW_S + 1
    window.add(now, 7.0)
    assert window.percentiles() == {"count": 1, "p50": 7.0, "p90": 7.0, "p99": 7.0}


def test_samples_are_bounded() -> None:
    window = Window(lambda: 0.0)
    for _ in range(MAX_SAMPLES + 10):
        window.add(0.0, 1.0)
    assert window.percentiles()["count"] == MAX_SAMPLES


@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_has_one_first_token_and_gaps_for_each_choice(stream: bool) -> None:
    clock = iter([10.0, 11.0, 11.5, 12.0, 13.5])
    tallies = Tallies()
    tallies.recent_ttft, tallies.recent_itl = Window(lambda: 14.0), Window(lambda: 14.0)
    record = RequestRecord("POST", (), tallies, lambda: next(clock), 0.0)
    record.began("cmpl-0", SamplingParams(n=2), [1], (), stream)
    for index in (0, 1, 0, 1):
        record.on_delta(index, Delta("cmpl-0-0", index, "a", (7,), (), None, None, None, (), ()))
    assert (tallies.ttft.count, tallies.itl.count) == (1, 2)
    ttft, itl = tallies.recent_ttft.percentiles(), tallies.recent_itl.percentiles()
    assert (ttft["count"], ttft["p50"]) == ((1, 1.0) if stream else (0, None))
    assert (itl["count"], itl["p50"], itl["p99"]) == ((2, 1.0, 2.0) if stream else (0, None, None))


def test_the_server_measures_the_same_as_a_client(doomed: TinyServer) -> None:
    """TTFT from the moment the request came, at an engine whose steps take 10 ms."""
    sent = time.monotonic()
    first = None
    body = {"model": "tiny", "prompt": "hello there", "max_tokens": 40, "stream": True}
    with doomed.http.stream("POST", "/v1/completions", json=body) as response:
        for line in response.iter_lines():
            if line and first is None:
                first = time.monotonic() - sent
    whole = time.monotonic() - sent
    tick = next(ticks(doomed))
    assert first is not None and 0.009 < tick["ttft"]["p50"] < first
    assert 0.009 < tick["itl"]["p50"] <= tick["itl"]["p99"] < whole


def test_answers_in_one_piece_are_no_samples(doomed: TinyServer) -> None:
    doomed.http.post("/v1/completions", json={"model": "tiny", "prompt": "hello", "max_tokens": 5})
    assert next(ticks(doomed))["ttft"]["count"] == 0
