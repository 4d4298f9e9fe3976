"""Load: many clients at once lose nothing, see exact counts, and the event loop stays quick."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server_metrics import ServerMetrics
from headrace.bench.report import Report, Row
from headrace.bench.serving.figures import row_of
from headrace.bench.serving.http_client import Address, Connection
from headrace.bench.serving.load import Load, Loaded
from headrace.bench.serving.serve import run
from headrace.bench.serving.target import Target
from headrace.cli import main
from headrace.server.http.connection import ConnectionLimits
from headrace.sim.workload.sessions import Lengths, WordRate, Workload
from tests.server.conftest import ServeProcess, TinyServer, serve

LAG_S = 0.1
LAG_SHARE = 0.99


def counted(row: Row) -> bool:
    """Nothing is lost: every request was answered, or refused with 429."""
    values = row.values
    return values["sent"] == values["answered"] + values["refused"] and values["failed"] == 0


def bench(url: str, path: Path, *words: str) -> Report:
    out = path / "out.json"
    assert main(["bench", "serve", "--base-url", url, *words, "--json", str(out)]) == 0
    return Report.from_json(json.loads(out.read_text(encoding="utf-8")))


def metrics(served: ServeProcess) -> ServerMetrics:
    with served.openai() as client:
        return ServerMetrics(client.with_options(base_url=served.url).get("/metrics", cast_to=str))


def closed(url: str, clients: int, seconds: float, tokens: int = 16, **extra: Any) -> Loaded:
    """So many clients for so long, in this process."""
    target = Target(Address.of(url), "", extra={"ignore_eos": True, **extra})
    sessions = Workload(Lengths.fixed(8), Lengths(tokens, 0.5, 2, 4 * tokens)).sessions(0, WordRate(1.0, 1.0))
    load = Load(target, max_concurrency=None, timeout_s=60, on_done=lambda outcome: None)
    return run(load.closed(sessions, clients, seconds))


# ---- The client against our own server ----


def test_token_counts_are_exact(tale: ServeProcess, tmp_path: Path) -> None:
    """What the client adds up is what was asked for, and what the server says that it gave."""
    before = metrics(tale)
    words = [
        "--dataset-name",
        "random",
        "--input-len",
        "10",
        "--output-len",
        "7",
        "--num-prompts",
        "9",
        "--ignore-eos",
    ]
    (row,) = bench(tale.url, tmp_path, *words, "--num-warmups", "0").rows
    assert counted(row) and row.values["answered"] == 9
    assert row.values["output_tokens"] == 9 * 7
    assert row.values["prompt_tokens"] == pytest.approx(9 * 10, rel=0.3), "words come to about a token each"
    after = metrics(tale)
    probes = 2  # of one token each
    given = after.value("generation_tokens_total") - before.value("generation_tokens_total")
    assert given == 9 * 7 + probes


def test_a_sweep_has_a_row_for_each_rate_and_a_picture(tale: ServeProcess, tmp_path: Path) -> None:
    plot = tmp_path / "rates.svg"
    report = bench(
        tale.url, tmp_path, "--request-rate", "20:60:3", "--num-prompts", "8", "--output-len", "4", "--input-len", "5",
        "--goodput", "ttft:30", "tpot:30", "--plot", str(plot),
    )  # fmt: skip
    assert [row.labels["rate"] for row in report.rows] == [20, 40, 60]
    assert all(
        counted(row) and row.values["answered"] == 8 and row.values["within_slo"] == 1 for row in report.rows
    )
    for row in report.rows:
        values = row.values
        assert values["ttft_p50_s"] <= values["ttft_p90_s"] <= values["ttft_p99_s"] <= values["e2e_p99_s"]
        assert 0 < values["client_share"] < 2
    drawn = plot.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml") and len(drawn) > 5000


@pytest.mark.parametrize(
    "words",
    [
        ["--backend", "openai-chat", "--dataset-name", "multi_turn", "--num-turns", "2", "--num-prompts", "3"],
        ["--dataset-name", "prefix_repetition", "--prefix-len", "200", "--num-prefixes", "2", "--num-prompts", "6"],
        ["--request-rate", "40", "--burst-size", "3", "--num-prompts", "6"],
        ["--max-concurrency", "2", "--num-prompts", "6"],
    ],
)  # fmt: skip
def test_workloads(words: list[str], tale: ServeProcess, tmp_path: Path) -> None:
    before = metrics(tale).value("prefix_cache_hits_total")
    report = bench(tale.url, tmp_path, "--input-len", "8", "--output-len", "4", *words)
    (row,) = report.rows
    assert counted(row) and row.values["answered"] == 6
    if "prefix_repetition" in words:
        assert metrics(tale).value("prefix_cache_hits_total") - before >= 4 * 150, "prefixes were not shared"


# ---- Nothing is lost ----


@pytest.fixture(scope="module")
def crowded() -> Iterator[ServeProcess]:
    """A server that refuses what is more than its queue."""
    served = serve("tale", "--port", "0", "--num-threads", "1", "--max-queue", "80")
    yield served
    served.process.terminate()
    served.process.wait(30)


def starved_s(pid: int) -> float:
    """Seconds for which a thread was ready to run and had no core, since its start."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def quick(within: float, starved: float) -> bool:
    """Of the loop's ticks a share `within` came in time, while for a share `starved` of the time other work had the
    cores: of that the loop can do nothing."""
    return within >= LAG_SHARE - starved


