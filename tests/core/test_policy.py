"""Admission, victims, the waiting queue and the fair order's counters."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from headrace.core.policy import Batching, Order, Room, Victim, batch_room, choose_victim
from headrace.core.request import Request
from headrace.core.waiting import MAX_DEPARTED, ServiceCounter, WaitingQueue
from tests.core.build import CONFIG, driver, full, granted, new, request

DYNAMIC = replace(
    CONFIG, batching=Batching.DYNAMIC, batch_size=4, batch_wait_s=2.0, batch_max_tokens=100, max_num_seqs=16
)


@pytest.mark.parametrize(
    ("waiting", "tokens", "now", "room"),
    [
        (1, 10, 11.9, Room(0, 12.0)),
        (1, 10, 12.0, Room(1)),  # waited long enough
        (4, 10, 10.0, Room(4)),  # full
        (9, 10, 10.0, Room(4)),
        (2, 99, 10.0, Room(0, 12.0)),
        (2, 100, 10.0, Room(2)),  # enough tokens
    ],
)
def test_a_dynamic_batch_starts_by_size_time_or_tokens(
    waiting: int, tokens: int, now: float, room: Room
) -> None:
    assert batch_room(DYNAMIC, waiting, tokens, 10.0, now) == room


def test_a_static_batch_starts_with_all_waiting_requests() -> None:
    static = replace(DYNAMIC, batching=Batching.STATIC)
    assert batch_room(static, 1, 1, 0.0, 0.0) == Room(1)
    assert batch_room(static, 9, 1, 0.0, 0.0) == Room(4)
    assert batch_room(replace(static, max_num_seqs=3), 9, 1, 0.0, 0.0) == Room(3)


def test_victims() -> None:
    assert choose_victim(CONFIG, []) is None
    later = []
    for number, computed in enumerate((7, 3, 9, 3, 8)):
        later.append(request(number, range(20), [full()]))
        later[-1].num_computed = computed
    assert choose_victim(CONFIG, later) is later[-1]
    cheapest = choose_victim(replace(CONFIG, victim=Victim.CHEAPEST), later)
    assert cheapest is later[3]  # of equally cheap ones the one that would be served last


def queued(number: int, user: str = "", priority: int = 0) -> Request:
    sequence = request(number, [1], [full()])
    sequence.user, sequence.priority = user, priority
    return sequence


def drained(queue: WaitingQueue) -> list[int]:
    order = []
    while (head := queue.head()) is not None:
        queue.remove(head)
        order.append(head.number)
    return order


@pytest.mark.parametrize(("order", "expected"), [(Order.FCFS, [0, 1, 2, 3]), (Order.PRIORITY, [1, 3, 0, 2])])
def test_orders_of_one_queue(order: Order, expected: list[int]) -> None:
    queue = WaitingQueue(order, ServiceCounter())
    for number in (2, 0, 3, 1):
        queue.add(queued(number, priority=0 if number % 2 else 1))
    assert len(queue) == 4 and [r.number for r in queue] == expected
    assert drained(queue) == expected
    assert len(queue) == 0 and queue.head() is None


def test_removing_a_request_that_does_not_wait_raises() -> None:
    queue = WaitingQueue(Order.FCFS, ServiceCounter())
    queue.add(queued(1))
    with pytest.raises(ValueError, match="not waiting"):
        queue.remove(queued(1))


def test_the_fair_order_serves_the_least_served_user() -> None:
    service = ServiceCounter()
    queue = WaitingQueue(Order.FAIR, service)
    for number, user in enumerate(("ann", "ann", "bob", "cat")):
        service.arrive(user)
        queue.add(queued(number, user))
    service.charge("ann", 10)
    service.charge("bob", 5)
    assert drained(queue) == [3, 2, 0, 1]


def test_idling_earns_no_credit() -> None:
    service = ServiceCounter()
    service.arrive("ann")
    service.charge("ann", 100)
    service.arrive("bob")
    assert service.served("bob") == 100
    service.charge("bob", 7)
    service.leave("bob")
    service.arrive("bob")
    assert service.served("bob") == 107  # nor does leaving wash off a debt


def test_counters_reset_when_no_user_is_active() -> None:
    service = ServiceCounter()
    service.arrive("ann")
    service.charge("ann", 100)
    service.leave("ann")
    assert service.served("ann") == 0 and not service._served


def test_counters_of_departed_users_are_dropped() -> None:
    service = ServiceCounter()
    service.arrive("resident")
    for number in range(2000):
        user = f"guest{number}"
        service.arrive(user)
        service.charge(user, 3)
        service.leave(user)
        service.charge("resident", 1)
    assert len(service._served) < 10 and len(service._departed) < 10


def test_forgetting_counters_changes_no_count() -> None:
    rng, service = Random(5), ServiceCounter()
    served: dict[str, int] = {}  # the same counters without forgetting
    active: list[str] = []
    for _ in range(4000):
        user, roll = rng.choice("abcdefgh"), rng.random()
        if roll < 0.3:
            if user not in active:
                floor = min((served[other] for other in active), default=0)
                served[user] = max(served.get(user, 0), floor)
            active.append(user)
            service.arrive(user)
        elif user in active and roll < 0.65:
            active.remove(user)
            service.leave(user)
            if not active:
                served.clear()
        elif user in active:
            tokens = rng.randint(1, 9)
            served[user] += tokens
            service.charge(user, tokens)
        assert all(service.served(other) == served[other] for other in active)


def test_a_heavy_user_does_not_delay_a_light_one() -> None:
    """Ann submits fifty requests, bob then one: under fcfs bob waits for all of them, under fair for almost none."""
    waited = {}
    for order in (Order.FCFS, Order.FAIR):
        engine = driver(full(64), order=order, max_num_seqs=2, max_num_batched_tokens=16)
        for number in range(50):
            engine.add(new(f"ann{number}", 8, user="ann", max_tokens=4))
        engine.step()
        bob = engine.add(new("bob", 8, user="bob", max_tokens=4))[0]
        steps = 0
        while bob.reason is None:
            engine.step()
            steps += 1
        waited[order] = steps
        engine.drain()
    assert waited[Order.FAIR] <= 8 < 80 < waited[Order.FCFS]


def test_two_busy_users_get_the_same_number_of_tokens() -> None:
    engine = driver(full(64), order=Order.FAIR, max_num_seqs=2, max_num_batched_tokens=8)
    for number in range(20):
        engine.add(new(f"ann{number}", 20, user="ann", max_tokens=2))
        for half in "xy":
            engine.add(new(f"bob{number}{half}", 6, user="bob", max_tokens=6))
    served = {"ann": 0, "bob": 0}
    for _ in range(60):
        for name, count in granted(engine, engine.step()).items():
            served[name[:3]] += count
    assert abs(served["ann"] - served["bob"]) <= 0.1 * sum(served.values())
    engine.drain()


def test_users_are_not_charged_for_recomputed_or_cached_tokens() -> None:
    engine = driver(full(8), order=Order.FAIR, max_num_seqs=4, max_num_batched_tokens=4)
    engine.add(new("a", 8, user="ann", max_tokens=20))
    engine.add(new("b", 8, user="bob", max_tokens=20))
    bound = 8 + 20
    while engine.engine.has_work:
        engine.step()
        service = engine.engine.scheduler.service
        assert service.served("ann") <= bound and service.served("bob") <= bound
    assert engine.events["preemptions"] > 0


def test_counters_of_departed_users_are_bounded() -> None:
    """One user stays active, so that no user who was served more falls to the floor."""
    service = ServiceCounter()
    service.arrive("stays")
    service.arrive("greedy")
    service.charge("greedy", 10**6)
    service.leave("greedy")
    for number in range(3 * MAX_DEPARTED):
        for name in (f"user {number}", "regular"):
            service.arrive(name)
            service.charge(name, 1 + number)
            service.leave(name)
    assert len(service) <= MAX_DEPARTED + 1
    assert service.served("greedy") == 10**6 and service.served("regular") > MAX_DEPARTED
