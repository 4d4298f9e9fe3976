"""Requests and tokens a minute: buckets under a manual clock, and headers for clients."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import openai
import pytest

from headrace.errors import RateLimited
from headrace.server.access.keys import Caller
from headrace.server.access.rate_limit import RateLimiter
from tests.server.conftest import TinyServer
from tests.server.keyring import bearer, code, complete, keyed, secret
from tests.waiting import until


class Time:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def limiter() -> tuple[RateLimiter, Time]:
    time = Time()
    return RateLimiter(time), time


def test_a_minute_holds_so_many_requests_and_a_bucket_fills_evenly() -> None:
    limits, time = limiter()
    ann = Caller("ann", requests_per_minute=30)
    for _ in range(30):
        limits.take_request(ann)
    with pytest.raises(RateLimited, match="30 requests a minute") as caught:
        limits.take_request(ann)
    assert caught.value.retry_after_s == 2
    time.now += 1.9
    with pytest.raises(RateLimited):
        limits.take_request(ann)
    time.now += 0.2
    limits.take_request(ann)
    limits.take_request(Caller("bob", requests_per_minute=30))  # a bucket of its own
    limits.take_request(Caller("cat"))
    time.now += 1e6  # a pause saves up one minute's worth
    for _ in range(30):
        limits.take_request(ann)
    with pytest.raises(RateLimited):
        limits.take_request(ann)


def test_tokens_are_set_aside_and_returned() -> None:
    limits, _ = limiter()
    ann = Caller("ann", tokens_per_minute=600)
    assert limits.reserve_tokens(ann, 400) == 0
    with pytest.raises(RateLimited) as caught:
        limits.reserve_tokens(ann, 301)
    assert caught.value.retry_after_s == 11
    limits.return_tokens(ann, 350)  # it came to 50 only
    assert limits.reserve_tokens(ann, 300) == 0
    (limit,) = limits.limits(ann)
    assert (limit.kind, limit.per_minute, limit.remaining) == ("tokens", 600, 250)
    assert limit.reset_s == pytest.approx(35)


def test_requests_wait_briefly_in_order_for_a_refill() -> None:
    limits, time = limiter()
    ann = Caller("ann", tokens_per_minute=600)  # ten a second
    assert limits.reserve_tokens(ann, 600) == 0
    assert [limits.reserve_tokens(ann, 30) for _ in range(3)] == [3, 6, 9]
    with pytest.raises(RateLimited) as caught:
        limits.reserve_tokens(ann, 11)
    assert caught.value.retry_after_s == 11
    with pytest.raises(RateLimited):
        limits.reserve_tokens(ann, 1, patience_s=9.0)
    assert limits.reserve_tokens(ann, 10) == 10  # those that were refused took nothing
    time.now += 9
    assert limits.reserve_tokens(ann, 10) == pytest.approx(2)


def test_later_charges_delay_the_next_requests() -> None:
    limits, time = limiter()
    ann = Caller("ann", tokens_per_minute=600)
    limits.reserve_tokens(ann, 100)
    limits.charge_tokens(ann, 2000)  # a long answer: 1500 tokens below nothing
    assert limits.limits(ann)[0].remaining == 0
    with pytest.raises(RateLimited) as caught:
        limits.reserve_tokens(ann, 10)
    assert caught.value.retry_after_s == 151
    time.now += 151
    assert limits.reserve_tokens(ann, 10) == 0


def test_more_than_a_minutes_tokens_need_a_full_bucket_and_are_paid_off() -> None:
    limits, time = limiter()
    ann = Caller("ann", tokens_per_minute=600)
    assert limits.reserve_tokens(ann, 1200) == 0
    with pytest.raises(RateLimited) as caught:
        limits.reserve_tokens(ann, 1)
    assert caught.value.retry_after_s == 61  # back to nothing in a minute, and then one token
    assert limits.limits(ann)[0].remaining == 0
    time.now += 61
    assert limits.reserve_tokens(ann, 1) == 0
    with pytest.raises(RateLimited):
        limits.reserve_tokens(ann, 1200)


def test_a_changed_limit_keeps_what_was_used() -> None:
    limits, _ = limiter()
    limits.reserve_tokens(Caller("ann", tokens_per_minute=600), 500)
    assert limits.limits(Caller("ann", tokens_per_minute=1000))[0].remaining == 500
    assert limits.limits(Caller("ann", tokens_per_minute=400))[0].remaining == 0
    limits.keep(frozenset({"bob"}))
    assert limits.limits(Caller("ann", tokens_per_minute=400))[0].remaining == 400


def test_no_minute_gives_more_than_twice_the_limit_and_the_long_run_gives_the_limit() -> None:
    rng, (limits, time) = Random(1), limiter()
    ann = Caller("ann", tokens_per_minute=6000)
    taken: list[tuple[float, int]] = []
    while time.now < 4000:
        time.now += rng.random()
        tokens = rng.randint(1, 900)
        with contextlib.suppress(RateLimited):
            taken.append((time.now + limits.reserve_tokens(ann, tokens), tokens))
    total = sum(tokens for _, tokens in taken)
    assert total / 3950 * 60 == pytest.approx(6000, rel=0.05)
    for begin in range(50, 3900, 30):
        assert sum(tokens for at, tokens in taken if begin <= at < begin + 60) <= 2 * 6000


def test_clients_see_their_limits_and_429() -> None:
    server = TinyServer(
        traffic=keyed(
            Caller("few", requests_per_minute=3), Caller("small", tokens_per_minute=100), Caller("free")
        )
    )
    try:
        for left in (2, 1, 0):
            answer = complete(server, "few")
            assert answer.status_code == 200 and answer.headers["x-ratelimit-limit-requests"] == "3"
            assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
            assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
            assert "x-ratelimit-limit-tokens" not in answer.headers
        answer = complete(server, "few")
        assert code(answer) == (429, "rate_limit_exceeded")
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert (
            server.http.get("/v1/models", headers=bearer("few")).status_code == 200
        )  # looking costs nothing
        with (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=secret("few"), max_retries=0) as client,
            pytest.raises(openai.RateLimitError),
        ):
            client.completions.create(model="tiny", prompt=[1])

        answer = complete(server, "small", prompt=[1] * 10, max_tokens=60)
        assert answer.headers["x-ratelimit-limit-tokens"] == "100"
        answer = complete(server, "small", prompt=[1] * 10, max_tokens=60)
        assert code(answer) == (429, "rate_limit_exceeded") and "100 tokens a minute" in answer.text
        assert complete(server, "small", prompt=[1] * 10, max_tokens=10).status_code == 200
        assert all(complete(server, "free").status_code == 200 for _ in range(10))
        assert "x-ratelimit-limit-requests" not in complete(server, "free").headers
        used = server.traffic.usage
        assert used.of("few").refused == {"rate_limit_exceeded": 2} and used.of("few").requests == 3
        assert used.of("small").refused == {"rate_limit_exceeded": 1}
    finally:
        server.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "a"}),
        ("/v1/messages/count_tokens", {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}),
    ],
)
def test_counting_tokens_is_a_request(path: str, body: dict[str, Any]) -> None:
    server = TinyServer(traffic=keyed(Caller("few", requests_per_minute=2)))
    try:
        answers = [server.http.post(path, json=body, headers=bearer("few")) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429], answers[0].text
        assert "2 requests a minute" in answers[2].text and int(answers[2].headers["retry-after"]) >= 1
        assert complete(server, "few").status_code == 429
    finally:
        server.close()


def test_unused_tokens_are_returned() -> None:
    """A caller who leaves, an engine that refuses, a stop: only what was computed is charged."""
    server = TinyServer(traffic=keyed(Caller("ann", tokens_per_minute=1000)))
    try:
        assert complete(server, "ann", prompt=[5000], max_tokens=400).status_code == 400
        stopped = complete(server, "ann", prompt=[1] * 10, max_tokens=400, stop_token_ids=[9])
        assert stopped.json()["usage"]["completion_tokens"] == 8
        until(lambda: server.idle)
        (limit,) = server.traffic.limiter.limits(Caller("ann", tokens_per_minute=1000))
        assert 1000 - 18 <= limit.remaining <= 1000  # some seconds have passed
    finally:
        server.close()
