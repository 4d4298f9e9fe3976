"""Metrics of keys equal /usage, and only administrators see them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from headrace.server.access.keys import Caller
from tests.server.conftest import TinyServer
from tests.server.keyring import bearer, code, complete, keyed
from tests.server.observability.scrape import OPENMETRICS, Scrape

ANN, BOB = Caller("ann", requests_per_minute=3), Caller("bob")
BOSS = Caller("boss", admin=True, max_priority=None)


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    server = TinyServer(traffic=keyed(ANN, BOB, BOSS))
    yield server
    server.close()


def test_only_administrators_see_metrics(server: TinyServer) -> None:
    for headers in ({}, OPENMETRICS):
        assert code(server.http.get("/metrics", headers=headers)) == (401, "invalid_api_key")
        assert code(server.http.get("/metrics", headers=headers | bearer("bob"))) == (403, "not_permitted")
        assert server.http.get("/metrics", headers=headers | bearer("boss")).status_code == 200


def test_counts_by_key(server: TinyServer) -> None:
    def scrape() -> Scrape:
        with httpx.Client(base_url=server.url, headers=bearer("boss")) as http:
            return Scrape.take(http)

    before = scrape()
    for name, times in (("ann", 5), ("bob", 4), ("", 2), ("stranger", 1)):
        for _ in range(times):
            complete(server, name, prompt=[9] * 20, max_tokens=3, n=2)
    complete(server, "bob", prompt=[9] * 600)
    complete(server, "bob", priority=-5)
    seen = scrape().since(before)
    assert seen.under("key_requests_total", "key") == {"ann": 3, "bob": 4}
    assert seen.under("key_generation_tokens_total", "key") == {"ann": 18, "bob": 24}
    assert seen.under("key_prompt_tokens_total", "key") == {"ann": 60, "bob": 80}
    assert seen.under("key_cached_tokens_total", "key") == {"ann": 32, "bob": 48}
    assert seen.under("key_rejections_total", "key") == {"ann": 2, "bob": 1}
    assert seen.under("admission_rejections_total", "reason") == {
        "unauthorized": 3, "rate_limit_exceeded": 2, "not_permitted": 1,
    }  # fmt: skip
    assert seen["generation_tokens_total"] == 42 and seen["prompt_tokens_total"] == 140
    usage = server.http.get("/usage", headers=bearer("boss")).json()["keys"]
    now = scrape()
    for field, metric in (
        ("requests", "key_requests_total"),
        ("prompt_tokens", "key_prompt_tokens_total"),
        ("cached_tokens", "key_cached_tokens_total"),
        ("completion_tokens", "key_generation_tokens_total"),
    ):
        reported = {name: used[field] for name, used in usage.items() if used[field]}
        assert now.under(metric, "key") == reported
