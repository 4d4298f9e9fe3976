"""Drafting that does not pay rests, and what it lost is paid back meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.speculative.resting import FIRST_SHARE, LONGEST, SHARE, SHORTEST, TRUST, Rest
from tests.speculative.test_control import Machine, best, flat, steep


def test_a_rest_pays_back_what_was_lost() -> None:
    rest = Rest()
    while not rest.left:
        rest.add(-0.5)
    assert rest.left == round(TRUST / FIRST_SHARE)
    lengths = []
    for _ in range(4):
        rest.left, lost = 0, 0.0
        while not rest.left:
            rest.add(-0.5)
            lost += 0.5
        lengths.append(rest.left / lost)
    assert lengths == [round(2 / FIRST_SHARE), 1 / SHARE, 1 / SHARE, 1 / SHARE]
    rest.left = 0
    rest.add(-100.0)
    assert rest.left == LONGEST


def test_what_gained_first_rests_briefly() -> None:
    rest = Rest()
    for _ in range(100):
        rest.add(1.0)
    while not rest.left:
        rest.add(-1.0)
    assert rest.left == SHORTEST


class Slow(Machine):
    """A machine on which deciding takes time, as it does in Python."""

    def __init__(self, *args: Any, control_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        inner = self.speculation._remember

        def remember(*args: Any) -> None:
            self.now += control_s
            inner(*args)

        self.speculation._remember = remember  # type: ignore[method-assign]


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("free", [False, True])
def test_deciding_costs_little_where_nothing_is_drafted(batch: int, free: bool) -> None:
    machine = Slow(steep, [0.1] * batch, control_s=0.2, draft_s=0.3, free=free)
    machine.run(500)
    calls = machine.asked
    assert machine.run(1000) > 0.98 * batch / steep(batch)
    assert machine.asked - calls < 120


def test_deciding_may_cost_more_than_drafts_bring() -> None:
    machine = Slow(flat, [0.4], control_s=0.3, draft_s=0.01)
    assert best(flat, 0.4, 0.01, 8) > 1.4 / flat(1)  # the drafts alone would pay
    machine.run(500)
    assert machine.run(1000) > 0.98 / flat(1)


def test_a_resting_drafter_says_so_before_the_last_step() -> None:
    machine = Machine(steep, [0.0], draft_s=0.3)
    while not machine.speculation.resting:
        machine.run(1)
    asked = machine.asked
    while machine.speculation.resting:
        assert machine.asked == asked
        machine.run(1)
    machine.run(1)
    assert machine.asked > asked  # drafts had room in that step


def test_the_sequences_that_are_tried_change() -> None:
    machine = Machine(steep, [0.0] * 16, draft_s=0.3)
    tried: set[int] = set()
    for _ in range(2000):
        machine.run(1)
        if machine.speculation._probing:
            tried |= {at for at, draft in enumerate(machine.drafts) if draft}
    assert len(tried) > 3


def test_drafting_begins_with_few_sequences() -> None:
    rest = Rest()
    assert [rest.width(count) for count in (1, 7, 32)] == [1, 1, 4]
    rest.add(1.0)  # without drafts
    assert rest.width(32) == 4
    for wide in (8, 16, 32):
        rest.add(1.0, verified=True)
        assert rest.width(32) == wide
    rest.add(-0.5, verified=True)
    assert rest.width(32) == 32
    turn = rest.turn
    rest.begin()
    assert rest.width(32) == 4 and rest.turn == turn + 1


def test_a_batch_drafts_for_more_sequences_as_it_gains() -> None:
    machine = Machine(flat, [0.9] * 32, draft_s=0.001)
    widths = []
    for _ in range(40):
        machine.run(1)
        widths.append(sum(bool(draft) for draft in machine.drafts))
    assert 0 < next(width for width in widths if width) <= 4 and max(widths) == 32
