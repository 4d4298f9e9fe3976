"""Hostile names cannot break /metrics, and callers cannot make it grow."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.server.access.keys import MAX_NAMES, OTHERS, KeyUsage
from headrace.server.access.traffic import Traffic
from headrace.server.app import create_app
from headrace.server.observability import exposition
from headrace.server.observability import monitor as sight_module
from headrace.server.observability.exposition import MAX_LABEL_CHARS, safe_label
from headrace.server.observability.observer import Observer
from headrace.server.requests.tallies import Tallies
from tests.running import over
from tests.server.conftest import TinyServer
from tests.server.observability.scrape import OPENMETRICS, Scrape

HOSTILE = [
    'a"} 1\nheadrace:prompt_tokens_total{model_name="b',
    "back\\slash\\",
    "new\nline\rreturn",
    "\ud800 alone",
    "\x00\x1b[31m",
    "\u2028\u2029\x85",
    "x" * 1024,
    "# HELP evil",
    "{}",
]


async def scraped(app: object, openmetrics: bool) -> httpx.Response:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.get("/metrics", headers=OPENMETRICS if openmetrics else {})


@pytest.fixture(scope="module")
def samples(tiny: TinyServer) -> dict[bool, set[object]]:
    """Those of a server without requests, in both formats."""
    plain = create_app(over(tiny.client), ["plain"], traffic=Traffic())
    return {
        openmetrics: set(Scrape.of(tiny.call(scraped(plain, openmetrics)).text, openmetrics).samples)
        for openmetrics in (False, True)
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_models_and_keys_are_escaped(
    tiny: TinyServer, samples: dict[bool, set[object]], name: str
) -> None:
    traffic = Traffic()
    traffic.usage.of(name).refused[name] += 1
    app = create_app(over(tiny.client), [name], traffic=traffic)
    for openmetrics in (False, True):
        body = tiny.call(scraped(app, openmetrics)).text
        added = set(Scrape.of(body, openmetrics).samples) - samples[openmetrics]
        assert {sample for sample, _ in added} == {
            "headrace:admission_rejections_total", "headrace:key_rejections_total", "headrace:key_requests_total",
            "headrace:key_prompt_tokens_total", "headrace:key_cached_tokens_total",
            "headrace:key_generation_tokens_total",
        }  # fmt: skip
        assert all(len(value) <= MAX_LABEL_CHARS for _, labels in added for _, value in labels)


def test_unescaped_names_are_noticed(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "safe_label", lambda text: text)
    app = create_app(over(tiny.client), ["\ud800 alone"])
    with pytest.raises(UnicodeEncodeError):
        tiny.call(scraped(app, False))


@pytest.mark.parametrize("name", HOSTILE)
def test_safe_labels_are_one_line_of_utf8(name: str) -> None:
    safe = safe_label(name)
    safe.encode()
    assert len(safe.splitlines()) == 1 and len(safe) <= MAX_LABEL_CHARS


def test_names_that_become_the_same_are_added_up(tiny: TinyServer) -> None:
    traffic = Traffic()
    for end in ("a", "b"):
        traffic.usage.of("x" * MAX_LABEL_CHARS + end).requests += 2
    app = create_app(over(tiny.client), ["tiny"], traffic=traffic)
    scrape = Scrape.of(tiny.call(scraped(app, False)).text)
    assert scrape.get("key_requests_total", key="x" * MAX_LABEL_CHARS) == 4


def test_ordinary_names_stay() -> None:
    for name in ("tale", "org/model-7b", "Ünïcode 模型", string.ascii_letters):
        assert safe_label(name) == name


def test_callers_cannot_add_series(tiny: TinyServer) -> None:
    def send(number: int) -> None:
        body = {"prompt": [4], "max_tokens": 1, "user": f"user {number}", "model": ["tiny", "alias"][number % 2],
                "cache_salt": f"salt {number}"}  # fmt: skip
        tiny.http.post("/v1/completions", json=body)
        tiny.http.post("/v1/completions", json=body | {"model": f"model {number}"})
        tiny.http.get(f"/path/{number}")
        tiny.http.request(f"METHOD{number}", "/v1/completions")
        tiny.http.request(f"METHOD{number}", "/elsewhere")

    for number in range(2):
        send(number)
        Scrape.take(tiny.http)
    before = set(Scrape.take(tiny.http).samples)
    for number in range(2, 40):
        send(number)
    assert set(Scrape.take(tiny.http).samples) == before


def test_a_planted_label_of_the_path_is_noticed(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: Observer, record: object, scope: dict[str, str]) -> None:
        tallies: Tallies = self._tallies
        tallies.http[scope["path"], "GET", "404"] += 1

    before = set(Scrape.take(tiny.http).samples)
    with monkeypatch.context() as patched:
        patched.setattr(Observer, "_end", end)
        for number in range(5):
            tiny.http.get(f"/planted/{number}")
        after = set(Scrape.take(tiny.http).samples)
    for number in range(5):
        del tiny.app.state.monitor.tallies.http[f"/planted/{number}", "GET", "404"]
    assert len({key for key in after - before if "planted" in str(key)}) == 5


def test_names_of_keys_are_bounded() -> None:
    usage = KeyUsage()
    for number in range(MAX_NAMES + 100):
        usage.of(f"key {number}").requests += 1
    names = [name for name, _ in usage.items()]
    assert len(names) == MAX_NAMES + 1 and usage.of(OTHERS).requests == 100


def test_every_sample_names_the_model(tiny: TinyServer) -> None:
    for family in text_string_to_metric_families(tiny.http.get("/metrics").text):
        for sample in family.samples:
            assert sample.name.startswith("process_") or sample.labels["model_name"] == "tiny"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5",
            "application/openmetrics-text",
        ),
        ("application/openmetrics-text;version=no-number", "application/openmetrics-text"),
        ("text/plain;version=;escaping==,;;,", "text/plain"),
        (",;=" * 1000, "text/plain"),
    ],
)
def test_formats(tiny: TinyServer, accept: str, kind: str) -> None:
    answer = tiny.http.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert answer.text.endswith("# EOF\n") == ("openmetrics" in kind)


def test_a_failing_sink_affects_no_request(tiny: TinyServer, caplog: pytest.LogCaptureFixture) -> None:
    records = []

    def broken(record: object) -> None:
        raise RuntimeError("the sink is broken")

    async def run() -> httpx.Response:
        inner = create_app(over(tiny.client), ["tiny"])
        return await scraped(Observer(inner, Tallies(), [broken, records.append]), False)

    assert tiny.call(run()).status_code == 200
    assert len(records) == 1
    assert "could not be recorded" in caplog.text


def test_an_internal_error_counts_as_a_server_error(tiny: TinyServer) -> None:
    app = create_app(over(tiny.client), ["tiny"])

    async def bug() -> None:
        raise RuntimeError("a bug")

    app.get("/bug")(bug)

    async def run() -> tuple[int, str]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get("/bug")).status_code, (await http.get("/metrics")).text

    status, text = tiny.call(run())
    assert status == 500
    assert Scrape.of(text).get("http_requests_total", route="/bug", method="GET", status="500") == 1


def test_both_formats_hold_the_same(tiny: TinyServer) -> None:
    async def both() -> tuple[httpx.Response, httpx.Response]:
        await scraped(tiny.app, False)  # which is a request that metrics tell of, too
        text, openmetrics = await asyncio.gather(scraped(tiny.app, False), scraped(tiny.app, True))
        return text, openmetrics

    text, openmetrics = tiny.call(both())
    ours = [
        {key for key in scrape.samples if key[0].startswith("headrace:")}
        for scrape in (Scrape.of(text.text), Scrape.of(openmetrics.text, True))
    ]
    assert ours[0] - ours[1] == ours[1] - ours[0] == set()


def turns_meanwhile(server: TinyServer, monkeypatch: pytest.MonkeyPatch, way: Callable[..., Any]) -> int:
    """Turns of the event loop while the text of a scrape with many keys is written by `way`, `to_thread` or another."""
    traffic = Traffic()
    for number in range(MAX_NAMES):
        traffic.usage.of(f"key {number}").requests += 1
    app = create_app(over(server.client), ["tiny"], traffic=traffic)

    turns, written = 0, 0

    async def counted(call: Callable[..., object], *args: object) -> object:
        nonlocal written
        before = turns
        found = await way(call, *args)
        written = max(written, turns - before)
        return found

    async def watched() -> None:
        nonlocal turns
        scraping = asyncio.ensure_future(scraped(app, False))
        while not scraping.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(scraping.result().content) > 500_000

    monkeypatch.setattr(sight_module, "to_thread", counted)
    server.call(watched())
    return written


def test_a_long_text_does_not_stop_the_loop(tiny: TinyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns_meanwhile(tiny, monkeypatch, asyncio.to_thread) > 1

    async def on_the_loop(call: Callable[..., object], *args: object) -> object:
        return call(*args)

    assert turns_meanwhile(tiny, monkeypatch, on_the_loop) == 0  # the planted fault
