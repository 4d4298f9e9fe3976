"""Whose grammar is compiled next, and what is shared."""

from __future__ import annotations

import random

import pytest

from headrace.core.grammar import Grammar
from headrace.errors import Overloaded
from headrace.serving.grammar import queue as grammar_queue
from headrace.serving.grammar.queue import FairQueue, Job


def grammar(name: str) -> Grammar:
    return Grammar("regex", name)


def join(queue: FairQueue, name: str, user: str, request_id: str = "") -> Job:
    return queue.join(grammar(name), request_id or f"{user} {name}", user)


def taken(queue: FairQueue) -> str:
    job = queue.take()
    assert job is not None
    return job.grammar.source


def served(queue: FairQueue) -> list[str]:
    """What one worker does, in order."""
    order = []
    while (job := queue.take()) is not None:
        order.append(job.grammar.source)
        queue.done(job)
    return order


def test_users_take_turns() -> None:
    queue = FairQueue()
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        join(queue, name, name[0])
    assert served(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert len(queue) == queue.users == queue.working == 0


def test_a_new_user_is_next_while_another_is_served() -> None:
    queue = FairQueue()
    for i in range(20):
        join(queue, f"a{i}", "a")
    job = queue.take()
    assert job is not None
    join(queue, "b", "b")
    assert queue.take() is None  # there is one worker
    queue.done(job)
    assert taken(queue) == "b"


def test_the_last_worker_is_kept_for_another_user() -> None:
    queue = FairQueue(3)
    for i in range(20):
        join(queue, f"a{i}", "a")
    assert [taken(queue), taken(queue)] == ["a0", "a1"]
    assert queue.next_user() is None and queue.take() is None
    join(queue, "b", "b")
    assert taken(queue) == "b" and queue.take() is None


def test_one_grammar_of_two_users_is_one_job_in_the_better_place() -> None:
    queue = FairQueue()
    for name in ("a0", "a1", "shared", "a3"):
        join(queue, name, "a")
    job = join(queue, "shared", "b")
    assert len(queue) == 4 and set(job.waiting.values()) == {"a", "b"}
    assert taken(queue) == "a0"
    assert join(queue, "shared", "c") is job
    queue.done(join(queue, "a0", "a", "another"))  # which is in work
    assert taken(queue) == "shared"
    assert join(queue, "shared", "d") is job and len(job.waiting) == 4  # in work, and joined nevertheless
    queue.done(job)
    assert join(queue, "shared", "d") is not job
    assert served(queue) == ["a1", "shared", "a3"]


def test_leaving() -> None:
    queue = FairQueue()
    jobs = [join(queue, f"a{i}", "a") for i in range(3)]
    join(queue, "a1", "a", "twice")
    join(queue, "a2", "b")
    for job in jobs:
        queue.leave(job, f"a {job.grammar.source}")
        queue.leave(job, "unknown")
    assert len(queue) == 2
    assert served(queue) == ["a1", "a2"]
    job = join(queue, "last", "a")
    assert taken(queue) == "last"
    queue.leave(job, "a last")
    assert len(queue) == 1 and not job.waiting  # running; no request waits
    queue.done(job)
    assert len(queue) == queue.users == 0


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_queue, "MAX_WAITING_OF_USER", 3)
    monkeypatch.setattr(grammar_queue, "MAX_WAITING", 5)
    queue = FairQueue()
    jobs = [join(queue, f"a{i}", "a") for i in range(3)]
    with pytest.raises(Overloaded, match="your grammars"):
        join(queue, "a3", "a")
    join(queue, "a2", "a", "the same one again")
    join(queue, "b0", "b")
    with pytest.raises(Overloaded, match="your grammars"):
        join(queue, "b0", "a")  # a place in one's own line is a place
    join(queue, "b1", "b")
    with pytest.raises(Overloaded, match="too many grammars"):
        join(queue, "c0", "c")
    assert join(queue, "b1", "c").grammar == grammar("b1")  # costs nothing
    queue.leave(jobs[0], "a a0")
    join(queue, "c0", "c")
    assert len(queue) == 5


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_events_leaks_nothing_and_serves_every_user(seed: int) -> None:
    dice = random.Random(seed)
    workers = dice.randint(1, 4)
    queue = FairQueue(workers)
    waiting: dict[str, Job] = {}
    working: list[Job] = []
    passed_over: dict[str, int] = {}  # how often others were served since a user has waited
    for number in range(600):
        match dice.randrange(4):
            case 0 | 1:
                user, name = f"u{dice.randrange(4)}", f"g{dice.randrange(12)}"
                waiting[str(number)] = queue.join(grammar(name), str(number), user)
            case 2 if waiting and dice.random() < 0.3:
                request_id = dice.choice(sorted(waiting))
                queue.leave(waiting.pop(request_id), request_id)
            case _:
                if working and (dice.random() < 0.5 or len(working) == workers):
                    job = working.pop(dice.randrange(len(working)))
                    queue.done(job)
                    for request_id in job.waiting:
                        del waiting[request_id]
                job_taken = queue.take()
                if job_taken is not None:
                    assert job_taken.waiting and job_taken not in working
                    served_users = set(job_taken.waiting.values())
                    for user in {f"u{i}" for i in range(4)}:
                        stands = any(
                            job.taken_for is None and user in job.waiting.values() for job in waiting.values()
                        )
                        busy = any(job.taken_for == user for job in working)
                        if user in served_users or not stands or busy:
                            passed_over[user] = 0
                        else:
                            passed_over[user] = passed_over.get(user, 0) + 1
                            assert passed_over[user] <= 3  # one of each other user
                    working.append(job_taken)
        assert queue.working == len(working) <= workers
        assert len({job.grammar for job in [*waiting.values(), *working]}) == len(queue)
    for job in working:
        queue.done(job)
    served(queue)
    assert len(queue) == queue.users == queue.working == 0