def check_load(served: ServeProcess, clients: int, seconds: float) -> tuple[Row, float, float]:
    """(what came of it, share of the loop's ticks that came in time, share of the time without a core)"""
    before, waited = metrics(served), starved_s(served.process.pid)
    loaded = closed(served.url, clients, seconds)
    row = row_of({"clients": clients}, loaded, None)
    after = metrics(served)
    assert counted(row), [outcome.reason for outcome in loaded.outcomes if outcome.reason][:5]
    assert row.values["answered"] > clients / 4
    counted_tokens = after.value("generation_tokens_total") - before.value("generation_tokens_total")
    assert counted_tokens == row.values["output_tokens"], "tokens were lost on the way"
    within = after.share_within("event_loop_lag_seconds", LAG_S, before)
    starved = (starved_s(served.process.pid) - waited) / loaded.wall_s
    assert after.value("num_requests_running") + after.value("num_requests_waiting") == 0
    return row, within, starved


@pytest.mark.alone
def test_a_hundred_clients_lose_nothing(crowded: ServeProcess) -> None:
    """Refusals happen, too."""
    row, _, _ = check_load(crowded, clients=100, seconds=1.5)
    assert row.values["refused"] > 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_hundred_clients_for_five_minutes() -> None:
    served = serve("tale", "--port", "0", "--num-threads", "1")
    try:
        _, within, starved = check_load(served, clients=500, seconds=300)
        assert quick(within, starved), (
            f"late: {within:.2%} within {LAG_S} s, without a core {starved:.0%} of the time"
        )
    finally:
        served.process.terminate()
        served.process.wait(60)


def test_the_check_notices_an_answer_that_is_lost() -> None:
    """Every fiftieth connection of the server is cut in the middle of its stream."""
    count = itertools.count(1)
    real = Connection.connection_made

    def connection_made(self: Connection, transport: asyncio.BaseTransport) -> None:
        real(self, transport)
        if next(count) % 5 == 0:
            asyncio.get_running_loop().call_later(0.05, self._transport.abort)  # type: ignore[union-attr]

    tiny = TinyServer(step_s=0.01)
    with contextlib.ExitStack() as undo:
        undo.callback(tiny.close)
        Connection.connection_made = connection_made  # type: ignore[method-assign]
        undo.callback(setattr, Connection, "connection_made", real)
        row = row_of({}, closed(tiny.url, clients=10, seconds=0.5), None)
    assert not counted(row) and row.values["failed"] >= 1


@pytest.mark.long
def test_the_check_notices_a_loop_that_is_blocked() -> None:
    """Somebody sleeps on the event loop for 0.2 s, again and again."""
    tiny = TinyServer()
    try:
        loop_thread = tiny.call(native_id())

        def sample() -> tuple[ServerMetrics, float]:
            return ServerMetrics(tiny.http.get("/metrics").text), starved_s(loop_thread)

        before, waited = sample()
        start = time.monotonic()
        for _ in range(8):
            tiny.loop.call_soon_threadsafe(time.sleep, 0.2)
            time.sleep(0.22)
        wall = time.monotonic() - start
        after, later = sample()
    finally:
        tiny.close()
    assert not quick(after.share_within("event_loop_lag_seconds", LAG_S, before), (later - waited) / wall)


async def native_id() -> int:
    return threading.get_native_id()


def test_shares_of_a_histogram() -> None:
    text = "".join(
        f'headrace:event_loop_lag_seconds_bucket{{le="{bound}"}} {count}\n'
        for bound, count in (("0.05", 80), ("0.1", 95), ("+Inf", 100))
    )
    seen = ServerMetrics(text)
    assert seen.share_within("event_loop_lag_seconds", LAG_S) == 0.95
    assert ServerMetrics(text.replace("95", "99").replace("100", "105")).share_within(
        "event_loop_lag_seconds", LAG_S, seen
    ) == pytest.approx(4 / 5)
    with pytest.raises(KeyError):
        seen.share_within("event_loop_lag_seconds", 0.07)


def test_unflushed_bytes_do_not_count_as_a_slow_reader() -> None:
    """The server checks repeatedly whether clients read; bytes written at the end of the turn are not unread."""
    tiny = TinyServer(ConnectionLimits(slow_reader_timeout_s=0.05))
    try:
        row = row_of({}, closed(tiny.url, clients=16, seconds=1.0, tokens=8), None)
    finally:
        tiny.close()
    assert counted(row) and row.values["answered"] >= 16


@pytest.mark.long
def test_a_closed_load_obeys_retry_after() -> None:
    """The engine takes 16 at once: among 80 clients some are refused, and none of them hammers."""
    with contextlib.closing(TinyServer(max_in_flight=16)) as few:
        loaded = closed(few.url, clients=80, seconds=1.0, tokens=60)
    row = row_of({}, loaded, None)
    assert counted(row) and row.values["refused"] > 0
    assert row.values["refused"] <= 80 * 2
