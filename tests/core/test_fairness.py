"""Sharing between users by weight: measured in tokens computed while all of them have work that waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from headrace.core.policy import Order
from headrace.core.scheduler import Scheduler
from headrace.core.waiting import ServiceCounter
from tests.core.build import driver, full, granted, new


def shares(
    weights: Mapping[str, float], requests: Mapping[str, int], order: Order = Order.FAIR
) -> dict[str, float]:
    """Each user's share of the tokens computed while every user still has a request that waits.

    Users submit in the order given, all at once, requests of different lengths.
    """
    engine = driver(full(64), order=order, max_num_seqs=4, max_num_batched_tokens=24)
    lengths = {user: 4 + 7 * index for index, user in enumerate(weights)}
    for user, count in requests.items():
        for number in range(count):
            output = 2 + (number * 5) % 9
            engine.add(
                new(f"{user} {number}", lengths[user], user=user, weight=weights[user], max_tokens=output)
            )
    served: Counter[str] = Counter()
    while all(any(waiting.user == user for waiting in engine.engine.scheduler.waiting) for user in weights):
        for name, count in granted(engine, engine.step()).items():
            served[name.split()[0]] += count
    engine.drain()
    total = sum(served.values())
    assert total > 500
    return {user: served[user] / total for user in weights}


@pytest.mark.parametrize(
    "weight", [2.0, *(pytest.param(other, marks=pytest.mark.long) for other in (1.0, 5.0, 0.25))]
)
def test_a_heavy_user_gets_no_more_than_its_weight(weight: float) -> None:
    """A hundred requests against those that arrive after them."""
    found = shares({"greedy": 1.0, "modest": weight}, {"greedy": 100, "modest": 80})
    assert found["modest"] == pytest.approx(weight / (1 + weight), rel=0.1)


def test_three_users_share_by_weight() -> None:
    weights = {"ann": 1.0, "bob": 2.0, "cat": 3.0}
    found = shares(weights, {"ann": 60, "bob": 60, "cat": 60})
    for user, weight in weights.items():
        assert found[user] == pytest.approx(weight / 6, rel=0.1)


def test_fcfs_starves_a_light_user() -> None:
    """The same measure under the order that is not fair: it does notice."""
    found = shares({"greedy": 1.0, "modest": 1.0}, {"greedy": 100, "modest": 80}, Order.FCFS)
    assert found["modest"] < 0.05


def test_a_counter_that_ignores_weights_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = ServiceCounter.charge
    monkeypatch.setattr(
        ServiceCounter, "charge", lambda self, user, tokens, weight: original(self, user, tokens)
    )
    found = shares({"greedy": 1.0, "modest": 5.0}, {"greedy": 100, "modest": 80})
    assert abs(found["modest"] - 5 / 6) > 0.2


def test_priorities_reorder_only_requests_of_the_same_user() -> None:
    engine = driver(full(64), order=Order.FAIR, max_num_seqs=1)
    for number, (user, priority) in enumerate([("ann", 0), ("ann", 0), ("ann", -1), ("bob", 5)]):
        engine.add(new(f"{user}{number}", 8, user=user, priority=priority, max_tokens=2))
    order: list[str] = []
    while engine.engine.has_work:
        order += [name for name in granted(engine, engine.step()) if name not in order]
    assert order == ["ann2", "bob3", "ann0", "ann1"]


def steps_until_served(length: int, seqs: int = 4, blocks: int = 256) -> int:
    """Steps that a newcomer waits for its first token while another user's long requests hold every place."""
    engine = driver(
        full(blocks), order=Order.FAIR, max_num_seqs=seqs, max_num_batched_tokens=8, max_model_len=600
    )
    for number in range(seqs):
        engine.add(new(f"greedy{number}", 4, user="greedy", max_tokens=length))
    for _ in range(10):
        engine.step()
    modest = engine.add(new("modest", 4, user="modest", max_tokens=3))[0]
    steps = 0
    while not modest.tokens:
        engine.step()
        steps += 1
    engine.drain()
    return steps


@pytest.mark.parametrize("seqs", [2, *(pytest.param(other, marks=pytest.mark.long) for other in (4, 8))])
def test_long_requests_do_not_occupy_all_slots(seqs: int) -> None:
    """The wait does not depend on how long the others are."""
    assert steps_until_served(200, seqs) == steps_until_served(60, seqs) < 30


def test_long_requests_do_not_occupy_all_memory() -> None:
    """There are places, but no blocks: sequences of 40 tokens in 12 blocks of 4."""
    assert steps_until_served(40, seqs=8, blocks=12) <= 20


def test_without_fair_preemption_a_new_user_waits_for_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_make_place", lambda self: None)
    assert steps_until_served(200) > 180


def test_fair_preemption_is_rare() -> None:
    """Two users with long requests for the same places: what is computed twice stays the smaller part."""
    engine = driver(
        full(128),
        caching=False,
        order=Order.FAIR,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        max_model_len=600,
    )
    for user in ("ann", "bob"):
        for number in range(8):
            engine.add(new(f"{user}{number}", 4, user=user, max_tokens=100))
        for _ in range(10):
            engine.step()
    engine.drain()
    stats = engine.engine.stats().scheduler
    useful = 16 * (4 + 100 - 1)
    assert 0 < stats.preemptions <= 16
    assert stats.scheduled_tokens < 1.5 * useful
